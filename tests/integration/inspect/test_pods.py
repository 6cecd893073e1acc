"""Usage next to allocation, through a kubectl proxy; and the same, live, on a terminal."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.api import names
from gpushare.api.allocation.allocation import share_of
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import ResourceRequirements
from gpushare.api.quantity import MemoryUnit
from tests.integration.inspect.conftest import DEADLINE_S, PLUGIN, Run, ScriptedKubectl
from tests.integration.inspect.test_command import listed
from tests.unit.inspect.clusters import device, node, placed, pod, with_allocation

#: Answers GETs on a socket with the files of its folder, named after the paths.
_PROXY = """
import http.server, pathlib, socketserver, sys, threading, urllib.parse
folder, path = pathlib.Path(sys.argv[1]), sys.argv[2].partition("=")[2]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        file = folder / urllib.parse.quote(self.path, safe="")
        body = file.read_bytes() if file.exists() else b"no"
        self.send_response(200 if file.exists() else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
    def address_string(self): return ""
class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
server = Server(path, Handler, bind_and_activate=False)
server.server_bind()
slow = threading.Timer(float(sys.argv[3]), server.server_activate)
slow.start()
slow.join()
server.serve_forever()
"""
AGENTS = "/api/v1/pods?labelSelector=app.kubernetes.io/name%3Dgpushare-device-plugin&limit=500"
METRICS = """\
# TYPE gpushare_nodeagent_last_sample_timestamp_seconds gauge
gpushare_nodeagent_last_sample_timestamp_seconds 1763982000
gpushare_container_memory_used_bytes{{namespace="default",pod="train",container="a",UUID="GPU-00000000"}} 1048576000
gpushare_container_memory_used_bytes{{namespace="default",pod="train",container="b",UUID="GPU-00000000"}} {more}
gpushare_container_memory_used_bytes{{namespace="default",pod="serve",container="a",UUID="GPU-00000001"}} 0
gpushare_container_compute_used_ratio{{namespace="default",pod="train",container="a",UUID="GPU-00000000"}} 0.12
gpushare_container_compute_used_ratio{{namespace="default",pod="train",container="b",UUID="GPU-00000000"}} 0
gpushare_container_compute_used_ratio{{namespace="default",pod="serve",container="a",UUID="GPU-00000001"}} 0.74
"""


class Agents:
    """The proxy's answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def respond(self, path: str, body: str) -> None:
        from urllib.parse import quote

        (self.folder / quote(path, safe="")).write_text(body)

    def run_on(self, *nodes: str) -> None:
        items = [
            {
                "metadata": {"name": f"agent-{name}", "namespace": "kube-system"},
                "spec": {
                    "nodeName": name,
                    "containers": [{"ports": [{"name": "health", "containerPort": 9452}]}],
                },
                "status": {"phase": "Running"},
            }
            for name in nodes
        ]
        self.respond(AGENTS, json.dumps({"items": items}))

    def set_usage(self, name: str, more: int) -> None:
        self.set_metrics(name, METRICS.format(more=more << 20))

    def set_metrics(self, name: str, text: str) -> None:
        self.respond(f"/api/v1/namespaces/kube-system/pods/http:agent-{name}:9452/proxy/metrics", text)


@pytest.fixture
def agents(kubectl: ScriptedKubectl, tmp_path: Path) -> Agents:
    return two_nodes(kubectl, tmp_path)


def two_nodes(kubectl: ScriptedKubectl, folder: Path, *, listens_after_s: float = 0.0) -> Agents:
    """Two nodes with pods; on one of them an agent runs, which reports their usage. The guide's
    sample, too.

    ``listens_after_s``: how long the proxy's socket file exists before anything listens on it.
    """
    gpus = [device(0), device(1)]
    kubectl.answer(
        "/api/v1/nodes", listed([node("n1", "10.0.0.1", gpus), node("n2", "10.0.0.2", [device(2)])])
    )
    pods = [
        placed("train", "n1", gpus[0], 6),
        placed("serve", "n1", gpus[1], 3, namespace="default", core_percent=60),
        placed("far", "n2", device(2), 1, namespace="other"),
        pod("waits", "", 3),
    ]
    kubectl.answer("'/api/v1/pods?'*", listed(pods))
    made = Agents(folder / "agents")
    program = folder / "proxy.py"
    program.write_text(_PROXY)
    kubectl.act(
        "--append-server-path",
        f"exec '{sys.executable}' '{program}' '{made.folder}' \"$2\" {listens_after_s}",
    )
    made.run_on("n1")
    made.set_usage("n1", 500)
    return made


def test_usage_is_shown_next_to_the_allocation(agents: Agents, inspect_cgpu: Run) -> None:
    done = inspect_cgpu("--pods")
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["NAMESPACE", "NAME", "NODE", "GPU", "ALLOC(MiB)", "USED(MiB)", "ALLOC(%)", "USED(%)"],
        ["default", "train", "n1", "0", "6144", "1500", "-", "12"],
        ["default", "serve", "n1", "1", "3072", "0", "60", "74"],
        ["other", "far", "n2", "2", "1024", "-", "-", "-"],
    ]
    assert "GPU usage of pods is unknown on n2: it has no running node agent" in done.stderr
    assert "\x1b" not in done.stdout


def test_requests_wait_until_the_proxy_listens(
    kubectl: ScriptedKubectl, inspect_cgpu: Run, tmp_path: Path
) -> None:
    two_nodes(kubectl, tmp_path, listens_after_s=0.3)
    assert "1500" in inspect_cgpu("--pods").stdout


@pytest.mark.parametrize(
    ("sampled", "unmanaged"),
    [("last_sample", "unmanaged"), pytest.param("looked", "foreign", id="an agent of 0.1.0")],
)
def test_usage_is_shown_for_whole_gpus_and_for_shares_from_before_a_switch(
    agents: Agents, kubectl: ScriptedKubectl, inspect_cgpu: Run, sampled: str, unmanaged: str
) -> None:
    """On nodes with whole GPUs the agent samples no shares, but still knows what uses each GPU."""
    gpus = [device(0), device(1)]
    whole = node("n1", "10.0.0.1", gpus, mode=NodeMode.TOPOLOGY, advertised=False)
    holder = pod("holder", "n1", 0)
    holder.spec.containers[0].resources = ResourceRequirements(limits={names.GPU_WHOLE: "1"})
    folder = kubectl.path.parent
    (folder / "answer-0").write_bytes(listed([whole]))
    metrics = [
        f"gpushare_nodeagent_{sampled}_timestamp_seconds 0",
        f'gpushare_gpu_{unmanaged}_processes{{node="n1",gpu="0",UUID="GPU-00000000"}} 0',
    ]
    for name, index, mib, ratio in (("holder", 0, 9000, 0.7), ("before", 1, 0, 0)):
        its = (
            f'namespace="default",pod="{name}",container="main",node="n1",gpu="{index}",UUID="GPU-{index:08}"'
        )
        metrics += [
            f"gpushare_container_memory_used_bytes{{{its}}} {mib << 20}",
            f"gpushare_container_compute_used_ratio{{{its}}} {ratio}",
        ]
    agents.set_metrics("n1", "\n".join(metrics) + "\n")
    holder = with_allocation(holder, [share_of(gpus[0], 15, 15, 0)], MemoryUnit.GIB)
    (folder / "answer-1").write_bytes(listed([holder, placed("before", "n1", gpus[1], 3)]))

    done = inspect_cgpu("--pods")

    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        ["default", "holder", "n1", "0", "15360", "9000", "-", "70"],
        ["default", "before", "n1", "1", "3072", "0", "-", "0"],
    ]
    assert done.stderr == ""
    (folder / "answer-1").write_bytes(listed([holder]))
    assert "holder" in inspect_cgpu("--top").stdout
    assert "n1" not in inspect_cgpu().stdout, "whole GPUs are no GPU memory"


def test_without_permission_to_list_agents_allocations_are_still_shown(
    agents: Agents, inspect_cgpu: Run
) -> None:
    for file in agents.folder.iterdir():
        file.unlink()
    done = inspect_cgpu("--pods")
    assert done.returncode == 0
    assert "6144" in done.stdout
    assert "the node agents' pods cannot be listed (no permission)" in done.stderr


def test_agents_outside_pods_are_queried_through_their_nodes(
    agents: Agents, kubectl: ScriptedKubectl, inspect_cgpu: Run
) -> None:
    nodes = [node("n1", "10.0.0.1", [device(0), device(1)]), node("n2", "10.0.0.2", [device(2)])]
    for one, port in zip(nodes, ("4711", "no port"), strict=True):
        one.metadata.labels = {**(one.metadata.labels or {}), names.LABEL_AGENT_PORT: port}
    nodes_answer = kubectl.path.parent / "answer-0"
    nodes_answer.write_bytes(listed(nodes))
    agents.run_on()
    agents.respond("/api/v1/nodes/http:n1:4711/proxy/metrics", METRICS.format(more=500 << 20))
    done = inspect_cgpu("--pods")
    assert ["default", "train", "n1", "0", "6144", "1500", "-", "12"] in [
        line.split() for line in done.stdout.splitlines()
    ]
    assert "GPU usage of pods is unknown on n2: it has no running node agent" in done.stderr

    for file in agents.folder.iterdir():
        file.unlink()
    nodes[1].metadata.labels[names.LABEL_AGENT_PORT] = "4712"  # type: ignore[index]
    nodes_answer.write_bytes(listed(nodes))
    done = inspect_cgpu("--pods")
    assert (
        "n1, n2: its node agent's metrics cannot be read (needs permission to get nodes/proxy)" in done.stderr
    )


def test_a_proxy_that_does_not_start_hides_only_the_usage(
    agents: Agents, kubectl: ScriptedKubectl, inspect_cgpu: Run
) -> None:
    (agents.folder.parent / "proxy.py").write_text("import sys; sys.exit('no such context')")
    done = inspect_cgpu("--pods")
    assert done.returncode == 0
    assert "no such context" in done.stderr
    assert "6144" in done.stdout


def test_the_proxy_leaves_nothing_behind(agents: Agents, inspect_cgpu: Run, tmp_path: Path) -> None:
    short = tmp_path / "t"
    short.mkdir()
    inspect_cgpu("--pods", env={"TMPDIR": str(short)})
    assert list(short.iterdir()) == []
    listed_now = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(agents.folder) not in listed_now


class Screen:
    """A terminal that runs the command."""

    def __init__(self, kubectl: ScriptedKubectl, **more: str) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            environment = {**os.environ, "KUBECTL": str(kubectl.path), "TERM": "xterm", "LINES": "50", **more}
            os.execve(PLUGIN, [PLUGIN, "--top", "--interval=0.3"], environment)
        self.seen = ""

    def until(self, pattern: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not re.search(pattern, self.seen, re.DOTALL):
            assert time.monotonic() < deadline_s, (pattern, self.seen[-2000:])
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.seen += os.read(self.terminal, 1 << 16).decode(errors="replace")

    def press(self, key: str) -> None:
        self.seen = ""
        os.write(self.terminal, key.encode())

    def resize(self, lines: int, columns: int) -> None:
        self.seen = ""
        termios.tcsetwinsize(self.terminal, (lines, columns))

    def exit_status(self) -> int:
        """The command's exit status; all its output is in ``seen``."""
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            assert time.monotonic() < deadline_s, self.seen[-2000:]
            if select.select([self.terminal], [], [], 0.05)[0]:
                try:
                    self.seen += os.read(self.terminal, 1 << 16).decode(errors="replace")
                except OSError:
                    # The terminal is closed.
                    return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def screen(agents: Agents, kubectl: ScriptedKubectl) -> Iterator[Screen]:
    made = Screen(kubectl)
    termios.tcsetwinsize(made.terminal, (24, 100))
    yield made
    os.close(made.terminal)


def test_top_is_live_sorted_by_the_chosen_column_and_fits_the_screen(screen: Screen, agents: Agents) -> None:
    screen.until("by memory.*train.*serve.*far")
    agents.set_usage("n1", 4000)
    screen.until("5000")
    screen.press("c")
    screen.until("by compute.*serve.*train.*far")
    assert "\x1b[31m" in screen.seen  # serve uses more compute than its share
    screen.resize(4, 40)
    # What was drawn before may still arrive; three of the four lines end with a newline.
    screen.until(r"\x1b\[H[^\n]*by compute(?:[^\n]*\n){1,3}[^\n]*ALLOC  USED  ALLOC%  USED%[^\n]*\x1b\[J")
    screen.press("q")
    assert screen.exit_status() == 0
    assert "\x1b[?1049l" in screen.seen
