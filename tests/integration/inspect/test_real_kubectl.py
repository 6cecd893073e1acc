"""``kubectl inspect cgpu`` as it is typed: the real kubectl finds the command, and the command
calls kubectl again.
"""

import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from tests.integration.inspect.conftest import BIN, DEADLINE_S
from tests.unit.inspect.clusters import first_generation, foreign_node, pod

GOLDEN = Path(__file__).parents[2] / "unit" / "inspect" / "golden"
NAME = "cn-hangzhou.192.168.2.167"
NODE = foreign_node(NAME, "192.168.2.167", 1, 15)
PODS = [pod(f"app-3g-v1-{number}", NAME, 4, first_generation(0, 4)) for number in range(2)]


class ApiServer(ThreadingHTTPServer):
    """Two lists and a node, over HTTP, for requests with the token. ``requests`` holds their paths."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, ApiServer)
        self.server.requests.append(self.path)
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if url.path == "/api/v1/nodes":
            self._send(200, {"kind": "NodeList", "items": [NODE]})
        elif url.path == f"/api/v1/nodes/{NAME}":
            self._send(200, NODE)
        elif url.path == "/api/v1/pods" and "continue" in query:
            self._send(200, {"kind": "PodList", "metadata": {}, "items": PODS[1:]})
        elif url.path == "/api/v1/pods":
            self._send(200, {"kind": "PodList", "metadata": {"continue": "a/b+c="}, "items": PODS[:1]})
        else:
            message = f'nodes "{url.path.rpartition("/")[2]}" not found'
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound"}
            self._send(404, {**status, "code": 404, "message": message})

    def _send(self, status: int, body: object) -> None:
        encoded = msgspec.json.encode(body)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name of the base class
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as started:
        thread = threading.Thread(target=started.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield started
        started.shutdown()
        thread.join(DEADLINE_S)


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    """Context ``here`` leads to the server; context ``nowhere``, the current one, to no server."""
    clusters = {"here": server.url, "nowhere": "http://127.0.0.1:1"}
    file = tmp_path / "config"
    file.write_bytes(
        msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "nowhere",
                "clusters": [{"name": name, "cluster": {"server": url}} for name, url in clusters.items()],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": name, "context": {"cluster": name, "user": "u"}} for name in clusters],
            }
        )
    )
    return file


def typed(line: str, env: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    environment = {
        **{name: value for name, value in os.environ.items() if name != "KUBECTL"},
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        **env,
    }
    return subprocess.run(
        line.split(), env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


@pytest.mark.parametrize("program", ["kubectl inspect cgpu", "kubectl inspect-cgpu"])
def test_kubectl_finds_the_command_and_passes_its_flags(kubeconfig: Path, program: str) -> None:
    done = typed(f"{program} -d --context here --kubeconfig {kubeconfig}", {})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (GOLDEN / "details_two_pods.txt").read_text()


def test_variable_kubeconfig_is_honoured(server: ApiServer, kubeconfig: Path) -> None:
    done = typed(f"kubectl inspect cgpu --context=here {NAME}", {"KUBECONFIG": str(kubeconfig)})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\n8/15 (53%)\n")
    selector = "status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"
    assert sorted(server.requests) == [
        f"/api/v1/nodes/{NAME}?timeout=30s",
        f"/api/v1/pods?continue=a%2Fb%2Bc%3D&fieldSelector={selector}%2Cspec.nodeName%3D{NAME}&limit=5000&timeout=30s",
        "/api/v1/pods?fieldSelector=spec.nodeName%3D%2Cstatus.phase%3DPending"
        "&labelSelector=pod-group.scheduling.sigs.k8s.io%2Fname&limit=1&timeout=30s",
        f"/api/v1/pods?fieldSelector={selector}%2Cspec.nodeName%3D{NAME}&limit=5000&timeout=30s",
    ]


def test_an_unreachable_server_is_reported_with_kubectls_message(kubeconfig: Path) -> None:
    done = typed("kubectl inspect cgpu", {"KUBECONFIG": str(kubeconfig)})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: kubectl could not read /api/v1/nodes: ")
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
