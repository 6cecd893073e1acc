"""The command as a process, with a scripted kubectl."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpushare.api.objects import Node, Pod
from tests.integration.inspect.conftest import DEADLINE_S, PLUGIN, Run, ScriptedKubectl, Start, ended
from tests.unit.inspect.clusters import device, first_generation, foreign_node, node, placed, pod

GOLDEN = Path(__file__).parents[2] / "unit" / "inspect" / "golden"
NODES = [foreign_node("cn-shanghai.192.168.6.104", "192.168.6.104", 1, 15)]
PODS = [pod("job-x", "cn-shanghai.192.168.6.104", 3, first_generation(0, 3))]


def listed(items: list[Node] | list[Pod], after: str = "") -> bytes:
    return msgspec.json.encode({"kind": "List", "metadata": {"continue": after}, "items": items})


@pytest.fixture
def cluster(kubectl: ScriptedKubectl) -> ScriptedKubectl:
    kubectl.answer("/api/v1/nodes", listed(NODES))
    kubectl.answer("'/api/v1/pods?'*", listed(PODS))
    return kubectl


def test_it_is_a_subcommand_of_gpushare_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpushare", "inspect", "-h"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout.startswith("Show GPU allocations")
    assert done.stderr == ""


def failed(done: "subprocess.CompletedProcess[str]", status: int = 1) -> str:
    """The error message of a run that printed nothing else."""
    assert done.returncode == status
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.usefixtures("cluster")
def test_table_is_shown(inspect_cgpu: Run) -> None:
    done = inspect_cgpu()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (GOLDEN / "spec_example_2.txt").read_text()


def test_nodes_and_unfinished_pods_are_requested_with_the_flags_passed_on(
    cluster: ScriptedKubectl, inspect_cgpu: Run
) -> None:
    inspect_cgpu("--context", "prod", "--kubeconfig=/my config", "--request-timeout=5s", "-d")
    flags = "--context=prod --kubeconfig=/my config --request-timeout=5s"
    assert sorted(cluster.calls()) == [
        f"get --raw /api/v1/nodes {flags}",
        "get --raw /api/v1/pods?limit=5000&fieldSelector="
        f"status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed {flags}",
    ]


@pytest.mark.parametrize("name", ["missing", "Not a node's name", "../pods"])
def test_unknown_node_is_reported(inspect_cgpu: Run, name: str) -> None:
    assert failed(inspect_cgpu(name)) == (
        f'error: node "{name}" not found or has no aliyun.com/gpu-mem; '
        "`kubectl inspect cgpu` without a name lists the nodes that have it\n"
    )


def test_node_without_gpu_memory_is_reported(kubectl: ScriptedKubectl, inspect_cgpu: Run) -> None:
    plain = foreign_node("plain", "10.0.0.1", 0, 0)
    plain.metadata.labels = {}
    kubectl.answer("/api/v1/nodes/plain", msgspec.json.encode(plain))
    kubectl.answer("'/api/v1/pods?'*", listed([]))
    assert 'node "plain" not found or has no aliyun.com/gpu-mem' in failed(inspect_cgpu("plain"))


def test_requesting_a_malformed_node_is_an_error(kubectl: ScriptedKubectl, inspect_cgpu: Run) -> None:
    broken = node("broken", "10.0.0.1", [device(0)])
    broken.metadata.annotations = {"gpushare.dev/devices": "{"}
    kubectl.answer("/api/v1/nodes/broken", msgspec.json.encode(broken))
    kubectl.answer("'/api/v1/pods?'*", listed([]))
    complaint = failed(inspect_cgpu("broken"))
    assert complaint.startswith("error: node broken: annotation gpushare.dev/devices cannot be read")


def test_cluster_without_gpu_memory_gets_advice(kubectl: ScriptedKubectl, inspect_cgpu: Run) -> None:
    kubectl.answer("/api/v1/nodes", listed([]))
    kubectl.answer("'/api/v1/pods?'*", listed([]))
    done = inspect_cgpu()
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (
        "no node has aliyun.com/gpu-mem; label nodes with GPUs ack.node.gpu.schedule=share, cgpu, core_mem or mps\n"
    )


def test_further_pages_are_read(kubectl: ScriptedKubectl, inspect_cgpu: Run) -> None:
    kubectl.answer("/api/v1/nodes", listed(NODES))
    kubectl.answer("*'continue=a%2Bb%3D'", listed(PODS))
    kubectl.answer("'/api/v1/pods?'*", listed([], after="a+b="))
    assert inspect_cgpu().stdout == (GOLDEN / "spec_example_2.txt").read_text()


def test_a_list_whose_continuation_expired_is_read_again(kubectl: ScriptedKubectl, inspect_cgpu: Run) -> None:
    kubectl.answer("/api/v1/nodes", listed(NODES))
    kubectl.act(
        "*continue=*",
        f"mkdir '{kubectl.path}.once' 2>/dev/null && {{ echo 'Error from server (Expired): old' >&2; exit 1; }}; "
        f"exec cat '{kubectl.path}.page'",
    )
    Path(f"{kubectl.path}.page").write_bytes(listed(PODS))
    kubectl.answer("'/api/v1/pods?'*", listed([], after="next"))
    assert inspect_cgpu().stdout == (GOLDEN / "spec_example_2.txt").read_text()


def test_a_continuation_that_always_expires_ends_with_kubectls_message(
    kubectl: ScriptedKubectl, inspect_cgpu: Run
) -> None:
    kubectl.answer("/api/v1/nodes", listed(NODES))
    kubectl.fail("*continue=*", "Error from server (Expired): too old\n")
    kubectl.answer("'/api/v1/pods?'*", listed([], after="next"))
    assert failed(inspect_cgpu()) == (
        "error: kubectl could not read /api/v1/pods: Error from server (Expired): too old\n"
    )
    assert sum("continue=" in call for call in kubectl.calls()) == 3


@pytest.mark.parametrize(
    ("complaint", "expected"),
    [
        ('error: context "x" does not exist\n', 'context "x" does not exist'),
        ("The connection to the server a:1 was refused\n", "The connection to the server a:1 was refused"),
        ("", "it ended with exit status 3 and no message"),
    ],
)
def test_kubectls_own_message_is_passed_on(
    kubectl: ScriptedKubectl, inspect_cgpu: Run, complaint: str, expected: str
) -> None:
    kubectl.fail("*", complaint, status=3)
    assert failed(inspect_cgpu()) == f"error: kubectl could not read /api/v1/nodes: {expected}\n"


def test_missing_permission_is_explained(kubectl: ScriptedKubectl, inspect_cgpu: Run) -> None:
    kubectl.answer("/api/v1/nodes", listed(NODES))
    kubectl.fail(
        "'/api/v1/pods?'*", 'Error from server (Forbidden): pods is forbidden: User "u" cannot list\n'
    )
    complaint = failed(inspect_cgpu())
    assert 'pods is forbidden: User "u" cannot list; this command needs permission to list' in complaint


@pytest.mark.parametrize("answer", ["", "<html>", '{"items": 3}', '{"items": [{"metadata": {"name": 3}}]}'])
def test_a_response_of_something_other_than_an_api_server_is_reported(
    kubectl: ScriptedKubectl, inspect_cgpu: Run, answer: str
) -> None:
    kubectl.answer("*", answer)
    complaint = failed(inspect_cgpu())
    assert complaint.startswith("error: answer to /api/v1/nodes: is not a valid API server response (")


def test_missing_kubectl_is_reported(inspect_cgpu: Run, tmp_path: Path) -> None:
    complaint = failed(inspect_cgpu(env={"KUBECTL": str(tmp_path / "nowhere")}))
    assert complaint.endswith(
        "nowhere: not found; install kubectl, put it on PATH, or name it in the variable KUBECTL\n"
    )


def test_a_kubectl_that_is_not_executable_is_reported(inspect_cgpu: Run, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a program")
    assert "text: cannot be started (Permission denied)" in failed(
        inspect_cgpu(env={"KUBECTL": str(tmp_path / "text")})
    )


def test_kubectl_on_path_is_used_by_default(cluster: ScriptedKubectl, inspect_cgpu: Run) -> None:
    path = f"{cluster.path.parent}{os.pathsep}{os.environ['PATH']}"
    done = inspect_cgpu(env={"KUBECTL": "", "PATH": path})
    assert done.returncode == 0
    assert len(cluster.calls()) == 2


@pytest.mark.parametrize("arguments", [("-x",), ("-o", "name"), ("a", "b"), ("-o",)])
def test_a_wrong_command_line_exits_with_two_and_runs_no_kubectl(
    cluster: ScriptedKubectl, inspect_cgpu: Run, arguments: tuple[str, ...]
) -> None:
    assert failed(inspect_cgpu(*arguments), status=2).endswith("see `kubectl inspect cgpu --help`\n")
    assert cluster.calls() == []


def test_help_runs_no_kubectl(cluster: ScriptedKubectl, inspect_cgpu: Run) -> None:
    done = inspect_cgpu("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Show GPU allocations")
    assert cluster.calls() == []


def test_a_reader_that_closes_early_gets_no_traceback(
    kubectl: ScriptedKubectl, start_inspect_cgpu: Start
) -> None:
    fifo = f"{kubectl.path}.gate"
    os.mkfifo(fifo)
    kubectl.act("/api/v1/nodes", f"read line < '{fifo}'; exec cat '{kubectl.path}.nodes'")
    kubectl.answer("'/api/v1/pods?'*", listed(PODS))
    Path(f"{kubectl.path}.nodes").write_bytes(listed(NODES))
    process = start_inspect_cgpu()
    assert process.stdout is not None
    process.stdout.close()
    Path(fifo).write_text("go\n")
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(DEADLINE_S) == 141


def test_interrupt_exits_quietly_and_leaves_no_kubectl(
    kubectl: ScriptedKubectl, start_inspect_cgpu: Start
) -> None:
    fifo = f"{kubectl.path}.began"
    os.mkfifo(fifo)
    kubectl.act("/api/v1/nodes", f"echo $$ > '{fifo}'; exec sleep 600")
    kubectl.answer("'/api/v1/pods?'*", listed(PODS))
    process = start_inspect_cgpu()
    child = int(Path(fifo).read_text())
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the command and its kubectls alike
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert ended(child)


def test_a_full_disk_is_reported(cluster: ScriptedKubectl) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [PLUGIN],
            env={**os.environ, "KUBECTL": str(cluster.path)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "error: cannot write the output: No space left on device\n")


def test_closed_output_is_reported(cluster: ScriptedKubectl) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec '{PLUGIN}' >&-"],
        env={**os.environ, "KUBECTL": str(cluster.path)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        1,
        "error: standard output is closed; there is no output to write to\n",
    )


def test_watch_appends_changes(kubectl: ScriptedKubectl, start_inspect_cgpu: Start) -> None:
    gpu = device(0)
    nodes = [node("a", "10.0.0.1", [gpu])]
    Path(f"{kubectl.path}.pods").write_bytes(listed([]))
    kubectl.answer("/api/v1/nodes", listed(nodes))
    kubectl.act("'/api/v1/pods?'*", f"exec cat '{kubectl.path}.pods'")
    process = start_inspect_cgpu("-w", "--interval=0.1", "-o", "json")
    fresh = Path(f"{kubectl.path}.new")
    fresh.write_bytes(listed([placed("p", "a", gpu, 4)]))
    first = _document(process)
    fresh.replace(f"{kubectl.path}.pods")
    second = _document(process)
    assert [one["cluster"]["memory"][0]["allocatedUnits"] for one in (first, second)] == [0, 4]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (130, b"", b"")


def _document(process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """The next JSON document that the process writes: it ends with a line of its own."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line == b"}\n":
            break
    read: dict[str, Any] = json.loads(b"".join(lines))
    return read
