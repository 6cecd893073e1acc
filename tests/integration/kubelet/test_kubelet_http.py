"""Logs and exec, through the API server and on the kubelet's own port."""

import asyncio
import json

import aiohttp
import pytest

from gpushare_playground.kubelet.runtime.containers import Launch
from gpushare_playground.kubelet.runtime.execsession import (
    CLOSE,
    ERROR,
    RESIZE,
    STDERR,
    STDIN,
    STDOUT,
    ExecSession,
    Streams,
)
from tests.integration.kubelet.small_cluster import TOKEN, script, until

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")


@pytest.fixture
async def client(cluster):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{cluster.kubelet.port}", headers=headers) as session:
        yield session


@pytest.fixture
async def pod(cluster):
    await cluster.create(
        "p", script("echo up; while :; do sleep 0.05; done", env=[{"name": "WHO", "value": "me"}])
    )
    await cluster.logs_are("p", "up\n")


class Exec:
    """One exec connection: what each channel received."""

    def __init__(self, socket):
        self.socket = socket
        self.received = {STDOUT: b"", STDERR: b"", ERROR: b""}

    async def send(self, channel, payload):
        await self.socket.send_bytes(bytes([channel]) + payload)

    async def until_hears(self, text):
        while text not in self.received[STDOUT]:
            await self._receive()

    async def end(self):
        """The closing ``Status``."""
        while not self.received[ERROR]:
            await self._receive()
        return json.loads(self.received[ERROR])

    async def _receive(self):
        message = await self.socket.receive(timeout=60)
        assert message.type is aiohttp.WSMsgType.BINARY, (message, self.received)
        self.received[message.data[0]] += message.data[1:]


@pytest.fixture
async def execute(client):
    opened = []

    async def start(*command, pod="p", container="c", **options):
        query = [("command", part) for part in command]
        query += [
            (name, "true") for name, wanted in {"stdout": True, "stderr": True, **options}.items() if wanted
        ]
        socket = await client.ws_connect(
            f"/exec/default/{pod}/{container}", params=query, protocols=PROTOCOLS
        )
        opened.append(socket)
        return Exec(socket)

    yield start
    for socket in opened:
        await socket.close()


async def test_a_command_runs_in_the_containers_environment_and_folder(pod, execute):
    session = await execute("sh", "-c", "echo $WHO; pwd; echo oops >&2")
    assert (await session.end())["status"] == "Success"
    assert session.socket.protocol == "v5.channel.k8s.io"
    out = session.received[STDOUT].decode().split()
    assert out[0] == "me"
    assert out[1].endswith("/c/rootfs")
    assert session.received[STDERR] == b"oops\n"


async def test_the_exit_code_is_sent_as_kubectl_reads_it(pod, execute):
    status = await (await execute("sh", "-c", "exit 5")).end()
    assert status["reason"] == "NonZeroExitCode"
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "5"}]


@pytest.mark.parametrize(("command", "code"), [("no-such-program", "127"), ("/etc/passwd", "126")])
async def test_a_command_that_cannot_run_exits_as_in_a_shell(pod, execute, command, code):
    status = await (await execute(command)).end()
    assert status["details"]["causes"][0]["message"] == code


async def test_standard_input_and_its_end_reach_the_command(pod, execute):
    session = await execute("sort", stdin=True)
    await session.send(STDIN, b"b\n")
    await session.send(STDIN, b"a\n")
    await session.send(CLOSE, bytes([STDIN]))
    assert (await session.end())["status"] == "Success"
    assert session.received[STDOUT] == b"a\nb\n"


async def test_a_terminal_has_a_size_and_passes_keys(pod, execute):
    session = await execute("sh", stdin=True, tty=True)
    await session.send(RESIZE, b'{"Width":91,"Height":33}')
    await session.send(STDIN, b"stty size\n")
    await session.until_hears(b"33 91")
    await session.send(STDIN, b"exit 4\n")
    assert (await session.end())["details"]["causes"][0]["message"] == "4"


async def test_a_command_ends_with_its_container(cluster, pod, execute):
    session = await execute("sleep", "1000")
    attempt = cluster.attempt("p")
    cluster.kubelet.containers.signal(attempt, 9)
    assert (await session.end())["details"]["causes"][0]["message"] == "137"


async def test_a_command_that_is_still_starting_ends_with_its_container_too(tmp_path):
    """A session can end its command at any time: before there is a process, as well as after."""

    class Connection:
        def __init__(self):
            self.sent = []

        async def send_bytes(self, payload):
            self.sent.append(payload)

        def __aiter__(self):
            return self

        async def __anext__(self):
            await asyncio.Event().wait()

    connection = Connection()
    session = ExecSession(connection, Streams())
    launch = Launch(argv=("sleep", "1000"), env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path)
    running = asyncio.create_task(session.run(launch, ("sleep", "1000")))
    await asyncio.sleep(0)  # it continues as far as it can without its process
    session.kill()
    await until(running.done, "the command has ended")
    [end] = connection.sent
    assert json.loads(end[1:])["details"]["causes"][0]["message"] == "137"


async def test_a_command_ends_with_its_connection(cluster, pod, execute, tmp_path):
    session = await execute("sh", "-c", f"echo $$ > {tmp_path}/pid; echo on; exec sleep 1000", stdin=True)
    await session.until_hears(b"on\n")
    await session.socket.close()
    await until(lambda: not _lives(int((tmp_path / "pid").read_text())), "the command has ended")


def _lives(pid):
    from gpushare_playground.kubelet.runtime.shim import start_ticks

    return start_ticks(pid) > 0


async def test_a_command_in_a_pod_that_is_not_running_is_refused_over_the_connection(cluster, execute):
    await cluster.create("done", script("exit 0"), restartPolicy="Never")
    await cluster.finished("done")
    assert "does not run" in (await (await execute("ls", pod="done")).end())["message"]
    assert "is not on node n1" in (await (await execute("ls", pod="none")).end())["message"]
    assert "is not in pod" in (await (await execute("ls", pod="done", container="x")).end())["message"]


async def test_a_command_for_a_waiting_container_reports_why_it_waits(cluster, execute):
    await cluster.create("unknown", {**script("exit 0"), "image": "nobody/knows:1"})
    await cluster.pod_where("unknown", lambda pod: pod["status"].get("containerStatuses"), "cannot pull")
    message = (await (await execute("ls", pod="unknown")).end())["message"]
    assert message in [
        f'container "c" in pod "unknown" is waiting to start: {reason}'
        for reason in ("ContainerCreating", "ErrImagePull", "ImagePullBackOff")
    ]


async def test_the_token_is_required_for_everything_but_health(cluster, pod):
    async with aiohttp.ClientSession(f"http://127.0.0.1:{cluster.kubelet.port}") as anonymous:
        assert (await anonymous.get("/healthz")).status == 200
        for path in ("/pods", "/containerLogs/default/p/c", "/exec/default/p/c?command=ls"):
            assert (await anonymous.get(path)).status == 401


async def test_pods_are_listed_with_their_status(client, pod):
    listed = await (await client.get("/pods")).json()
    [one] = listed["items"]
    assert (one["metadata"]["name"], one["status"]["phase"]) == ("p", "Running")


async def test_logs_follow_to_the_end_of_the_container(cluster, client, tmp_path):
    text = f"echo one; until test -e {tmp_path}/go; do sleep 0.02; done; echo two"
    await cluster.create("p", script(text), restartPolicy="Never")
    await cluster.logs_are("p", "one\n")
    async with client.get("/containerLogs/default/p/c", params={"follow": "true"}) as answer:
        assert await answer.content.readline() == b"one\n"
        (tmp_path / "go").touch()
        assert await answer.content.read() == b"two\n"


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/containerLogs/default/none/c", 404, "pod default/none"),
        ("/containerLogs/default/p/x", 404, "is not in pod"),
        ("/containerLogs/default/p/c?previous=true", 400, 'previous terminated container "c"'),
        ("/containerLogs/default/p/c?tailLines=x", 400, "tailLines='x'"),
        ("/exec/default/p/c", 400, "command is missing"),
    ],
)
async def test_requests_that_cannot_be_served_get_a_clear_error(client, pod, path, status, text):
    answer = await client.get(path)
    assert answer.status == status
    assert text in await answer.text()
