"""The session over real HTTP: what it sends, what it repeats, how it reports errors."""

import asyncio
import socket
from pathlib import Path

import pytest
from aiohttp import web

from gpushare.kube.auth.access import Access, ExecPlugin
from gpushare.kube.client.errors import ApiError, CredentialError, InvalidName, Unreachable
from gpushare.kube.client.session import Session, segment
from tests.integration.kube.served import AnswerFn, begins, hangs_up, refuses, responds, serving
from tests.unit.kube.scripted import ScriptedClock
from tests.unit.kube.test_exec_plugin import program

PODS = "/api/v1/pods"


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


async def test_a_request_has_the_needed_headers_and_no_others() -> None:
    impersonate = (("Impersonate-Group", "a"), ("Impersonate-Group", "b"))
    async with serving() as served:
        access = Access(served.url + "/prefix/", token="t", impersonate=impersonate)
        async with Session(access) as session:
            params = {"labelSelector": "a in (b,c)"}
            answer = await session.request(
                "POST", f"{PODS}/a%20b", params=params, body=b"{}", content_type="x/y"
            )
            await session.request("GET", PODS)
    assert answer == b"{}"
    first, second = served.requests
    assert (first.method, first.body) == ("POST", b"{}")
    assert first.path == "/prefix/api/v1/pods/a%20b?labelSelector=a+in+%28b%2Cc%29"
    assert first.headers["Content-Type"] == "x/y"
    assert first.headers["Authorization"] == "Bearer t"
    assert first.headers.getall("Impersonate-Group") == ["a", "b"]
    assert set(second.headers) == {"Host", "Accept", "User-Agent", "Authorization", "Impersonate-Group"}
    assert first.peer == second.peer, "the connection is kept"


async def test_a_status_response_becomes_an_error_with_all_its_fields() -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        served.answer(refuses(409, "AlreadyExists", "pod a is already assigned"))
        with pytest.raises(ApiError) as caught:
            await session.request("POST", PODS, body=b"{}")
    error = caught.value
    assert (error.status, error.reason, error.message, error.path) == (
        409,
        "AlreadyExists",
        "pod a is already assigned",
        PODS,
    )
    assert (error.conflict, error.not_found, error.gone, error.passing) == (True, False, False, False)
    assert str(error) == "/api/v1/pods: 409 AlreadyExists: pod a is already assigned"


@pytest.mark.parametrize(
    ("body", "expected"),
    [(b"<h1>Bad\n gateway</h1>\xff", "502: <h1>Bad gateway</h1>"), (b"", "502: no explanation")],
)
async def test_a_response_of_a_proxy_is_quoted(body: bytes, expected: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=502)

    async with serving() as served, Session(Access(served.url)) as session:
        served.answer(answer)
        with pytest.raises(ApiError, match=expected) as caught:
            await session.request("GET", PODS)
    assert caught.value.passing


async def test_a_redirect_is_not_followed_with_our_credential() -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        served.answer(responds({}, 307, Location="http://elsewhere/"))
        with pytest.raises(ApiError) as caught:
            await session.request("GET", PODS)
    assert caught.value.status == 307


@pytest.mark.parametrize("status", [429, 503])
async def test_a_read_is_retried_when_the_server_sends_retry_after(status: int) -> None:
    clock = ScriptedClock()
    async with serving() as served, Session(Access(served.url), clock=clock) as session:
        served.answer(refuses(status, Retry_After="2"), responds({"a": 1}))
        assert await session.request("GET", PODS) == b'{"a": 1}'
    assert len(clock.slept) == 1
    assert 2.0 <= clock.slept[0] <= 3.0


async def test_the_retry_delay_may_be_in_the_status() -> None:
    clock = ScriptedClock()
    status = {"kind": "Status", "code": 429, "details": {"retryAfterSeconds": 3}}
    async with serving() as served, Session(Access(served.url), clock=clock) as session:
        served.answer(responds(status, 429), responds({}))
        await session.request("PATCH", PODS, body=b"{}", idempotent=True)
    assert 3.0 <= clock.slept[0] <= 4.0


@pytest.mark.parametrize(
    ("method", "retry_after", "status"),
    [("POST", "1", 429), ("PATCH", "1", 503), ("GET", "60", 429), ("GET", "soon", 429), ("GET", "1", 500)],
)
async def test_nothing_else_is_retried(method: str, retry_after: str, status: int) -> None:
    async with serving() as served, Session(Access(served.url), clock=ScriptedClock()) as session:
        served.answer(refuses(status, Retry_After=retry_after))
        with pytest.raises(ApiError) as caught:
            await session.request(method, PODS)
    assert len(served.requests) == 1
    assert caught.value.retry_after_s == (float(retry_after) if retry_after.isdigit() else None)


async def test_a_request_to_a_closed_port_is_reported_as_not_sent() -> None:
    server = f"http://127.0.0.1:{closed_port()}"
    async with Session(Access(server, source="kubeconfig x, context y")) as session:
        with pytest.raises(Unreachable) as caught:
            await session.request("POST", PODS, body=b"{}")
    assert caught.value.sent is False
    assert f"API server {server}, from kubeconfig x, context y" in str(caught.value)
    assert "check that it runs" in str(caught.value)


async def test_a_host_name_that_does_not_resolve_is_reported() -> None:
    async with Session(Access("http://no.such.name.invalid")) as session:
        with pytest.raises(Unreachable, match="its name cannot be resolved") as caught:
            await session.request("GET", PODS)
    assert caught.value.sent is False


async def test_a_connection_that_is_never_accepted_is_reported_as_not_sent() -> None:
    # The only place in the queue is taken, so the kernel answers no further connection.
    with socket.socket() as server, socket.socket() as first, socket.socket() as second:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for other in (first, second):
            other.setblocking(False)
            other.connect_ex(server.getsockname())
        async with Session(Access(f"http://127.0.0.1:{server.getsockname()[1]}")) as session:
            with pytest.raises(Unreachable, match="no connection in time") as caught:
                await session.request("POST", PODS, body=b"{}", timeout_s=0.2)
    assert caught.value.sent is False


async def test_a_missing_response_leaves_the_outcome_unknown() -> None:
    release = asyncio.Event()
    async with serving() as served, Session(Access(served.url)) as session:
        await session.request("GET", PODS)  # or on a busy machine there may be no connection in time
        served.answer(begins_late(release))
        with pytest.raises(Unreachable, match="no answer in time") as caught:
            await session.request("POST", PODS, body=b"{}", timeout_s=0.2)
        release.set()
    assert caught.value.sent is None


def begins_late(release: asyncio.Event) -> AnswerFn:
    async def answer(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return await hangs_up(request)

    return answer


async def test_a_connection_lost_before_the_response_leaves_the_outcome_unknown_and_is_not_retried() -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        await session.request("GET", PODS)
        served.answer(hangs_up)
        with pytest.raises(Unreachable, match="the connection was lost") as caught:
            await session.request("POST", PODS, body=b"{}")
    assert caught.value.sent is None
    assert len(served.requests) == 2


async def test_a_response_cut_in_the_middle_means_the_request_was_processed() -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        served.answer(begins(b'{"a":'))
        with pytest.raises(Unreachable, match="the answer was cut") as caught:
            await session.request("POST", PODS, body=b"{}")
    assert caught.value.sent is True


async def test_a_refused_plugin_credential_is_renewed_and_the_request_retried_once(tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = f"""
with open({str(count)!r}, "a+") as file:
    file.write("x"); file.seek(0); runs = len(file.read())
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {{"token": f"t{{runs}}"}}}}))
"""
    plugin = ExecPlugin(program(tmp_path, script), interactive_mode="Never")
    async with serving() as served, Session(Access(served.url, exec_plugin=plugin)) as session:
        served.answer(refuses(401), responds({}), refuses(401))
        await session.request("POST", PODS, body=b"{}")
        with pytest.raises(ApiError, match="401"):
            await session.request("POST", PODS, body=b"{}")
    assert [request.headers["Authorization"] for request in served.requests] == [
        "Bearer t1",
        "Bearer t2",
        "Bearer t2",
    ]
    assert count.read_text() == "xx"


async def test_a_rotated_token_is_sent_after_a_refusal(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    async with serving() as served, Session(Access(served.url, token_file=str(token))) as session:
        await session.request("GET", PODS)
        token.write_text("two")
        served.answer(refuses(401))
        await session.request("GET", PODS)
    assert [request.headers["Authorization"][7:] for request in served.requests] == ["one", "one", "two"]


async def test_a_missing_plugin_is_reported_by_the_first_request() -> None:
    plugin = ExecPlugin("no-such-program", install_hint="ask your admin")
    async with serving() as served, Session(Access(served.url, exec_plugin=plugin)) as session:
        with pytest.raises(CredentialError, match="is not installed; ask your admin"):
            await session.request("GET", PODS)
    assert served.requests == []


async def test_a_proxy_is_used_and_an_unreachable_one_is_reported() -> None:
    async with serving() as proxy:
        async with Session(Access("http://api.lab:6443", proxy=proxy.url)) as session:
            await session.request("GET", PODS)
        assert proxy.requests[0].headers["Host"] == "api.lab:6443"
        async with Session(Access("https://api.lab:6443", proxy=proxy.url)) as session:
            with pytest.raises(Unreachable, match="the proxy refused: 404") as refused:
                await session.request("GET", PODS)
    async with Session(Access("http://api.lab", proxy=f"http://127.0.0.1:{closed_port()}")) as session:
        with pytest.raises(Unreachable, match="the proxy cannot be reached") as away:
            await session.request("GET", PODS)
    assert (refused.value.sent, away.value.sent) == (False, False)


async def test_a_watch_through_a_proxy_that_never_answers_ends() -> None:
    left = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        left.set()

    proxy = await asyncio.start_server(accept, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    async with proxy, Session(Access("https://api.lab:6443", proxy=url)) as session:
        with pytest.raises(Unreachable, match="no connection in time") as caught:
            await anext(session.stream(PODS, {}, idle_timeout_s=0.2))
        await left.wait()
    assert caught.value.sent is False


async def test_many_different_timeouts_do_not_accumulate() -> None:
    async with serving() as served, Session(Access(served.url)) as session:
        for count in range(20):
            await session.request("GET", PODS, timeout_s=5.0 + count)
    assert len(session._timeouts) <= 17
    assert len(served.requests) == 20


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0"])
def test_names_that_no_object_can_have_are_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="cannot name a Kubernetes object"):
        segment(name)


def test_other_odd_names_are_escaped() -> None:
    assert segment("a b?c") == "a%20b%3Fc"


async def test_proxy_settings_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{closed_port()}")
    async with serving() as served, Session(Access(served.url)) as session:
        assert await session.request("GET", PODS) == b"{}"
