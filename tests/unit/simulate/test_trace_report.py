"""What is told of a replayed list: where each pod went, why others were dropped, and how many nodes would be enough."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpushare.api.node.device import Placement
from gpushare.simulate.__main__ import main
from gpushare.simulate.progress import Bar
from gpushare.simulate.traces import report, traces
from gpushare.simulate.traces.min_nodes import ample, drawn, enough_nodes
from gpushare.simulate.traces.openb import TraceNode, TracePod

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,8000,8000,2,T4\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time\n"
    "p1,100,100,1,1000,,0,100,0\n"
    "p2,100,100,1,1000,,10,100,10\n"
    "p3,100,100,1,1000,,20,90,20\n"
)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES)
    (tmp_path / "openb_pod_list_small.csv").write_text(PODS)
    return str(tmp_path)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--policy", "binpack", "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_pod_is_told_with_its_node_and_gpus_or_why_it_was_dropped(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = told(capsys, "--trace", trace, "--ratio", "1.5")
    (policy,) = document["policies"]
    assert sorted(one["name"] for one in policy["pods"]) == ["p1", "p2", "p3"]
    assert [(one["node"], one["gpus"], one["why"]) for one in policy["pods"]] == [
        ("a", [0], ""),
        ("a", [1], ""),
        (None, [], "too little free on the GPUs (1 node)"),
    ]
    assert policy["droppedFor"] == [{"reason": "too little free on the GPUs", "pods": 1, "nodes": 1}]
    assert policy["enough"] is None
    assert main(["--trace", trace, "--ratio", "1.5", "--policy", "binpack", "-d"]) == 0
    lines = [line.split(maxsplit=5) for line in capsys.readouterr().out.splitlines()]
    assert ["POLICY", "REASON", "PODS", "DROPPED", "NODES", "EACH"] in lines
    assert ["binpack", "too", "little", "free", "on", "the GPUs  1             1"] in lines
    assert [line[1:] for line in lines[-3:]] == [
        [policy["pods"][0]["name"], "1", "GPU", "a", "0    -"],
        [policy["pods"][1]["name"], "1", "GPU", "a", "1    -"],
        [policy["pods"][2]["name"], "1", "GPU", "dropped", "-    too little free on the GPUs (1 node)"],
    ]


def test_by_the_lists_own_times_each_pod_is_told_with_when_it_ran(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (policy,) = told(capsys, "--trace", trace, "--times")["policies"]
    times = ("name", "node", "cameSeconds", "beganSeconds", "endedSeconds", "why")
    assert [tuple(one[key] for key in times) for one in policy["pods"]] == [
        ("p1", "a", 0, 0, 100, ""),
        ("p2", "a", 10, 10, 100, ""),
        ("p3", "a", 20, 100, 170, ""),
    ]
    folder = Path(trace)
    (folder / "openb_pod_list_small.csv").write_text(
        PODS + "p4,100,100,3,1000,,30,90,30\np5,9000,1,1,9,,30,90,30\n"
    )
    (policy,) = told(capsys, "--trace", trace, "--times")["policies"]
    assert policy["pods"][3]["why"] == "too few GPUs (1 node)"
    assert policy["pods"][4]["why"] == "too few processors free (1 node)"
    assert [one["reason"] for one in policy["neverFor"]] == ["too few GPUs", "too few processors free"]
    assert main(["--trace", trace, "--times", "--policy", "binpack", "-d"]) == 0
    out = capsys.readouterr().out
    assert "binpack  p3    1 GPU          20       100       170       a      0    -\n" in out
    assert (
        "binpack  p4    3 GPUs         30       -         -         waits  -    too few GPUs (1 node)\n"
        in out
    )
    assert "binpack  too few processors free  1                  1\n" in out


def test_enough_nodes_drop_nobody_and_one_less_does(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    asking = ["--trace", trace, "--ratio", "1.5"]
    document = told(capsys, *asking, "--min-nodes")
    (policy,) = document["policies"]
    assert policy["enough"] == {"nodes": 2, "gpus": 4, "givenPercent": 75.0, "left": 0, "most": 3}
    for nodes, dropped in ((1, 1), (2, 0), (3, 0)):
        document = told(capsys, *asking, "--trace-nodes", str(nodes))
        # The same pods come, on however many nodes.
        assert (document["nodes"], document["gpus"], document["pods"]) == (nodes, 2 * nodes, 3)
        assert document["policies"][0]["dropped"] == dropped
    assert main([*asking, "--min-nodes", "--policy", "spread"]) == 0
    assert "spread  2             4     75.00%      0\n" in capsys.readouterr().out


def test_by_the_lists_own_times_nobody_waits_on_enough_nodes(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (policy,) = told(capsys, "--trace", trace, "--times", "--min-nodes")["policies"]
    assert (policy["waited"], policy["enough"]["nodes"], policy["enough"]["left"]) == (1, 2, 0)
    assert main(["--trace", trace, "--times", "--min-nodes", "--policy", "binpack"]) == 0
    assert "POLICY   NODES ENOUGH  GPUS  GIVEN THEN  STILL WAITING\nbinpack  2 " in capsys.readouterr().out


def test_nodes_are_drawn_by_the_seed_and_beyond_the_list_once_more_under_other_names() -> None:
    nodes = [TraceNode(name, 1, 1, 1, "T4") for name in "abcd"]
    assert drawn(nodes, 4, 0) == nodes
    assert drawn(nodes, 2, 7) == drawn(nodes, 2, 7)
    assert {one.name for one in drawn(nodes, 2, 7)} < set("abcd")
    more = [one.name for one in drawn(nodes, 9, 0)]
    assert more[:8] == ["a", "b", "c", "d", "a-1", "b-1", "c-1", "d-1"]
    assert more[8].endswith("-2")


@pytest.mark.parametrize("needed", range(1, 9))
def test_both_sides_of_the_number_that_is_enough_were_tried(needed: int) -> None:
    nodes = [TraceNode(name, 1, 1, 1, "T4") for name in "abcd"]
    seen: dict[int, int | None] = {}

    def tried(some: Any, most: int | None) -> tuple[int, float]:
        seen[len(some)] = most
        return max(needed - len(some), 0) + 2, 50.0

    assert ample(nodes, 0.5) == 8
    found = enough_nodes(nodes, 0, 8, tried, lambda count: None)
    assert (found.nodes, found.left, found.most) == (needed, 2, 8)
    assert {needed, max(needed - 1, 1)} <= set(seen)
    assert seen.pop(8) is None
    assert set(seen.values()) <= {2}, "a run may end where more are left out than on the most nodes"


def test_what_pods_of_a_list_ask_for_is_told_in_words() -> None:
    anywhere: frozenset[str] = frozenset()
    asking = ((0, 0), (1, 460), (1, 1000), (8, 1000), (2, 500))
    assert [report.asked(TracePod(1, 1, gpus, milli, anywhere)) for gpus, milli in asking] == [
        "no GPU",
        "46% of a GPU",
        "1 GPU",
        "8 GPUs",
        "2 × 50% of a GPU",
    ]


def test_a_policy_is_named_while_it_is_looked_for(trace: str) -> None:
    class Told(Bar):
        def __init__(self) -> None:
            super().__init__(None, "")
            self.texts: list[str] = []

        def said(self, text: str) -> None:
            self.texts.append(text)

    bar = Told()
    traces.replayed(traces.Replaying(Path(trace), None, [Placement.SPREAD], enough=True), 1.5, bar)
    assert bar.texts == ["spread: 3 nodes", "spread: 1 node", "spread: 2 nodes"]
