"""An API server in the test's own loop, the real kubectl, and a scripted kubelet behind it."""

import asyncio
import contextlib
import io
import json
import os
import shutil
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gpushare_playground.apiserver import ApiServer
from gpushare_playground.apiserver.server import ADMIN

KUBELET_TOKEN = "kubelet-secret"
COMMAND_S = 60.0
Object = dict[str, Any]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with ApiServer(tmp_path / "state", kubelet_token=KUBELET_TOKEN, users=("scheduler",)) as running:
        yield running


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def kubectl_path() -> str:
    candidate = Path(sys.executable).parent / "kubectl"
    found = str(candidate) if candidate.exists() else shutil.which("kubectl")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("kubectl is not installed; CI needs it")
        pytest.skip("kubectl is not installed")
    return found


@dataclass
class Kubectl:
    """The real kubectl; ``await kubectl("get", "pods")`` returns its exit code and output."""

    kubeconfig: Path
    home: Path
    environment: dict[str, str] = field(default_factory=dict)
    running: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def start(self, *arguments: str, stdin: bool = False) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            kubectl_path(),
            *arguments,
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={
                "KUBECONFIG": str(self.kubeconfig),
                "HOME": str(self.home),
                "GOGC": os.environ["GOGC"],
                "PATH": os.environ["PATH"],
                **self.environment,
            },
        )
        self.running.append(process)
        return process

    async def __call__(self, *arguments: str, stdin: str | None = None, code: int | None = 0) -> Result:
        process = await self.start(*arguments, stdin=stdin is not None)
        text = None if stdin is None else stdin.encode()
        try:
            async with asyncio.timeout(COMMAND_S):
                out, err = await process.communicate(text)
        except TimeoutError:
            pytest.fail(f"kubectl {arguments} did not end within {COMMAND_S} s")
        assert process.returncode is not None
        result = Result(process.returncode, out.decode(), err.decode())
        if code is not None:
            assert result.code == code, f"kubectl {arguments}: exit {result.code}\n{result.out}\n{result.err}"
        return result

    async def apply(self, *objects: Object, flags: tuple[str, ...] = (), code: int | None = 0) -> Result:
        return await self("apply", "-f", "-", *flags, stdin=stream(*objects), code=code)

    async def stop(self) -> None:
        for process in self.running:
            if process.returncode is None:
                # The whole group: an editor that it started would keep its pipes open.
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def stream(*objects: Object) -> str:
    """Objects as kubectl reads them from a file."""
    return "\n---\n".join(json.dumps(one) for one in objects)


@pytest.fixture
async def kubectl(server: ApiServer, tmp_path: Path) -> AsyncIterator[Kubectl]:
    tool = Kubectl(server.kubeconfig_path, tmp_path)
    yield tool
    await tool.stop()


@dataclass
class Api:
    """Plain HTTP requests to the API server, as the administrator unless a ``token`` is passed."""

    session: aiohttp.ClientSession
    base: str

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        code: int | None = None,
        headers: dict[str, str] | None = None,
        media: str = "application/json",
        **query: str,
    ) -> Any:
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        sent = {"Content-Type": media, **(headers or {})}
        async with self.session.request(
            method, self.base + path, data=data, headers=sent, params=query
        ) as answer:
            text = await answer.read()
            if code is not None:
                assert answer.status == code, f"{method} {path}: {answer.status} {text[:500]!r}"
            return json.loads(text)

    def watch(self, path: str, **query: str) -> Any:
        return self.session.get(self.base + path, params={"watch": "true", "timeoutSeconds": "20", **query})


@contextlib.asynccontextmanager
async def connect(server: ApiServer) -> AsyncIterator[Api]:
    context = ssl.create_default_context(cadata=server.ca_pem.decode())
    headers = {"Authorization": f"Bearer {server.tokens[ADMIN]}"}
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        yield Api(session, server.url)


@pytest.fixture
def api_of() -> Callable[[ApiServer], contextlib.AbstractAsyncContextManager[Api]]:
    return connect


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Api]:
    async with connect(server) as connected:
        yield connected


async def next_event(answer: aiohttp.ClientResponse) -> Object:
    async with asyncio.timeout(10):
        found: Object = json.loads(await answer.content.readline())
    return found


@pytest.fixture(name="next_event")
def next_event_fixture() -> Callable[[aiohttp.ClientResponse], Any]:
    return next_event


@dataclass
class ScriptedKubelet:
    """Answers logs and exec by script, and records the requests."""

    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    follow: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    async def logs(self, request: web.Request) -> web.StreamResponse:
        self._note(request)
        if request.query.get("previous") == "true":
            text = f'previous terminated container "{request.match_info["container"]}" in pod "p" not found'
            return web.Response(status=400, text=text)
        lines = [f"line {number}\n" for number in range(1, 6)]
        tail = request.query.get("tailLines")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        await response.write("".join(lines[-int(tail) :] if tail else lines).encode())
        if request.query.get("follow") == "true":
            await self.follow.wait()
            await response.write(b"followed\n")
        await response.write_eof()
        return response

    async def execute(self, request: web.Request) -> web.StreamResponse:
        self._note(request)
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        command = request.query.getall("command")
        if request.query.get("stdin") == "true":
            async for message in socket:
                channel, data = message.data[0], message.data[1:]
                if channel == 255:  # end of standard input
                    break
                if channel == 0 and data:
                    await socket.send_bytes(b"\x01" + data.upper())
                    if request.query.get("tty") == "true":
                        break
        else:
            await socket.send_bytes(b"\x01" + " ".join(command).encode() + b"\n")
            await socket.send_bytes(b"\x02to stderr\n")
        status: Object = {"metadata": {}, "status": "Success"}
        if command[0] == "false":
            status = {
                "metadata": {},
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "message": "command terminated with non-zero exit code",
                "details": {"causes": [{"reason": "ExitCode", "message": "3"}]},
            }
        await socket.send_bytes(b"\x03" + json.dumps(status).encode())
        await socket.close()
        return socket

    def _note(self, request: web.Request) -> None:
        assert request.headers["Authorization"] == f"Bearer {KUBELET_TOKEN}"
        self.requests.append((request.path, dict(request.query)))

    def node(self, name: str = "n1") -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"ack.node.gpu.schedule": "share"}},
            "status": {
                "addresses": [
                    {"type": "InternalIP", "address": "127.0.0.1"},
                    {"type": "Hostname", "address": name},
                ],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
                "capacity": {"cpu": "8", "memory": "32Gi", "pods": "110", "aliyun.com/gpu-mem": "15"},
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
                "nodeInfo": {"kubeletVersion": "v1.36.3", "osImage": "Playground", "architecture": "amd64"},
            },
        }


@pytest.fixture
async def kubelet() -> AsyncIterator[ScriptedKubelet]:
    scripted = ScriptedKubelet()
    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", scripted.logs)
    app.router.add_get("/exec/{namespace}/{pod}/{container}", scripted.execute)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    scripted.port = runner.addresses[0][1]
    yield scripted
    scripted.follow.set()
    await runner.cleanup()


def pod(name: str = "p", *containers: str, **more: Any) -> Object:
    limits = more.pop("limits", {"aliyun.com/gpu-mem": 3})
    labels = more.pop("labels", {"app": name})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "containers": [
                {"name": one, "image": "busybox:1", "resources": {"limits": dict(limits)}}
                for one in containers or ("c",)
            ],
            **more,
        },
    }


@pytest.fixture
def make_pod() -> Callable[..., Object]:
    return pod


@pytest.fixture
def bound_pod(api: Api, kubelet: ScriptedKubelet) -> Callable[..., Any]:
    """Create a node and a pod that runs on it."""

    async def make(name: str = "p", *containers: str) -> Object:
        await api("POST", "/api/v1/nodes", kubelet.node())
        await api("POST", "/api/v1/namespaces/default/pods", pod(name, *containers), code=201)
        binding = {"target": {"kind": "Node", "name": "n1"}}
        await api("POST", f"/api/v1/namespaces/default/pods/{name}/binding", binding, code=201)
        status = {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {
                    "name": one,
                    "ready": True,
                    "restartCount": 0,
                    "image": "busybox:1",
                    "imageID": "",
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                }
                for one in containers or ("c",)
            ],
        }
        found: Object = await api(
            "PATCH",
            f"/api/v1/namespaces/default/pods/{name}/status",
            {"status": status},
            media="application/merge-patch+json",
            code=200,
        )
        return found

    return make
