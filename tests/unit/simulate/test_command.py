"""``gpushare simulate`` from its command line: what it prints, writes and refuses."""

import io
import json
import lzma
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import resvg_py

from gpushare.api import names
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.reasons.mistakes.pods import slips_of
from gpushare.simulate.__main__ import main
from gpushare.simulate.output.plot import WIDTH, Axis, Line, Panel, grid, picture
from gpushare.simulate.progress import Bar
from gpushare.simulate.snapshot import ClusterState, snapshot_of
from gpushare.simulate.traces import report, traces
from tests.unit.simulate.making import node, pod, template, workload
from tests.unit.simulate.png import pixels_of

T4 = 16160
OPENB = Path(__file__).parents[4] / "shared" / "data" / "openb"


@pytest.fixture
def snapshot(tmp_path: Path) -> str:
    path = tmp_path / "cluster.json"
    path.write_bytes(snapshot_of(ClusterState((node("a", T4, T4), node("b", T4)))))
    return str(path)


def manifests(folder: Path, *documents: object) -> str:
    path = folder / "manifests.json"
    path.write_text(json.dumps({"kind": "List", "items": list(documents)}))
    return str(path)


def test_tables_say_where_pods_land_and_why_others_wait(
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
        "default/Pod big  1     0/2 nodes are available: 2 asks for 20 GiB, the largest GPU has 15 GiB."
        in out
    )
    assert "GPU memory given: 0 of 47 GiB (0%) before, 32 GiB (66%) after." in out
    assert "4 pods were looked at, 1 waits. Policy: binpack." in out
    assert err == "gpushare simulate: Service s is passed over: it makes no pods that are simulated\n"


def test_slips_are_told_once_a_workload_as_admission_warns_of_them(
    tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    slipped = template(1, labels={"aliyun.com/gpu-counts": "2"})
    slipped["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-memory"] = 4
    read = decode_pod(
        {**slipped, "metadata": {**slipped["metadata"], "name": "web-0", "namespace": "default"}}
    )
    warned = [f"default/Deployment web: {text}" for text in slips_of(read, MemoryUnit.GIB)]
    assert len(warned) == 2
    file = manifests(tmp_path, workload("Deployment", "web", 2, slipped), pod("well", 1))
    assert main(["--snapshot", snapshot, "-f", file, "-o", "json"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["warnings"] == warned
    assert err.splitlines() == [f"gpushare simulate: {text}" for text in warned]


def test_a_node_label_that_no_node_can_have_is_told_of_too(
    tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = manifests(tmp_path, pod("p", 1, nodeSelector={"ack.node.gpu.schedule": "core-mem"}))
    main(["--snapshot", snapshot, "-f", file, "-o", "json"])
    assert json.loads(capsys.readouterr().out)["warnings"] == [
        "default/Pod p: its nodeSelector wants ack.node.gpu.schedule=core-mem, which no node can have: write core_mem"
    ]


def test_a_field_that_there_is_not_is_told_of_and_the_rest_is_simulated(
    tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = workload("Deployment", "web", 2, template(1))
    made["spec"]["replicaz"] = made["spec"].pop("replicas")
    assert main(["--snapshot", snapshot, "-f", manifests(tmp_path, made), "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["warnings"] == [
        'default/Deployment web: unknown field "spec.replicaz" (did you mean replicas?): Kubernetes 1.36 has none, '
        "kubectl would refuse it, and it is passed over here"
    ]


def test_details_have_a_row_for_each_pod(
    tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = manifests(
        tmp_path, pod("small", 1), pod("big", 20), pod("spread", 1, topologySpreadConstraints=[{}])
    )
    assert main(["--snapshot", snapshot, "-f", file, "-d", "--policy", "spread"]) == 3
    out = capsys.readouterr().out
    assert "NAMESPACE  NAME    ASKS    NODE   GPU" in out
    assert "default    big     20 GiB  waits  -" in out
    assert "Not looked at, though pods ask for it: topologySpreadConstraints." in out


def test_nothing_to_do_is_said(snapshot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--snapshot", snapshot]) == 0
    assert capsys.readouterr().out.startswith("No pod waits, and none is to come.\n")
    plain = tmp_path / "plain.json"
    plain.write_bytes(snapshot_of(ClusterState((node("plain"),))))
    assert main(["--snapshot", str(plain)]) == 0
    assert "No node has GPUs." in capsys.readouterr().out
    assert main(["--snapshot", str(plain), "--min-nodes"]) == 2
    assert "say with --node-shape" in capsys.readouterr().err


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
    told = json.loads(capsys.readouterr().out)
    assert told["apiVersion"] == "gpushare.dev/simulation/v1"
    assert {one["name"]: one["node"] for one in told["pods"]}["big"] is None
    assert told["pods"][0]["gpus"][0]["units"] == 10
    assert [one["arrived"] for one in told["curve"]] == [0, 1, 2, 3]
    assert told["enough"][0]["moreNodes"] == 1
    assert told["enough"][0]["stillWaiting"] == []
    assert told["memory"]["totalMiB"] == 3 * T4
    assert told["nodes"][0]["gpus"][0]["totalMiB"] == T4


def test_enough_has_a_row_for_each_shape(
    tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = manifests(tmp_path, workload("Deployment", "web", 5, template(15)), pod("big", 20))
    assert main(["--snapshot", snapshot, "-f", file, "--min-nodes"]) == 3
    out = capsys.readouterr().out
    assert "SHAPE   MORE NODES" in out
    assert "like a  1 " in out
    assert "like b  2 " in out
    assert "1 × default/Pod big: 0/3 nodes are available" in out


def test_a_cluster_is_saved_and_a_picture_drawn(
    tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, plot = tmp_path / "saved.json", tmp_path / "given.svg"
    assert main(["--snapshot", snapshot, "--save", str(saved)]) == 0
    assert saved.read_bytes() == Path(snapshot).read_bytes()
    assert saved.stat().st_mode & 0o077 == 0, "its owner alone reads it"
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"gpushare simulate: wrote 2 nodes and 0 pods to {saved}\n")
    file = manifests(tmp_path, workload("Deployment", "a<b", 2, template(10)))
    assert main(["--snapshot", str(saved), "--save", str(saved), "-f", file, "--plot", str(plot)]) == 0
    assert len(ElementTree.parse(plot).getroot().findall("{http://www.w3.org/2000/svg}path")) == 3


@pytest.mark.parametrize("asked", [["-d"], ["-o", "json"], ["-o", "table"], ["--plot"]])
def test_what_is_asked_for_beside_saving_is_done_too(
    asked: list[str], tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, plot = tmp_path / "saved.json", tmp_path / "given.svg"
    more = [*asked, str(plot)] if asked == ["--plot"] else asked
    assert main(["--snapshot", snapshot, "--save", str(saved), *more]) == 0
    assert saved.read_bytes() == Path(snapshot).read_bytes()
    assert capsys.readouterr().out.startswith(
        "{" if "json" in asked else "No pod waits, and none is to come."
    )
    assert plot.exists() == (asked == ["--plot"])


def test_nodes_of_two_units_have_a_table_with_the_name_of_each(
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
        "\n\nNAME   GPU0(Allocated/Total)  GPU Memory(128MiB)\nsmall  0/126                  0/126\n\nGPU memory given"
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
    ("arguments", "why"),
    [
        (["--what"], "unrecognized arguments: --what; gpushare simulate --help tells the options"),
        (
            ["web.yaml"],
            "unrecognized arguments: web.yaml (did you mean -f web.yaml?); gpushare simulate --help",
        ),
        (["-f", "a.yaml", "b.yaml", "c/"], "arguments: b.yaml c/ (did you mean -f b.yaml -f c/?); gpushare"),
        (["--polcy", "spread"], "unrecognized arguments: --polcy spread; gpushare simulate --help"),
        (
            ["--trace", "x", "--reschedule-all", "--node-shape", "y"],
            "--trace goes without --reschedule-all, --node-shape",
        ),
        (["--trace", "x", "--ratio", "0"], "--ratio 0: give a number above 0 and at most 10"),
        (["--list", "x"], "--list: goes with --trace"),
        (["--node-shape", "x"], "--node-shape: goes with --min-nodes"),
        (["--times"], "--times: goes with --trace"),
        (["--trace-nodes", "3"], "--trace-nodes: goes with --trace"),
        (["--trace", "x", "--times", "--ratio", "1"], "--ratio: goes without --times"),
        (["--ratio", "x"], "--ratio x: give a number above 0"),
        (["--isolated-max-pods", "0"], "--isolated-max-pods 0: give a number from 1"),
        (["--reference-gpu-memory-mib=-1"], "--reference-gpu-memory-mib -1: give a number of MiB from 0"),
        (["--plot", "x.gif"], "--plot x.gif: write to a file that ends with .svg or .png"),
        (["--unit", "2GiB"], "2GiB"),
        (["--trace", "/nowhere"], "--trace /nowhere: there is no such folder"),
    ],
)
def test_a_wrong_command_line_is_refused(
    arguments: list[str], why: str, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--trace" not in arguments:
        arguments = ["--snapshot", snapshot, *arguments]
    assert main(arguments) == 2
    assert why in capsys.readouterr().err


def test_a_file_or_a_cluster_that_cannot_be_read_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--snapshot", str(tmp_path / "none")]) == 1
    told = capsys.readouterr().err
    assert (
        told
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


def test_the_bar_is_drawn_on_terminals_alone() -> None:
    out = Terminal()
    bar = Bar(out, "pods")
    bar.end()
    bar.shown(1, 2)
    bar.shown(1, 2)  # too soon
    bar.shown(2, 2)
    bar.said("more")
    bar.end()
    assert out.getvalue().count("[################                ] 1/2 pods") == 1
    assert "2/2 pods" in out.getvalue()
    assert out.getvalue().endswith("\r")
    file = io.StringIO()
    for quiet in (Bar(file, "pods"), Bar(None, "pods")):
        quiet.shown(2, 2)
        quiet.end()
    assert not file.getvalue()


@pytest.mark.parametrize(
    ("axis", "most", "expected"),
    [
        (Axis("x", 0), 6, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (Axis("x", 95), 6, [0, 20, 40, 60, 80, 100]),
        (Axis("x", 100.00000000000001), 6, [0, 20, 40, 60, 80, 100]),
        (Axis("x", 8, whole=True), 10, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (Axis("x", 14, whole=True), 6, [0, 5, 10, 15]),
        (Axis("x", 0, whole=True), 3, [0, 1]),
        (Axis("x", 1, whole=True), 3, [0, 1]),
        (Axis("x", 7, whole=True), 3, [0, 5, 10]),
        (Axis("x", 1001), 6, [0, 200, 400, 600, 800, 1000, 1200]),
    ],
)
def test_axes_are_divided_by_short_numbers_and_pods_by_whole_ones(
    axis: Axis, most: int, expected: list[float]
) -> None:
    assert grid(axis, most) == pytest.approx(expected)


def test_pictures_keep_every_peak_and_their_last_point() -> None:
    many = [(float(at), 9.0 if at == 3333 else 1.0) for at in range(50001)]
    one = Line("l & m", many)
    panels = [
        Panel(Axis("y", 10), [Line("asked", [(0, 0), (1, 1)], faint=True), one]),
        Panel(Axis("z", 1), [one]),
    ]
    svg = picture("a & b", Axis("x", 50000), panels, stepped=True)
    drawn = ElementTree.fromstring(svg).findall("{http://www.w3.org/2000/svg}path")
    assert "a &amp; b" in svg
    assert [path.get("class") for path in drawn] == ["faint", None, None]
    assert drawn[1].get("stroke") == drawn[2].get("stroke") == "#0072b2"
    way = drawn[1].get("d") or ""
    assert way.count("H") < 4 * WIDTH
    assert way.count("V86.0") == 1  # nine tenths of the way up
    assert way.endswith("H836.0V326.0")
    assert svg.count(">l &amp; m</text>") == 1


@pytest.mark.no_cover  # drawing it would take three times as long
def test_a_png_has_the_curve_and_the_words(tmp_path: Path, snapshot: str) -> None:
    plot = tmp_path / "p.png"
    file = manifests(tmp_path, workload("Deployment", "web", 4, template(10)))
    assert main(["--snapshot", snapshot, "-f", file, "--plot", str(plot)]) == 3
    rows = pixels_of(plot)
    assert (len(rows[0]), len(rows)) == (2 * WIDTH, 2 * 526)
    assert rows[0][0] == rows[-1][-1] == (255, 255, 255)
    blue, green = (0, 114, 178), (0, 158, 115)
    # Below the legend: what is given climbs from the bottom of its panel, and a pod waits in the lower one.
    given = [at for at, row in enumerate(rows) if blue in row and at > 100]
    waits = [at for at, row in enumerate(rows) if green in row and at > 100]
    assert given[-1] == pytest.approx(2 * 356, abs=4)
    assert given[0] < 2 * 200
    assert waits[0] > given[-1]
    assert waits[0] == pytest.approx(2 * 382, abs=4)
    # The title's letters, in the text's own colour.
    assert sum(pixel == (36, 41, 47) for row in rows[16:52] for pixel in row) > 500


def test_png_without_its_package_or_without_fonts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "p.png"
    drawn = resvg_py.svg_to_bytes
    monkeypatch.setattr(resvg_py, "svg_to_bytes", lambda **how: drawn(**how, skip_system_fonts=True))
    assert main(["--snapshot", snapshot, "--plot", str(plot)]) == 2
    assert (
        f"--plot {plot}: this machine has no fonts for a PNG's texts: install some (Debian and Ubuntu: fonts-dejavu-core), or write .svg"
        in capsys.readouterr().err
    )
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    assert main(["--snapshot", snapshot, "--plot", str(plot)]) == 2
    assert "the package resvg-py, which is not installed: pip install resvg-py" in capsys.readouterr().err
    assert not plot.exists()


NODES = "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,2,T4\nb,64000,262144,2,V100\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np1,1000,100,1,460,\np2,1000,100,2,1000,T4\np3,500,10,0,0,\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    folder = tmp_path / "trace"
    folder.mkdir()
    (folder / "openb_node_list_gpu_node.csv").write_text(NODES)
    with lzma.open(folder / "openb_pod_list_small.csv.xz", "wt") as text:
        text.write(PODS)
    return folder


def test_a_trace_is_replayed_by_each_policy(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = trace / "plot.svg"
    assert main(["--trace", str(trace), "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("small: ")
    assert [line.split()[0] for line in out.splitlines()[3:6]] == ["binpack", "spread", "fragmentation"]
    assert len(ElementTree.parse(plot).getroot().findall("{http://www.w3.org/2000/svg}path")) == 3
    assert main(["--trace", str(trace), "--policy", "binpack", "--list", "small", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["policy"] for one in told["policies"]] == ["binpack"]
    assert told["policies"][0]["curve"][-1]["givenPercent"] == pytest.approx(
        told["policies"][0]["givenPercent"], abs=0.01
    )


TIMED = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time\n"
    "a,1000,100,2,1000,T4,0,7200,0\n"
    "b,1000,100,2,1000,T4,3600,10800,3600\n"
    "c,1000,100,1,500,,3600,7200,\n"
    "d,1000,100,0,0,,10,20,10\n"
    "e,1000,100,4,1000,,100,200,150\n"
    "f,9999999,100,0,0,,300,400,310\n"
    "g,1000,100,1,1000,T4,3700,4000,3700\n"
    "h,1000,100,1,1000,T4,3800,4000,3800\n"
)


def test_a_trace_with_times_is_replayed_by_them_and_pods_end(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (trace / "openb_pod_list_timed.csv").write_text(TIMED)
    plot = trace / "plot.svg"
    named = ["--trace", str(trace), "--list", "timed", "--times"]
    assert main([*named, "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("timed: 8 pods on 4 GPUs of 2 nodes, by the list's own times\n")
    # a has both T4s until 7200, so b waits for an hour, and g and h behind it for b's end; e asks for more than a node has.
    assert out.splitlines()[3].split() == ["binpack", *out.splitlines()[3].split()[1:3], "4", "2h59m", "1"]
    drawn = ElementTree.parse(plot).getroot().findall("{http://www.w3.org/2000/svg}path")
    assert len(drawn) == 1 + 3 + 3
    assert main([*named, "--policy", "binpack", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (one,) = told["policies"]
    assert told["byTime"]
    assert (one["waited"], one["never"], one["longestWaitSeconds"]) == (4, 1, 14400 - 3700)
    given = {each["seconds"]: (each["givenPercent"], each["waiting"]) for each in one["curve"]}
    assert given[0] == (50, 0)
    assert given[100] == (50, 1)
    assert given[3600] == (62.5, 2)
    assert given[7200] == (50, 3)
    assert given[14400] == (50, 1)
    assert given[14700] == (0, 1)
    assert one["mostGivenPercent"] == 62.5
    assert main([*named, "--trace-nodes", "1", "--seed", "0", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == 1
    assert main(["--trace", str(trace), "--list", "small", "--times"]) == 2
    assert "--times: small: does not say of each pod when it came and ended" in capsys.readouterr().err


def test_how_long_is_told_in_two_units_at_most() -> None:
    assert [report.long(seconds) for seconds in (0, 59, 3600, 90061)] == ["-", "1m", "1h0m", "1d1h"]


def test_settings_come_from_the_environment_and_a_file_too(
    tmp_path: Path, snapshot: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "gpushare.yaml"
    config.write_text(f"simulate: {{snapshot: {snapshot}, min-nodes: true, node-shape: [b], output: json}}")
    monkeypatch.setenv("GPUSHARE_POLICY", "spread")
    file = manifests(tmp_path, pod("p", 1))
    assert main(["--config", str(config), "-f", file]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["policy"] == "spread"
    assert [one["shape"] for one in told["enough"]] == ["like b"]
    monkeypatch.setenv("GPUSHARE_NODE_SHAPE", "a; gpus=1,memory=40960")
    assert main(["--config", str(config), "-f", file]) == 0
    assert [one["shape"] for one in json.loads(capsys.readouterr().out)["enough"]] == [
        "like a",
        "gpus=1,memory=40960",
    ]
    config.write_text("simulate: {node-shape: [1], ratio: true}")
    assert main(["--config", str(config)]) == 2
    err = capsys.readouterr().err
    assert "node-shape" in err
    assert "ratio" in err


def test_that_ends_of_jobs_are_not_known_is_said(
    tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [workload("Job", f"j{number}", 1, template(1)) for number in range(4)]
    assert main(["--snapshot", snapshot, "-f", manifests(tmp_path, jobs[0])]) == 0
    assert "When Jobs end is not known: default/Job j0 keeps what was given." in capsys.readouterr().out
    assert main(["--snapshot", snapshot, "-f", manifests(tmp_path, *jobs)]) == 0
    assert "default/Job j2, and 1 more keep what was given." in capsys.readouterr().out


def test_a_folder_that_is_no_trace_is_refused(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", str(trace), "--list", "other"]) == 2
    assert "--list other: there are small" in capsys.readouterr().err
    (trace / "openb_node_list_gpu_node.csv").write_text(NODES.replace(",2,", ",0,"))
    assert main(["--trace", str(trace)]) == 2
    assert "has a GPU" in capsys.readouterr().err
    (trace / "openb_node_list_gpu_node.csv").unlink()
    assert main(["--trace", str(trace)]) == 2
    assert "lists of nodes" in capsys.readouterr().err


@pytest.mark.skipif(not OPENB.is_dir(), reason="the public openb traces are not beside the checkout")
def test_the_public_trace_is_read() -> None:
    found = traces.replayed(traces.Replaying(OPENB, "gpushare60", []), 1.3, Bar(None, "pods"))
    assert (found.nodes, found.gpus) == (1213, 6212)
