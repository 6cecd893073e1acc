"""The webhook as it runs: reviews over TLS, certificate rotation under open connections, bad input, shutdown."""

import asyncio
import io
import itertools
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpushare.admission import main as process
from gpushare.admission.__main__ import main
from gpushare.admission.review.admission_review import MAX_BODY_BYTES
from gpushare.admission.review.http_app import ReviewApp
from gpushare.api import names
from gpushare.httpserver import limits
from tests.admission_cases import PODS, pod
from tests.admission_users import User
from tests.admission_words import core_words
from tests.integration.admission.kept_api import CONFIGURATIONS, SECRET, KeptApi, kept_api
from tests.integration.admission.running_webhook import (
    AGENT,
    DEADLINE_S,
    Running,
    pause,
    reached,
    running_webhook,
)
from tests.integration.whole.prometheus import promtool
from tests.unit.admission.reviews import answered, review

CASES = {case.id: case for case in PODS}
WRONG = review("pods", pod(CASES["compute-7"], "x"))
RIGHT = review("pods", pod(CASES["memory"], "x"))


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with running_webhook(tmp_path) as made:
        await made.ready()
        yield made


async def test_reviews_over_tls(running: Running) -> None:
    status, body = await running.post("/validate", WRONG)
    assert status == 200
    response = answered(body)
    assert not response["allowed"]
    assert response["status"] == {"code": 422, "reason": "Invalid", "message": core_words(("c", "7"))}
    assert response["auditAnnotations"] == {"refused-by": "gpushare-requests"}
    status, body = await running.post("/mutate", RIGHT)
    patch = [{"op": "add", "path": "/spec/schedulerName", "value": names.SCHEDULER_NAME}]
    assert answered(body)["patch"] == patch
    status, body = await running.post("/units", review("pods", pod(CASES["mib"], "x")))
    assert [one["op"] for one in answered(body)["patch"]] == ["remove", "add", "add", "add"]
    for unasked in ("pods/status", "services", "pods/eviction"):
        for path in ("/units", "/mutate", "/validate"):
            status, body = await running.post(path, review(unasked, {"metadata": {}, "spec": {}}))
            assert answered(body) == {"uid": "u-1", "allowed": True}
    status, body = await running.post("/validate", review("pods", None, operation="DELETE"))
    assert answered(body)["allowed"]
    status, text = await running.probe("/metrics")
    assert 'gpushare_admission_reviews_total{code="200",path="/mutate"} 4.0' in text
    assert "gpushare_admission_ready 1.0" in text
    assert "gpushare_admission_certificates_issued_total 1.0" in text
    assert await asyncio.to_thread(promtool, "check", "metrics", stdin=text) == (0, "")


async def test_it_is_not_ready_before_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let, really = asyncio.Event(), process._once_certified

    async def late(*parts: Any) -> None:
        await let.wait()
        await really(*parts)

    monkeypatch.setattr(process, "_once_certified", late)
    async with running_webhook(tmp_path) as running:
        await running.says("not listening yet")
        let.set()
        await running.ready()
        status, _ = await running.post("/validate", RIGHT)
        assert status == 200


async def test_a_node_agents_node_is_read_from_its_pod_once(running: Running) -> None:
    path = "/api/v1/namespaces/n/pods/agent"
    running.api.objects[path] = {
        "metadata": {"name": "agent", "uid": "u9", "resourceVersion": "1"},
        "spec": {"nodeName": "n1"},
    }
    extra = "authentication.kubernetes.io/"
    user = User(AGENT, (), {f"{extra}pod-name": ("agent",), f"{extra}pod-uid": ("u9",)})
    node = {"metadata": {"name": "n1"}}
    described = {"metadata": {"name": "n1", "annotations": {names.ANN_DEVICES: "{}"}}}

    async def verdict(name: str, user: User = user) -> str:
        body = review("nodes", described, node, operation="UPDATE", name=name, user=user)
        response = answered((await running.post("/validate", body))[1])
        return "" if response["allowed"] else str(response["status"]["message"])

    assert await verdict("n1") == ""
    assert "not node n2" in await verdict("n2")
    assert running.api.requests.count(f"GET {path}") == 1
    for name, uid, account in (
        ("agent", "u8", AGENT),  # another pod of that name
        ("gone", "u7", AGENT),
        ("", "", AGENT),
    ):
        other = User(account, (), {f"{extra}pod-name": (name,), f"{extra}pod-uid": (uid,)})
        assert "does not identify its node" in await verdict("n1", other)


async def test_connections_survive_a_rotation_and_new_ones_get_the_new_certificate(
    running: Running,
) -> None:
    before = await running.certificate()
    connection = aiohttp.TCPConnector(limit=1, keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=connection) as http:
        tls = running.trusting()
        url = f"https://127.0.0.1:{running.reviews}/validate"

        async def kept() -> object:
            """Post over that one connection; returns the connection."""
            async with http.post(url, data=WRONG, ssl=tls) as answer:
                assert not answered(await answer.read())["allowed"]
                assert answer.connection is None or answer.connection.transport is not None
            [(transport, *_)] = [one for pool in connection._conns.values() for one in pool]
            return transport

        first = await kept()
        running.clock.ahead = timedelta(days=61)

        async def rotated() -> bool:
            assert (await running.post("/validate", WRONG, tls=running.trusting()))[0] == 200
            return await running.certificate() != before

        await reached("a rotation", rotated)
        assert await kept() is first
    await running.until("the old one is trusted no more", lambda: running.api.authorities() == 1)
    assert (await running.post("/validate", WRONG))[0] == 200
    with pytest.raises(aiohttp.ClientConnectorCertificateError):
        await running.post("/validate", WRONG, tls=tls)


async def test_it_starts_before_its_objects_exist(tmp_path: Path) -> None:
    async with kept_api() as api:
        objects, api.objects = api.objects, {}
        api.down = True
        async with running_webhook(tmp_path, api) as running:
            assert (await running.probe("/healthz"))[0] == 200

            await running.says("503 ServiceUnavailable: not now")
            with pytest.raises(aiohttp.ClientConnectorError):
                await running.post("/validate", WRONG, tls=ssl.create_default_context())
            api.down, api.forbidden = False, True
            await running.says("User cannot get resource")
            api.forbidden = False
            await running.says("secret n/gpushare-admission does not exist: install or upgrade the chart")
            api.objects[SECRET] = objects[SECRET]
            await running.says("no webhook configuration exists")
            api.objects |= objects
            await running.ready()
            assert (await running.post("/validate", WRONG))[0] == 200
            api.objects.pop(SECRET)
            requests = len(api.requests)
            await running.until("it has looked again", lambda: len(api.requests) > requests + 3)
            assert (await running.post("/validate", WRONG))[0] == 200, "it serves what it has"


async def test_a_broken_secret_is_replaced(running: Running) -> None:
    before = await running.certificate()
    running.api.objects[SECRET]["data"]["current.tls.key"] = "bm8="
    await running.shows_another_than(before)
    assert (await running.post("/validate", WRONG))[0] == 200
    running.api.objects[SECRET]["data"] |= {"current.ca.crt": "no base64 é", "mine": "c3RheXM="}
    between = await running.certificate()
    await running.shows_another_than(between)
    assert running.api.objects[SECRET]["data"]["mine"] == "c3RheXM="


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/validate", b"", 400, "not an AdmissionReview"),
        ("/validate", b"{", 400, "not an AdmissionReview"),
        ("/validate", b"\xff\xfe", 400, "not an AdmissionReview"),
        ("/validate", b"[" * 100_000, 400, "not an AdmissionReview"),
        ("/validate", b"null", 400, "not an AdmissionReview"),
        ("/mutate", b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', 400, "request"),
        ("/mutate", RIGHT.replace(b"io/v1", b"io/v1beta1"), 400, "admission.k8s.io/v1beta1"),
        ("/elsewhere", RIGHT, 404, "there are /accept, /units, /mutate, /validate and /mistakes"),
        ("/validate", b"x" * (MAX_BODY_BYTES + 1), 413, "is not read"),
    ],
    ids=["empty", "cut", "no-utf-8", "deep", "null", "no-request", "older", "elsewhere", "huge"],
)
async def test_bad_bodies(running: Running, path: str, body: bytes, status: int, message: str) -> None:
    found, answer = await running.post(path, io.BytesIO(body))
    assert found == status
    assert message in answer.decode()
    assert (await running.post("/validate", WRONG))[0] == 200


@pytest.mark.parametrize("rubbish", [[], "x", 7, {"spec": []}, {"spec": {"containers": [{"resources": 1}]}}])
async def test_objects_of_another_shape(running: Running, rubbish: object) -> None:
    """The API server checks shapes itself: before it validates with us, after it lets us mutate."""
    body = json.loads(RIGHT)
    body["request"]["object"] = rubbish
    answer = answered((await running.post("/validate", json.dumps(body).encode()))[1])
    assert "the pods object cannot be read" in answer["status"]["message"]
    answer = answered((await running.post("/mutate", json.dumps(body).encode()))[1])
    assert answer == {"uid": "u-1", "allowed": True}


async def test_silent_and_unfinished_connections_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReviewApp.__init__, "__kwdefaults__", {"within_s": 1.0})
    async with running_webhook(tmp_path) as running:
        await running.ready()
        # Not while the others send requests: on a busy machine they need as long.
        with monkeypatch.context() as hasty:
            hasty.setattr(limits, "HEADER_S", 0.1)
            for request in (b"", b"POST /validate HTTP/1.1\r\nHost: x\r\n"):
                tls = running.trusting()
                reader, writer = await asyncio.open_connection("127.0.0.1", running.reviews, ssl=tls)
                writer.write(request)
                async with asyncio.timeout(DEADLINE_S):
                    assert await reader.read() == b""
                writer.close()
        tls = running.trusting()
        reader, writer = await asyncio.open_connection("127.0.0.1", running.reviews, ssl=tls)
        writer.write(b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        async with asyncio.timeout(DEADLINE_S):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"took too long" in answer
        writer.close()
        plain, writer = await asyncio.open_connection("127.0.0.1", running.reviews)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(DEADLINE_S):
            await plain.read()
        writer.close()
        assert (await running.post("/validate", WRONG))[0] == 200


async def test_other_methods_and_pages(running: Running) -> None:
    async with running.http.get(
        f"https://127.0.0.1:{running.reviews}/validate", ssl=running.trusting()
    ) as answer:
        assert (answer.status, await answer.text()) == (405, "/validate takes POST, not GET\n")
    assert (await running.probe("/"))[0] == 404
    async with running.http.post(f"http://127.0.0.1:{running.probes}/metrics") as answer:
        assert answer.status == 405


async def test_it_keeps_answering_while_it_drains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drained, stopped = asyncio.Event(), process._drained

    async def drains(stop: asyncio.Event, drain_s: float) -> None:
        assert drain_s == 4.0
        await stopped(stop, 0.0)
        await drained.wait()

    monkeypatch.setattr(process, "_drained", drains)
    async with running_webhook(tmp_path, drain_s=4.0) as running:
        await running.ready()
        os.kill(os.getpid(), signal.SIGTERM)
        await running.says("shutting down")
        assert (await running.post("/validate", WRONG))[0] == 200
        drained.set()
        await asyncio.wait_for(running.serving, DEADLINE_S)


def _environment(api: KeptApi, folder: Path) -> dict[str, str]:
    path = folder / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": api.url}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "n"}}
    kubeconfig = {"clusters": [cluster], "contexts": [context], "users": [{"name": "u", "user": {}}]}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "c", **kubeconfig}))
    return {**os.environ, "KUBECONFIG": str(path)}


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


async def test_the_command(tmp_path: Path) -> None:
    """As in the container: its name, its flags, SIGTERM, exit code 0; and a folder that it cannot write."""
    async with kept_api() as api:
        argv = [sys.executable, "-m", "gpushare", "admission", "--port-file", str(tmp_path / "ports")]
        argv += ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--drain", "0"]
        argv += ["--probes-listen", "127.0.0.1:0"]
        environment = _environment(api, tmp_path)
        process = await asyncio.create_subprocess_exec(*argv, env=environment, stderr=subprocess.PIPE)
        try:
            async with asyncio.timeout(DEADLINE_S):
                while CONFIGURATIONS[1] not in [
                    line.partition(" ")[2] for line in api.requests if "PATCH" in line
                ]:
                    await pause()
            reviews, metrics, probes = map(int, (tmp_path / "ports").read_text().split())
            async with asyncio.timeout(DEADLINE_S):
                while not await _listens(reviews):
                    await pause()
            trusting = ssl.create_default_context(cadata=api.ca())
            url = f"https://127.0.0.1:{reviews}/validate"
            async with (
                aiohttp.ClientSession() as http,
                http.post(
                    url, data=WRONG, ssl=trusting, server_hostname="gpushare-admission.n.svc"
                ) as answer,
            ):
                assert not answered(await answer.read())["allowed"]
                answers = {}
                for port, path in itertools.product((metrics, probes), ("/metrics", "/healthz")):
                    async with http.get(f"http://127.0.0.1:{port}{path}") as answer:
                        answers[port, path] = answer.status
            assert answers == {
                (metrics, "/metrics"): 200,
                (metrics, "/healthz"): 404,
                (probes, "/metrics"): 404,
                (probes, "/healthz"): 200,
            }
            process.terminate()
            _, stderr = await asyncio.wait_for(process.communicate(), DEADLINE_S)
            assert process.returncode == 0, stderr
            assert b"Traceback" not in stderr
            assert b"PRIVATE" not in stderr
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        argv += ["--port-file", str(tmp_path / "missing" / "ports")]
        process = await asyncio.create_subprocess_exec(*argv, env=environment, stderr=subprocess.PIPE)
        _, stderr = await asyncio.wait_for(process.communicate(), DEADLINE_S)
        assert process.returncode == 1
        assert b"cannot write --port-file" in stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "nowhere"], "give HOST:PORT"),
        (["--metrics-listen", "127.0.0.1:99999"], "give HOST:PORT"),
        (["--valid-for", "0"], "--valid-for 0: give hours (5, 30m, 7d) from"),
        (["--unit", "2GiB"], "--unit 2GiB: give a memory unit"),
        (
            ["--reference-gpu-memory-mib", "-1"],
            "--reference-gpu-memory-mib -1: give a number of MiB from 0 to",
        ),
        (["--renew-before", "3000"], "give hours above 0 and below --valid-for"),
        (["--overlap", "80000", "--valid-for", "10"], "would end before the next one is served"),
        (["--node-restriction", "sometimes"], "--node-restriction sometimes: give one of auto, never"),
        (["--frobnicate"], "--help lists the options"),
        (["--kubeconfig", "/does/not/exist"], "/does/not/exist"),
    ],
)
async def test_bad_input_is_one_clear_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("KUBECONFIG", _environment(KeptApi("http://127.0.0.1:1"), tmp_path)["KUBECONFIG"])
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("gpushare admission: ")
    assert error.count("\n") == 1


def test_a_port_in_use_is_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", _environment(KeptApi("http://127.0.0.1:1"), tmp_path)["KUBECONFIG"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["--listen", f"127.0.0.1:{taken.getsockname()[1]}"]) == 1
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().err


def test_help_lists_the_permissions_of_its_account(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    output = capsys.readouterr().out
    for word in ("secrets", "get, patch", "9443", "9452", "mutatingwebhookconfigurations"):
        assert word in output
