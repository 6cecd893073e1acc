"""``gpushare simulate`` from its command line: what it prints, writes and refuses."""

import io
import json
import lzma
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from gpushare.simulate import drawing, traces
from gpushare.simulate.__main__ import main
from gpushare.simulate.plot import Axis, Line, picture, rounded_up
from gpushare.simulate.progress import Bar
from gpushare.simulate.state import ClusterState, snapshot_of
from tests.unit.simulate.making import node, pod, template, workload

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
    assert "4 pods were looked at, 1 wait. Policy: binpack." in out
    assert err == "gpushare simulate: Service s is passed over: it makes no pods that are simulated\n"


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
    assert main(["--snapshot", str(plain), "--enough"]) == 2
    assert "say with --shape" in capsys.readouterr().err


def test_json_has_pods_nodes_and_the_curve(
    tmp_path: Path, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = manifests(tmp_path, workload("Deployment", "web", 2, template(10)), pod("big", 20))
    assert (
        main(["--snapshot", snapshot, "-f", file, "-o", "json", "--enough", "--shape", "gpus=1,memory=40960"])
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
    assert main(["--snapshot", snapshot, "-f", file, "--enough"]) == 3
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
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"gpushare simulate: wrote 2 nodes and 0 pods to {saved}\n")
    file = manifests(tmp_path, workload("Deployment", "a<b", 2, template(10)))
    assert main(["--snapshot", str(saved), "--save", str(saved), "-f", file, "--plot", str(plot)]) == 0
    assert len(ElementTree.parse(plot).getroot().findall("{http://www.w3.org/2000/svg}path")) == 3


def test_standard_input_is_read(
    snapshot: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps(pod("p", 1)).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main(["--snapshot", snapshot, "-f", "-", "--unit", "128MiB", "--card-memory-mib", "1000"]) == 0
    assert "p" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--what"], "unrecognized arguments: --what; gpushare simulate --help tells the options"),
        (["--trace", "x", "--anew", "--enough"], "--trace goes without --anew, --enough"),
        (["--trace", "x", "--ratio", "0"], "--ratio 0.0: above 0"),
        (["--list", "x"], "--list: goes with --trace"),
        (["--shape", "x"], "--shape: goes with --enough"),
        (["--isolated-max-pods", "0"], "--isolated-max-pods 0: at least 1"),
        (["--card-memory-mib", "-1"], "--card-memory-mib -1: a number"),
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
    assert "No such file" in capsys.readouterr().err
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


def test_pictures_end_their_axes_at_short_numbers_and_keep_their_last_point() -> None:
    ends = {0: 1, 0.3: 0.3, 1: 1, 1.2: 1.5, 7: 8, 26: 30, 130: 150, 1001: 1500}
    assert [rounded_up(value) for value in ends] == pytest.approx(list(ends.values()))
    many = [(float(at), float(at % 7)) for at in range(5001)]
    svg = picture(
        "a & b", Axis("x", 5000), Axis("y", 10), [Line("l", many), Line("m", [(0, 0), (1, 1)])], stepped=True
    )
    ElementTree.fromstring(svg)
    assert "a &amp; b" in svg
    assert svg.count("H") < 1300


def test_png_is_made_by_a_program_that_is_named_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    plot = tmp_path / "p.png"
    assert main(["--snapshot", snapshot, "--plot", str(plot)]) == 2
    assert (
        "rsvg-convert, which is not on PATH: install it (Debian and Ubuntu: librsvg2-bin)"
        in capsys.readouterr().err
    )
    converter = programs / "rsvg-convert"
    converter.write_text('#!/bin/sh\nread -r first\necho "$@" "$first" >"${3#--output=}"\n')
    converter.chmod(0o755)
    assert main(["--snapshot", snapshot, "--plot", str(plot)]) == 0
    assert plot.read_text().startswith(f"--zoom=2 --format=png --output={plot} <svg")
    converter.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    assert main(["--snapshot", snapshot, "--plot", str(plot)]) == 2
    assert "rsvg-convert failed: broken" in capsys.readouterr().err
    converter.write_text("#!/bin/sh\nexec /bin/sleep 20\n")
    monkeypatch.setattr(drawing, "_CONVERT_S", 0.2)
    assert main(["--snapshot", snapshot, "--plot", str(plot)]) == 2
    assert "did not end within" in capsys.readouterr().err


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
    assert [line.split()[0] for line in out.splitlines()[3:]] == ["binpack", "spread", "fragmentation"]
    assert len(ElementTree.parse(plot).getroot().findall("{http://www.w3.org/2000/svg}path")) == 3
    assert main(["--trace", str(trace), "--policy", "binpack", "--list", "small", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["policy"] for one in told["policies"]] == ["binpack"]
    assert told["policies"][0]["curve"][-1]["givenPercent"] == pytest.approx(
        told["policies"][0]["givenPercent"], abs=0.01
    )


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
    found = traces.replayed(OPENB, "gpushare60", [], 1.3, 0, lambda done, of: None)
    assert (found.nodes, found.gpus) == (1213, 6212)
