"""Runs a relay (``gpushare.httpserver.relay``) for as long as this process lives."""

import asyncio
import logging
import socket
import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack, closing
from typing import Final

from gpushare.kube.backoff import Backoff

logger = logging.getLogger(__name__)

_BACKLOG: Final = 64
_LEAST_S, _MOST_S = 0.1, 5.0


def behind_relay() -> socket.socket:
    """A listening Unix socket, reachable only within this network namespace."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The kernel chooses an abstract name: no writable directory is needed, and nothing is left behind.
    made.bind("")
    made.listen(_BACKLOG)
    made.setblocking(False)
    return made


async def relay(doors: Mapping[socket.socket, Collection[str]], behind: socket.socket) -> None:
    """Serve the listeners' endpoints from ``behind`` until cancelled, then close the sockets.

    A relay that ends, or cannot be started for lack of memory, is started again; this process goes on.
    """
    name = behind.getsockname().removeprefix(b"\0").decode()
    again = Backoff(_LEAST_S, _MOST_S)
    with ExitStack() as open_doors:
        for listening in doors:
            open_doors.enter_context(closing(listening))
        while True:
            try:
                await _one(doors, name)
            except (OSError, RuntimeError) as error:  # RuntimeError: no thread is left to wait for it
                logger.error(
                    "cannot start the process that answers probes and metrics: %s; trying again", error
                )
            await asyncio.sleep(again.next_s())


async def _one(doors: Mapping[socket.socket, Collection[str]], name: str) -> None:
    arguments = [f"{listening.fileno()}={','.join(pages)}" for listening, pages in doors.items()]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpushare.httpserver.relay", name, *arguments),
        pass_fds=[listening.fileno() for listening in doors],
    )
    try:
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    logger.error("the process that answers probes and metrics ended with %d; it is started again", code)
