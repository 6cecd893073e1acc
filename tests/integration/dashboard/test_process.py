"""The dashboard as a process: bad input, shutdown, and two replicas with two schedulers."""

import asyncio
import json
import socket
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gpushare.__main__ import main
from gpushare.dashboard.data import http_get
from gpushare.dashboard.data.http_get import HttpClient, NotFound, RequestFailed
from tests.integration.dashboard.bed import TOKEN, Bed

CONFIG = """\
apiVersion: v1
kind: Config
current-context: a
clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: a, user: {}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
"""
#: The command, polling more often for another leader and for other pending pods.
PROMPT = """\
import sys
from gpushare.__main__ import main
from gpushare.dashboard.data import pending as waiting
waiting.FRESH_S = waiting._LEADER_FRESH_S = 0.1
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--token-file: name a file"),
        (["--token-file", "absent"], "No such file"),
        (["--token-file", "short"], "openssl rand -hex 32"),
        (["--token-file", "token", "--lease", "x"], "NAMESPACE/NAME"),
        (["--token-file", "token", "--scheduler", "127.0.0.1"], "write a URL"),
        (["--token-file", "token", "--listen", "9453"], "HOST:PORT"),
        (["--token-file", "token", "--agents-file", "absent"], "absent"),
        (["--token-file", "token", "--unit", "3GiB"], "1GiB or 128MiB"),
        (["--token-file", "token", "--nonsense"], "--nonsense"),
    ],
)
def test_bad_input_is_refused_with_a_correction(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("token").write_text(TOKEN)
    Path("short").write_text("short")
    Path("config").write_text(CONFIG)
    listen = [] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]
    assert main(["dashboard", "--kubeconfig", "config", *listen, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_an_address_in_use_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "config").write_text(CONFIG)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["--token-file", str(tmp_path / "token"), "--listen", address]
        assert main(["dashboard", "--kubeconfig", str(tmp_path / "config"), *arguments]) == 1
    assert address in capsys.readouterr().err


async def test_pending_pods_are_read_from_the_leading_scheduler(tmp_path: Path) -> None:
    """A first leader, then an unreachable one, then none."""
    requested: list[str] = []
    holder = "leader_0000-uuid"

    async def lease(request: web.Request) -> web.Response:
        return web.json_response({"spec": {"holderIdentity": holder}})

    async def ours(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            stream = web.StreamResponse()
            await stream.prepare(request)
            await asyncio.Event().wait()
        assert request.query["labelSelector"] == "app.kubernetes.io/part-of=gpushare"
        pod = {
            "metadata": {
                "name": "leader",
                "namespace": "kube-system",
                "uid": "u",
                "resourceVersion": "1",
                "labels": {"app.kubernetes.io/name": "ack-co-scheduler"},
            },
            "spec": {
                "nodeName": "n",
                "containers": [{"ports": [{"name": "health", "containerPort": parts_port}]}],
            },
            "status": {"phase": "Running", "podIP": "127.0.0.1"},
        }
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [pod]})

    async def empty(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            stream = web.StreamResponse()
            await stream.prepare(request)
            await asyncio.Event().wait()
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    async def token(request: web.Request) -> web.Response:
        assert (await request.json())["spec"]["audiences"] == ["gpushare.dev"]
        return web.json_response({"status": {"token": "to-read-with"}}, status=201)

    async def decisions(request: web.Request) -> web.Response:
        assert request.headers["X-Gpushare-Token"] == "to-read-with"
        requested.append("the leader")
        return web.json_response({"waiting": []})

    app = web.Application()
    app.router.add_get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/ack-co-scheduler", lease)
    app.router.add_get("/api/v1/namespaces/kube-system/pods", ours)
    app.router.add_post("/api/v1/namespaces/kube-system/serviceaccounts/gpushare-reader/token", token)
    app.router.add_get("/api/v1/{kind}", empty)
    app.router.add_get("/gpushare/decisions", decisions)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    parts_port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    server = f"http://127.0.0.1:{parts_port}"
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "config").write_text(CONFIG.replace("http://127.0.0.1:1", server))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROMPT, "dashboard", "--kubeconfig", str(tmp_path / "config")),
        *("--listen", "127.0.0.1:0", "--port-file", str(tmp_path / "port")),
        *("--token-file", str(tmp_path / "token"), "--lease", "kube-system/ack-co-scheduler"),
        *("--component-namespace", "kube-system"),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with (
            asyncio.timeout(110),
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http,
        ):
            while not (tmp_path / "port").exists():
                await asyncio.sleep(0)
            url = f"http://127.0.0.1:{(tmp_path / 'port').read_text().strip()}/api/waiting"

            async def line(*, answered_by: str = "", problem: str = "") -> dict[str, object]:
                while True:
                    async with http.get(url) as answer:
                        found: dict[str, object] = json.loads(await answer.text())
                    if found["answered_by"] == answered_by and problem in str(found["problem"]):
                        return found

            await line(answered_by="kube-system/leader")
            assert requested[-1] == "the leader"
            holder = "gone_0000-uuid"
            await line(problem="kube-system/gone leads, but its address is unknown")
            holder = ""
            await line(problem="no scheduler leads")
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0
        await runner.cleanup()


async def test_metrics_and_probes_can_have_their_own_addresses(tmp_path: Path) -> None:
    for name, text in (("token", TOKEN), ("config", CONFIG)):
        (tmp_path / name).write_text(text)
    listening = (f"--{one}listen=127.0.0.1:0" for one in ("", "metrics-", "probes-"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpushare", "dashboard", "--kubeconfig", str(tmp_path / "config")),
        *(*listening, "--port-file", str(tmp_path / "port"), "--token-file", str(tmp_path / "token")),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(110), aiohttp.ClientSession() as http:
            while not (tmp_path / "port").exists():
                await asyncio.sleep(0)
            statuses = {}
            for port in (tmp_path / "port").read_text().split():
                for path in ("/", "/metrics", "/healthz", "/readyz"):
                    async with http.get(f"http://127.0.0.1:{port}{path}") as answer:
                        statuses.setdefault(path, []).append(answer.status)
        # There is no API server, so it is not ready.
        assert statuses == {
            "/": [200, 404, 404],
            "/metrics": [404, 200, 404],
            "/healthz": [404, 404, 200],
            "/readyz": [404, 404, 503],
        }
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def test_oversized_and_missing_responses_are_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="x" * 1000, status=int(request.match_info["status"]))

    async def never(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    app = web.Application()
    app.router.add_get("/{status:[0-9]+}", answer)
    app.router.add_get("/never", never)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    async with HttpClient() as client:
        assert await client.get(f"{url}/200") == b"x" * 1000
        with pytest.raises(NotFound):
            await client.get(f"{url}/404")
        with pytest.raises(RequestFailed, match="status 500 xxx"):
            await client.get(f"{url}/500")
        with pytest.raises(RequestFailed, match="refused"):
            await client.get("http://127.0.0.1:1/")
        with pytest.raises(RequestFailed):
            await client.get("no url")
        monkeypatch.setattr(http_get, "_MAX_BYTES", 100)
        with pytest.raises(RequestFailed, match="larger than 100"):
            await client.get(f"{url}/200")
    monkeypatch.setattr(http_get, "_TIMEOUT_S", 0.2)
    async with HttpClient() as hasty:
        with pytest.raises(RequestFailed, match="no answer within"):
            await hasty.get(f"{url}/never")
    await runner.cleanup()


@pytest.mark.asyncio(loop_scope="session")
async def test_open_pages_are_disconnected_when_the_dashboard_stops(made: Bed) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.get(f"{made.url}api/events") as stream,
    ):
        assert (await stream.content.readline()).startswith(b": listening")
        await made.end()
        async with asyncio.timeout(30):
            await stream.content.read()
    await made.serve()
