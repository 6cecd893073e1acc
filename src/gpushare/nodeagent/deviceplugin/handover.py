"""Handover between two node agents on one node: which one acts, and how the older one leaves unnoticed.

A rolling update starts the new agent before the old one ends. Each has a socket in the kubelet's directory, named after its start
time, and is connected to every other; so each knows immediately which others exist, although a starting kubelet removes all
sockets. Only the newest acts: it registers with the kubelet and writes to the API server.

When the old agent's device list ends, a kubelet of 1.28 to 1.36 attributes that to the plugin that registered last, the new
agent: every device counts as gone until that one registers again, and a pod that is admitted meanwhile fails. So the old
agent does not let it end. It passes its connections to the new one, which keeps them open and idle for as long as it runs.
A kubelet from 1.37 on might call an idle connection when the new agent's list ends. There it passes none, and they end with it.
"""

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.kube.clock import Clock
from gpushare.nodeagent.deviceplugin.socket_names import PRESENCE, SUFFIX, generation_of, socket_name

logger = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
_REPLY_S: Final = 2.0
_MOST_BYTES: Final = 4096
#: The kernel's limit per message (``SCM_MAX_FD``); a rolling update adds one per resource, and a restart of the kubelet ends
#: them all.
_MOST_CONNECTIONS: Final = 253


@dataclass(eq=False, slots=True)
class _Peer:
    """A connection to another agent."""

    socket: socket.socket
    generation: int | None = None
    answer: asyncio.Future[bool] | None = None
    kept: bool = False
    """Whether it left and its connections are held open here."""


class Handover:
    """This agent's view of the agents of its node.

    ``on_change`` is called when another agent appears or disappears, with whether the kubelet may disconnect from this agent or
    switch to the other because of it. ``may_take_over`` returns whether the kubelet knows all resources of this agent, so that
    the other may leave.
    """

    def __init__(
        self,
        folder: Path,
        generation: int,
        *,
        clock: Clock,
        on_change: Callable[[bool], None],
        may_take_over: Callable[[], bool],
    ) -> None:
        self._folder = folder
        self._path = folder / socket_name(PRESENCE, generation)
        self.generation = generation
        self._clock = clock
        self._on_change = on_change
        self._may_take_over = may_take_over
        self._peers: set[_Peer] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept: set[socket.socket] = set()
        self.others: frozenset[int] = frozenset()
        """Generations of the other agents on this node."""
        self.met = asyncio.Event()
        """Set once all agents that were there first are known."""

    @property
    def newest(self) -> bool:
        """Whether this agent acts."""
        return all(other < self.generation for other in self.others)

    async def run(self) -> None:
        """Stay connected to the others until cancelled."""
        logged = ""
        try:
            while True:
                try:
                    await self._listen()
                    logged = ""
                except OSError as error:
                    if str(error) != logged:
                        logged = str(error)
                        logger.warning("cannot listen on %s (%s); retrying", self._path, logged)
                self.met.set()
                await self._clock.sleep(_LOOK_S)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for kept in self._kept:
                asyncio.get_running_loop().remove_reader(kept)
                kept.close()

    async def leave(self, connections: Sequence[socket.socket]) -> bool:
        """Pass these and all connections held open here to the newest agent; whether it holds them, else they must be closed."""
        successors = [
            one for one in self._peers if one.generation is not None and one.generation > self.generation
        ]
        if not successors:
            return False
        successor = max(successors, key=lambda one: one.generation or 0)
        handed = [*connections, *self._kept]
        if len(handed) > _MOST_CONNECTIONS:
            return False
        successor.answer = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_REPLY_S):
                socket.send_fds(successor.socket, [_message(leaving=True)], [one.fileno() for one in handed])
                return await successor.answer
        except (OSError, TimeoutError):
            return False

    async def _listen(self) -> None:
        """Listen at a socket where others find us, until it vanishes."""
        listener, inode = _socket(), None
        try:
            self._path.unlink(missing_ok=True)
            listener.bind(str(self._path))
            listener.listen()
            inode = self._inode()
            accepting = asyncio.create_task(self._accept(listener))
            try:
                await self._find()
                self.met.set()
                while inode is not None and self._inode() == inode:
                    if accepting.done():
                        # No descriptor was left for a newcomer, for example. After a restart we find it ourselves.
                        accepting.result()
                    await self._clock.sleep(_LOOK_S)
            finally:
                accepting.cancel()
                await asyncio.wait([accepting])
        finally:
            listener.close()
            if inode is not None and self._inode() == inode:
                # An error here would replace a cancellation, and we would go on listening.
                with suppress(OSError):
                    self._path.unlink()

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
            self._meet(accepted)

    async def _find(self) -> None:
        """Connect to the agents that exist, and remove the sockets of dead ones."""
        for path in sorted(self._folder.glob(f"{PRESENCE}*{SUFFIX}")):
            if path == self._path or generation_of(path.name) in self.others:
                continue
            found = _socket()
            try:
                async with asyncio.timeout(_REPLY_S):
                    await asyncio.get_running_loop().sock_connect(found, str(path))
            except ConnectionRefusedError:
                found.close()
                self._clear_up_after(path)
            except (OSError, TimeoutError):
                found.close()
            except asyncio.CancelledError:
                found.close()
                raise
            else:
                known = self._meet(found)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_REPLY_S):
                        await known.wait()

    def _clear_up_after(self, presence: Path) -> None:
        logger.info("%s was left by an agent that is gone", presence)
        ending = presence.name.removeprefix(PRESENCE)
        for left in self._folder.glob(f"gpushare-*{ending}"):
            left.unlink(missing_ok=True)

    def _meet(self, other: socket.socket) -> asyncio.Event:
        other.setblocking(False)
        peer, known = _Peer(other), asyncio.Event()
        self._peers.add(peer)
        task = asyncio.create_task(self._converse(peer, known))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return known

    async def _converse(self, peer: _Peer, known: asyncio.Event) -> None:
        try:
            peer.socket.send(_message(generation=self.generation))
            while True:
                content, handed = await _receive(peer.socket)
                if content is None:
                    return
                if "generation" in content:
                    peer.generation = int(content["generation"])
                    self._changed()
                    known.set()
                elif "leaving" in content:
                    peer.kept = self._keep(handed)
                    peer.socket.send(_message(kept=peer.kept))
                elif "kept" in content and peer.answer is not None and not peer.answer.done():
                    peer.answer.set_result(bool(content["kept"]))
        except (OSError, ValueError, TypeError) as error:
            logger.warning("the connection with another node agent broke: %s", error)
        finally:
            known.set()
            self._peers.discard(peer)
            peer.socket.close()
            self._changed(unnoticed=peer.kept)

    def _changed(self, *, unnoticed: bool = False) -> None:
        others = frozenset(peer.generation for peer in self._peers if peer.generation is not None)
        if others != self.others:
            self.others = others
            logger.info(
                "%d other node agent%s on this node; %s is active",
                len(others),
                "" if len(others) == 1 else "s",
                "this one" if self.newest else "a newer one",
            )
            self._on_change(not unnoticed)

    def _keep(self, handed: Sequence[socket.socket]) -> bool:
        if not self._may_take_over():
            for one in handed:
                one.close()
            return False
        for one in handed:
            one.setblocking(False)
            self._kept.add(one)
            asyncio.get_running_loop().add_reader(one, self._drain, one)
        logger.info("the previous node agent is stopping; taking over %d of its connections", len(handed))
        return True

    def _drain(self, kept: socket.socket) -> None:
        """Discard what arrives; close the connection when the kubelet does."""
        try:
            if kept.recv(_MOST_BYTES):
                return
        except BlockingIOError:
            return
        except OSError as error:
            logger.debug("a kept connection broke: %s", error)
        asyncio.get_running_loop().remove_reader(kept)
        self._kept.discard(kept)
        kept.close()

    def _inode(self) -> int | None:
        try:
            return self._path.stat().st_ino
        except OSError:
            return None


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    return made


def _message(**content: object) -> bytes:
    return json.dumps(content).encode()


async def _receive(other: socket.socket) -> tuple[dict[str, Any] | None, list[socket.socket]]:
    """The next message and the connections that came with it; ``None`` once the other is gone."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(other, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(other)
    data, numbers, _, _ = socket.recv_fds(other, _MOST_BYTES, _MOST_CONNECTIONS)
    handed = [socket.socket(fileno=number) for number in numbers]
    if not data:
        return None, handed
    content = json.loads(data)
    if not isinstance(content, dict):
        raise ValueError(f"{content!r} is no message of a node agent")
    return content, handed
