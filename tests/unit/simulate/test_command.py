"""``gpushare simulate`` from its command line: what it prints, writes and refuses."""

import io
import json
from pathlib import Path

import pytest

from gpushare.api import names
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.reasons.mistakes.pods import mistakes_of
from gpushare.simulate.__main__ import main
from gpushare.simulate.progress import Bar
from gpushare.simulate.snapshot import ClusterState, snapshot_of
from tests.unit.simulate.objects import node, pod, template, workload

T4 = 16160


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    path = tmp_path / "cluster.json"
    path.write_bytes(snapshot_of(ClusterState((node("a", T4, T4), node("b", T4)))))
    return str(path)


def manifests(folder: Path, *documents: object) -> str:
    path = folder / "manifests.json"
    path.write_text(json.dumps({"kind": "List", "items": list(documents)}))
    return str(path)


def test_tables_show_where_pods_are_placed_and_why_others_are_pending(
    tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = manifests(
        tmp_path,
        workload("Deployment", "web", 3, template(10)),
        pod("big", 20),
        {"kind": "Service", "metadata": {"name": "s"}},
    )
    assert main(["--snapshot", snapshot, "-f", file]) == 3
    out, err = capsys.readouterr()
    assert "default    Deployment web  10 GiB  3     3       a (2), b" in out
    assert (
        "default/Pod big  1     0/2 nodes are available: 2 requests 20 GiB, but the largest GPU has 15 GiB."
        in out
    )
    assert "GPU memory allocated: 0 of 47 GiB (0%) before, 32 GiB (66%) after." in out
    assert "4 pods simulated, 1 pending. Policy: binpack." in out
    assert err == "gpushare simulate: Service s is skipped: it creates no pods to simulate\n"


def test_mistakes_are_reported_once_per_workload_with_the_texts_of_admission(
    tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mistaken = template(1, labels={"aliyun.com/gpu-counts": "2"})
    mistaken["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-memory"] = 4
    read = decode_pod(
        {**mistaken, "metadata": {**mistaken["metadata"], "name": "web-0", "namespace": "default"}}
    )
    warnings = [f"default/Deployment web: {text}" for text in mistakes_of(read, MemoryUnit.GIB)]
    assert len(warnings) == 2
    file = manifests(tmp_path, workload("Deployment", "web", 2, mistaken), pod("well", 1))
    assert main(["--snapshot", snapshot, "-f", file, "-o", "json"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["warnings"] == warnings
    assert err.splitlines() == [f"gpushare simulate: {text}" for text in warnings]


def test_a_node_label_that_no_node_can_have_is_reported_too(
    tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = manifests(tmp_path, pod("p", 1, nodeSelector={"ack.node.gpu.schedule": "core-mem"}))
    main(["--snapshot", snapshot, "-f", file, "-o", "json"])
    assert json.loads(capsys.readouterr().out)["warnings"] == [
        "default/Pod p: its nodeSelector requires ack.node.gpu.schedule=core-mem, which no node can have: write core_mem"
    ]


def test_details_have_a_row_for_each_pod(
    tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = manifests(
        tmp_path, pod("small", 1), pod("big", 20), pod("spread", 1, topologySpreadConstraints=[{}])
    )
    assert main(["--snapshot", snapshot, "-f", file, "-d", "--policy", "spread"]) == 3
    out = capsys.readouterr().out
    assert "NAMESPACE  NAME    ASKS    NODE     GPU" in out
    assert "default    big     20 GiB  pending  -" in out
    assert "Ignored, though pods request it: topologySpreadConstraints." in out


def test_an_empty_simulation_is_reported(
    snapshot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--snapshot", snapshot]) == 0
    assert capsys.readouterr().out.startswith("No pod is pending, and none is added.\n")
    plain = tmp_path / "plain.json"
    plain.write_bytes(snapshot_of(ClusterState((node("plain"),))))
    assert main(["--snapshot", str(plain)]) == 0
    assert "No node has GPUs." in capsys.readouterr().out
    assert main(["--snapshot", str(plain), "--min-nodes"]) == 2
    assert "describe the nodes to add with --node-shape" in capsys.readouterr().err


def test_json_has_pods_nodes_and_the_curve(
    tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = manifests(tmp_path, workload("Deployment", "web", 2, template(10)), pod("big", 20))
    assert (
        main(
            [
                "--snapshot",
                snapshot,
                "-f",
                file,
                "-o",
                "json",
                "--min-nodes",
                "--node-shape",
                "gpus=1,memory=40960",
            ]
        )
        == 3
    )
    document = json.loads(capsys.readouterr().out)
    assert document["apiVersion"] == "gpushare.dev/simulation/v2"
    assert {one["name"]: one["node"] for one in document["pods"]}["big"] is None
    assert document["pods"][0]["gpus"][0]["units"] == 10
    assert [one["arrived"] for one in document["curve"]] == [0, 1, 2, 3]
    assert document["minNodes"][0]["moreNodes"] == 1
    assert document["minNodes"][0]["stillPending"] == []
    assert document["memory"]["totalMiB"] == 3 * T4
    assert document["nodes"][0]["gpus"][0]["totalMiB"] == T4


def test_min_nodes_has_a_row_for_each_shape(
    tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = manifests(tmp_path, workload("Deployment", "web", 5, template(15)), pod("big", 20))
    assert main(["--snapshot", snapshot, "-f", file, "--min-nodes"]) == 3
    out = capsys.readouterr().out
    assert "SHAPE   MORE NODES" in out
    assert "like a  1 " in out
    assert "like b  2 " in out
    assert "1 × default/Pod big: 0/3 nodes are available" in out


def test_a_cluster_is_saved(tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "saved.json"
    assert main(["--snapshot", snapshot, "--save", str(saved)]) == 0
    assert saved.read_bytes() == Path(snapshot).read_bytes()
    assert saved.stat().st_mode & 0o077 == 0, "only its owner can read it"
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"gpushare simulate: wrote 2 nodes and 0 pods to {saved}\n")


@pytest.mark.parametrize("options", [["-d"], ["-o", "json"], ["-o", "table"]])
def test_a_simulation_requested_together_with_save_runs_too(
    options: list[str], tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved.json"
    assert main(["--snapshot", snapshot, "--save", str(saved), *options]) == 0
    assert saved.read_bytes() == Path(snapshot).read_bytes()
    assert capsys.readouterr().out.startswith(
        "{" if "json" in options else "No pod is pending, and none is added."
    )


def test_nodes_of_two_units_get_a_table_for_each_unit(
    tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--snapshot", snapshot]) == 0
    assert "NAME  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory\n" in capsys.readouterr().out
    small = node("small", T4)
    devices = (Device(0, "GPU-small-0", T4),)
    small["metadata"]["annotations"] = {
        names.ANN_DEVICES: devices_annotation(NodeMode.SHARE, MemoryUnit.MIB_128, devices)
    }
    plain = tmp_path / "units.json"
    plain.write_bytes(snapshot_of(ClusterState((small, node("large", T4, T4)))))
    assert main(["--snapshot", str(plain)]) == 0
    out = capsys.readouterr().out
    assert "NAME   GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)\nlarge  0/15" in out
    assert (
        "\n\nNAME   GPU0(Allocated/Total)  GPU Memory(128MiB)\nsmall  0/126                  0/126\n\nGPU memory allocated"
        in out
    )


def test_standard_input_is_read(
    snapshot: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps(pod("p", 1)).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert (
        main(["--snapshot", snapshot, "-f", "-", "--unit", "128MiB", "--reference-gpu-memory-mib", "1000"])
        == 0
    )
    assert "p" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--what"], "unrecognized arguments: --what; gpushare simulate --help lists the options"),
        (
            ["web.yaml"],
            "unrecognized arguments: web.yaml (did you mean -f web.yaml?); gpushare simulate --help",
        ),
        (["-f", "a.yaml", "b.yaml", "c/"], "arguments: b.yaml c/ (did you mean -f b.yaml -f c/?); gpushare"),
        (["--polcy", "spread"], "unrecognized arguments: --polcy spread; gpushare simulate --help"),
        (["--node-shape", "x"], "--node-shape: goes with --min-nodes"),
        (["--isolated-max-pods", "0"], "--isolated-max-pods 0: give a number from 1"),
        (["--reference-gpu-memory-mib=-1"], "--reference-gpu-memory-mib -1: give a number of MiB from 0"),
        (["--unit", "2GiB"], "2GiB"),
    ],
)
def test_a_wrong_command_line_is_refused(
    arguments: list[str], expected: str, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--snapshot", snapshot, *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_an_unreadable_file_or_cluster_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--snapshot", str(tmp_path / "none")]) == 1
    error = capsys.readouterr().err
    assert (
        error
        == f"gpushare simulate: {tmp_path / 'none'}: No such file or directory; check the path and its permissions\n"
    )
    assert main(["--kubeconfig", str(tmp_path / "none")]) == 1
    assert "kubeconfig" in capsys.readouterr().err


def test_an_interrupt_ends_it_quietly(snapshot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpushare.simulate.__main__.simulate", interrupted)
    assert main(["--snapshot", snapshot]) == 130


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_progress_bar_is_drawn_only_on_terminals() -> None:
    out = Terminal()
    bar = Bar(out, "pods")
    bar.end()
    bar.shown(1, 2)
    bar.shown(1, 2)  # too soon
    bar.shown(2, 2)
    bar.show_text("more")
    bar.end()
    assert out.getvalue().count("[################                ] 1/2 pods") == 1
    assert "2/2 pods" in out.getvalue()
    assert out.getvalue().endswith("\r")
    file = io.StringIO()
    for quiet in (Bar(file, "pods"), Bar(None, "pods")):
        quiet.shown(2, 2)
        quiet.end()
    assert not file.getvalue()


def test_settings_are_also_read_from_the_environment_and_a_file(
    tmp_path: Path, snapshot: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "gpushare.yaml"
    config.write_text(f"simulate: {{snapshot: {snapshot}, min-nodes: true, node-shape: [b], output: json}}")
    monkeypatch.setenv("GPUSHARE_POLICY", "spread")
    file = manifests(tmp_path, pod("p", 1))
    assert main(["--config", str(config), "-f", file]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["policy"] == "spread"
    assert [one["shape"] for one in document["minNodes"]] == ["like b"]
    monkeypatch.setenv("GPUSHARE_NODE_SHAPE", "a; gpus=1,memory=40960")
    assert main(["--config", str(config), "-f", file]) == 0
    assert [one["shape"] for one in json.loads(capsys.readouterr().out)["minNodes"]] == [
        "like a",
        "gpus=1,memory=40960",
    ]
    config.write_text("simulate: {node-shape: [1], seed: true}")
    assert main(["--config", str(config)]) == 2
    err = capsys.readouterr().err
    assert "node-shape" in err
    assert "seed" in err


def test_unknown_ends_of_jobs_are_reported(
    tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [workload("Job", f"j{number}", 1, template(1)) for number in range(4)]
    assert main(["--snapshot", snapshot, "-f", manifests(tmp_path, jobs[0])]) == 0
    assert "The end of Jobs is unknown: default/Job j0 keeps its allocation." in capsys.readouterr().out
    assert main(["--snapshot", snapshot, "-f", manifests(tmp_path, *jobs)]) == 0
    assert "default/Job j2, and 1 more keep their allocation." in capsys.readouterr().out
