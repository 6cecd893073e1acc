"""How agents on one node meet, and what happens to connections that one hands over to another."""

import asyncio
import errno
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.nodeagent.deviceplugin.handover import Handover
from gpushare.nodeagent.deviceplugin.open_connections import connections_to
from gpushare.nodeagent.deviceplugin.socket_names import PRESENCE, generation_of, new_generation, socket_name


class Node:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reported: list[tuple[int, bool]] = []
        self._changed = asyncio.Event()
        self._running: dict[int, asyncio.Task[None]] = {}

    async def start(self, generation: int, *, takes: bool = True) -> Handover:
        made = Handover(
            self.folder,
            generation,
            clock=SYSTEM_CLOCK,
            on_change=lambda unsettled: self._report(generation, unsettled),
            may_take_over=lambda: takes,
        )
        self._running[generation] = asyncio.create_task(made.run())
        await asyncio.wait_for(made.met.wait(), 10)
        return made

    async def stop(self, generation: int) -> None:
        task = self._running.pop(generation)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def until(self, state: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not state():
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.05)

    def _report(self, generation: int, unsettled: bool) -> None:
        self.reported.append((generation, unsettled))
        self._changed.set()

    async def close(self) -> None:
        for generation in list(self._running):
            await self.stop(generation)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Its sockets have short paths (the kernel takes 107 bytes)."""
    made = Path(tempfile.mkdtemp(prefix="gsn"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
async def node(folder: Path) -> AsyncIterator[Node]:
    made = Node(folder)
    yield made
    await made.close()


async def test_the_newest_acts_whatever_the_order_of_arrival(node: Node) -> None:
    middle = await node.start(2)
    assert middle.newest
    oldest, newest = await node.start(1), await node.start(3)
    await node.until(lambda: [len(one.others) for one in (oldest, middle, newest)] == [2, 2, 2])
    assert [one.newest for one in (oldest, middle, newest)] == [False, False, True]
    await node.stop(3)
    await node.until(lambda: middle.newest)
    assert node.reported[-1][1]
    assert not oldest.newest


async def test_a_wiped_folder_separates_no_agents_and_newcomers_find_all(node: Node) -> None:
    first, second = await node.start(1), await node.start(2)
    for path in node.folder.iterdir():
        path.unlink()
    await node.until(lambda: len(list(node.folder.glob(f"{PRESENCE}*"))) == 2)
    assert (first.others, second.others) == ({2}, {1})
    third = await node.start(3)
    await node.until(lambda: third.others == {1, 2})


async def test_an_agent_that_cannot_be_accepted_is_met_all_the_same(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older agent has no file left at that moment: neither may take itself for the newest permanently."""
    loop = asyncio.get_running_loop()
    accept, refusals = loop.sock_accept, [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    async def short_of_files(listener: socket.socket) -> tuple[socket.socket, object]:
        accepted, address = await accept(listener)
        if refusals:
            accepted.close()
            raise refusals.pop()
        return accepted, address

    monkeypatch.setattr(loop, "sock_accept", short_of_files)
    old, new = await node.start(1), await node.start(2)
    await node.until(lambda: (old.others, new.others) == ({2}, {1}))
    assert (old.newest, new.newest, refusals) == (False, True, [])


async def test_files_of_a_dead_agent_are_removed_and_nothing_else(node: Node) -> None:
    for stem in (PRESENCE, "gpushare-mem-"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
            dead.bind(str(node.folder / socket_name(stem, 7)))
    (node.folder / "kubelet_internal_checkpoint").touch()
    (node.folder / "other-plugin.sock").touch()
    await node.start(8)
    await node.until(lambda: (node.folder / socket_name(PRESENCE, 8)).exists())
    assert {path.name for path in node.folder.iterdir()} == {
        "kubelet_internal_checkpoint",
        "other-plugin.sock",
        socket_name(PRESENCE, 8),
    }


async def test_connections_outlive_the_agent_that_handed_them_over(node: Node) -> None:
    old, new = await node.start(1), await node.start(2)
    kubelet, ours = socket.socketpair()
    with kubelet:
        assert await old.leave([ours])
        ours.close()
        await node.stop(1)
        await node.until(lambda: not new.others)
        assert (2, False) in node.reported
        kubelet.setblocking(False)
        kubelet.send(b"ping")
        with pytest.raises(BlockingIOError):
            kubelet.recv(1)
        third = await node.start(3)
        assert await new.leave([])
        await node.stop(2)
        with pytest.raises(BlockingIOError):
            kubelet.recv(1)
        assert third.newest
        await node.stop(3)
        assert kubelet.recv(1) == b""


async def test_a_connection_that_the_kubelet_closes_is_released(node: Node) -> None:
    old, new = await node.start(1), await node.start(2)
    kubelet, ours = socket.socketpair()
    assert await old.leave([ours])
    ours.close()
    await node.stop(1)
    kubelet.close()
    await node.until(lambda: not new._kept)


async def test_an_agent_that_does_not_serve_yet_takes_nothing(node: Node) -> None:
    old = await node.start(1)
    await node.start(2, takes=False)
    kubelet, ours = socket.socketpair()
    with kubelet, ours:
        assert not await old.leave([ours])


async def test_the_newest_has_no_agent_to_leave_to(node: Node) -> None:
    await node.start(1)
    newest = await node.start(2)
    assert not await newest.leave([])


async def test_a_folder_that_comes_later_is_waited_for(folder: Path) -> None:
    node = Node(folder / "later")
    late = await node.start(1)
    assert late.newest
    node.folder.mkdir()
    await node.until(lambda: (node.folder / socket_name(PRESENCE, 1)).exists())
    await node.close()
    assert list(node.folder.iterdir()) == []


async def test_nonsense_is_hung_up_on(node: Node) -> None:
    agent = await node.start(1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.setblocking(False)
        await asyncio.get_running_loop().sock_connect(stranger, str(node.folder / socket_name(PRESENCE, 1)))
        stranger.send(b"[1]")
        async with asyncio.timeout(10):
            while await asyncio.get_running_loop().sock_recv(stranger, 100):
                pass
    assert agent.others == frozenset()


def test_a_generation_is_greater_than_those_before_and_read_from_its_name() -> None:
    first = new_generation()
    assert new_generation() > first
    assert generation_of(socket_name(PRESENCE, first)) == first
    assert generation_of("gpushare-agent-x.sock") is None


async def test_connections_of_others_are_found_and_our_own_are_not(folder: Path) -> None:
    path = folder / "x.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"//{path}")
        listener.listen()
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(str(path))
            with listener.accept()[0]:
                assert connections_to(path) == []
        child = await asyncio.create_subprocess_exec(
            *("python3", "-c"),
            "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)",
            str(path),
        )
        with (await asyncio.to_thread(listener.accept))[0]:
            before = len(os.listdir("/proc/self/fd"))
            [found] = connections_to(path)
            assert connections_to(folder / "y.sock") == []
            found.close()
            assert len(os.listdir("/proc/self/fd")) == before
        await asyncio.wait_for(child.wait(), 10)


async def test_an_agent_that_cannot_remove_its_socket_ends(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.start(1)

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    async with asyncio.timeout(10):
        await node.stop(1)
