"""The replay of openb's traces: arrivals, placement and reports."""

import json
import lzma
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.placement import __main__ as command
from benchmarks.placement.openb import (
    TraceError,
    TraceNode,
    TracePod,
    arrivals,
    node_list,
    pod_lists,
    read_nodes,
    read_pods,
    trace_name,
)
from benchmarks.placement.published import POLICIES, published
from benchmarks.placement.replay import (
    FEW_GPUS,
    FEW_PROCESSORS,
    LITTLE_MEMORY,
    LITTLE_ON_GPUS,
    OTHER_MODEL,
    replay,
)
from benchmarks.placement.tasks import Done, Task
from gpushare.api.node.device import Placement
from gpushare.simulate.peers.names import PEERS

NODES = "sn,cpu_milli,memory_mib,gpu,model\nb,64000,262144,2,T4\na,8000,32768,1,V100\nplain,96000,1000,0,\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"
    "p2,1000,100,2,1000,\np1,1000,100,1,460,V100|T4\np3,500,10,0,0,T4\np4,500,10,1,1500,\n"
)
SHORT = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np1,1000,100,1,460\n"
REPLAYED = (*(placement.value for placement in Placement), *PEERS)
quick = settings(max_examples=60, deadline=None)

pods = st.lists(
    st.builds(
        lambda cpu, memory, shape, models: TracePod(cpu, memory, *shape, models),
        st.sampled_from((0, 500, 4000)),
        st.sampled_from((0, 1000)),
        st.sampled_from(((0, 0), (1, 100), (1, 470), (1, 1000), (2, 1000))),
        st.sampled_from((frozenset(), frozenset({"T4"}))),
    ),
    min_size=1,
    max_size=20,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text(NODES)
    (tmp_path / "openb_pod_list_small.csv").write_text(PODS)
    with lzma.open(tmp_path / "openb_pod_list_short.csv.xz", "wt") as text:
        text.write(SHORT)
    (tmp_path / "README").write_text("not a trace")
    return tmp_path


def test_lists_are_found_by_their_names_and_read_whatever_columns_they_have(folder: Path) -> None:
    lists = pod_lists(folder)
    assert list(lists) == ["short", "small"]
    unnamed = [pod._replace(name="") for pod in read_pods(lists["small"])]
    assert read_pods(lists["short"]) == [TracePod(1000, 100, 1, 460, frozenset(), name="p1")]
    assert unnamed == [
        TracePod(1000, 100, 1, 460, frozenset({"V100", "T4"})),
        TracePod(1000, 100, 2, 1000, frozenset()),
        TracePod(500, 10, 0, 0, frozenset()),
        TracePod(500, 10, 1, 1000, frozenset()),
    ]
    assert [node.name for node in read_nodes(node_list(folder))] == ["b", "a"]
    assert trace_name(Path("openb_pod_list_default.csv.xz")) == "default"


def test_a_folder_or_file_without_a_trace_is_rejected_with_the_reason(folder: Path) -> None:
    (folder / "openb_pod_list_bad.csv").write_text("name,what\na,b\n")
    with pytest.raises(TraceError, match=r"openb_pod_list_bad\.csv: not a list of pods"):
        read_pods(pod_lists(folder)["bad"])
    with pytest.raises(TraceError, match="not a list of nodes"):
        read_nodes(pod_lists(folder)["bad"])
    (folder / "openb_node_list_gpu_node.csv").unlink()
    with pytest.raises(
        TraceError, match=r"0 lists of nodes; put openb_node_list_gpu_node\.csv beside the pods"
    ):
        node_list(folder)


@given(listed=pods, capacity=st.integers(1, 9), seed=st.integers(0, 9))
@quick
def test_arrivals_request_the_configured_ratio_up_to_one_pod(
    listed: list[TracePod], capacity: int, seed: int
) -> None:
    if not any(pod.total_milli for pod in listed):
        return
    arriving = arrivals(listed, capacity * 1000, 1.3, seed)
    assert set(arriving) <= set(listed)
    largest = max(pod.total_milli for pod in listed)
    assert abs(sum(pod.total_milli for pod in arriving) - 1300 * capacity) <= largest
    assert arrivals(listed, capacity * 1000, 1.3, seed) == arriving


@given(listed=pods, policy=st.sampled_from(REPLAYED), seed=st.integers(0, 3))
@quick
def test_allocation_stays_within_capacity_and_equal_seeds_give_equal_results(
    listed: list[TracePod], policy: str, seed: int
) -> None:
    nodes = [TraceNode("a", 8000, 4000, 2, "T4"), TraceNode("b", 64000, 4000, 1, "V100")]
    outcome = replay(nodes, listed, policy, seed)
    assert 0 <= outcome.percent <= 100
    assert outcome.percent <= 100 * sum(pod.total_milli for pod in listed) / 3000 + 1e-9
    assert replay(nodes, listed, policy, seed).percent == outcome.percent
    assert len(outcome.decisions_ms) == sum(pod.gpus > 0 for pod in listed)
    assert [one.pod for one in outcome.landed] == listed
    assert sum(not one.node and one.pod.gpus > 0 for one in outcome.landed) == outcome.dropped
    for one in outcome.landed:
        # Each node that does not take a pod is counted once.
        assert sum(one.refusals.values()) == (0 if one.node else len(nodes))
        assert len(one.gpus) == (one.pod.gpus if one.node else 0)


@pytest.mark.parametrize("policy", REPLAYED)
def test_processors_memory_and_models_are_respected(policy: str) -> None:
    nodes = [TraceNode("a", 4000, 4000, 4, "T4")]
    anywhere: frozenset[str] = frozenset()

    def percent_allocated(*arriving: TracePod) -> float:
        return replay(nodes, arriving, policy, 1).percent

    assert percent_allocated(TracePod(4000, 0, 1, 1000, anywhere), TracePod(1, 0, 1, 1000, anywhere)) == 25
    assert percent_allocated(TracePod(0, 4000, 1, 1000, anywhere), TracePod(0, 1, 1, 1000, anywhere)) == 25
    assert percent_allocated(TracePod(0, 0, 1, 1000, frozenset({"V100"}))) == 0
    assert percent_allocated(TracePod(4000, 0, 0, 0, anywhere), TracePod(1, 0, 1, 1000, anywhere)) == 0
    assert (
        percent_allocated(*[TracePod(0, 0, 3, 1000, anywhere)] * 2, TracePod(0, 0, 1, 500, anywhere)) == 87.5
    )


def test_refusals_of_a_dropped_pod_are_counted_by_each_nodes_first_reason() -> None:
    nodes = [
        TraceNode("model", 1, 1, 1, "V100"),
        TraceNode("processors", 1, 1, 1, "T4"),
        TraceNode("memory", 4000, 1, 1, "T4"),
        TraceNode("gpus", 4000, 4000, 1, "T4"),
        TraceNode("taken", 4000, 4000, 2, "T4"),
    ]
    request = TracePod(1000, 1000, 2, 1000, frozenset({"T4"}))
    first, second = replay(nodes, [request._replace(gpus=2), request], "binpack", 1).landed
    assert (first.node, first.gpus, dict(first.refusals)) == ("taken", (0, 1), {})
    assert (second.node, dict(second.refusals)) == (
        "",
        {OTHER_MODEL: 1, FEW_PROCESSORS: 1, LITTLE_MEMORY: 1, FEW_GPUS: 1, LITTLE_ON_GPUS: 1},
    )


def test_pods_without_a_gpu_go_to_the_node_with_most_free() -> None:
    nodes = [TraceNode("a", 4000, 4000, 1, "T4"), TraceNode("b", 8000, 8000, 1, "T4")]
    free_first = [TracePod(4000, 4000, 0, 0, frozenset()), TracePod(4000, 0, 1, 1000, frozenset())]
    assert replay(nodes, [*free_first, free_first[1]], "binpack", 1).percent == 100


SMALL: dict[str, dict[str, float]] = {"small.binpack": {"least": 101}}


def run(
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    *arguments: str,
    budgets: dict[str, dict[str, float]] = SMALL,
) -> int:
    path = root / "benchmarks" / "placement" / "budgets.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(budgets))
    monkeypatch.setattr(command, "ROOT", root)
    monkeypatch.setattr(sys, "argv", ["bench-placement", *arguments])
    return command.main()


def test_missing_traces_are_reported_as_skipped_without_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, "--traces", str(tmp_path / "none")) == 0
    assert "skipped: " in capsys.readouterr().out


def test_a_quick_run_replays_generated_lists_if_the_traces_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "DATA", tmp_path / "none")
    budgets = {"default.binpack": {"least": 101}, "gpushare60.spread": {"least": 101}}
    assert run(monkeypatch, tmp_path, "--quick", budgets=budgets) == 0
    assert "generated lists are replayed" in capsys.readouterr().out
    assert not (tmp_path / "build").exists()
    assert run(monkeypatch, tmp_path, "--quick", budgets={"other.binpack": {"least": 1}}) == 1
    assert "MISSING: other.binpack was not measured" in capsys.readouterr().out


def test_every_list_of_a_folder_is_replayed_and_its_figures_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "SEEDS", 1)
    assert run(monkeypatch, folder, "--traces", str(folder), "--seeds", "1") == 1
    printed = capsys.readouterr().out
    assert "OVER BUDGET: small.binpack is" in printed
    assert "the paper's simulator published no figure for this trace" in printed
    written = json.loads((folder / "build" / "figures" / "placement.json").read_text())
    shares = {f"{trace}.{policy.value}" for trace in ("short", "small") for policy in Placement}
    assert set(written) == {*shares, "placement_decision_mean_ms", "placement_decision_p99_ms"}
    assert run(monkeypatch, folder, "--traces", str(folder), "nosuch") == 2
    assert "no trace nosuch; there are short, small" in capsys.readouterr().err


def test_figures_are_means_over_seeds_next_to_published_ones() -> None:
    done = [
        Done(Task(Path(), "default", "fragmentation", seed), percent, [1.0] * 50, 100.0)
        for seed, percent in ((42, 95.0), (43, 96.0))
    ]
    figures = command.figures_of(done)
    assert figures["default.fragmentation"] == (95.5, "%")
    assert figures["placement_decision_p99_ms"] == (1.0, "ms")
    lines = command.tables(done)
    assert any("fragmentation" in line and "95.50" in line and "(95.00 to 96.00)" in line for line in lines)
    assert any("FGD" in line and "95.39" in line for line in lines)
    assert set(published("gpushare60")) == set(POLICIES)
    assert published("gpushare20") == {}


def test_a_damaged_list_is_reported_by_name(tmp_path: Path) -> None:
    (tmp_path / "openb_node_list_gpu_node.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\na,1,1,1,T4\n")
    file = tmp_path / "openb_pod_list_short.csv.xz"
    whole = lzma.compress(b"name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + b"p,1,1,1,460\n" * 99)
    for damaged in (whole[:-9], b"no archive at all"):
        file.write_bytes(damaged)
        with pytest.raises(TraceError, match=r"short\.csv\.xz: cannot be unpacked \(.*\); fetch it again"):
            read_pods(file)


@pytest.mark.parametrize(
    "row", ["p,-1,1,1,460", "p,1,1,99999,460", f"p,1,{1 << 63},1,460", "p,1", "p,1,x,1,1"]
)
def test_a_row_with_impossible_values_is_rejected(tmp_path: Path, row: str) -> None:
    file = tmp_path / "openb_pod_list_odd.csv"
    file.write_text(f"name,cpu_milli,memory_mib,num_gpu,gpu_milli\n{row}\n")
    with pytest.raises(TraceError, match=r"odd\.csv: not a list of pods"):
        read_pods(file)
