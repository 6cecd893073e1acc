"""What an agent does between SIGTERM and its end, while it still serves."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.clock import Clock
from gpushare.nodeagent.deviceplugin.handover import Handover
from gpushare.nodeagent.deviceplugin.registration import ResourceServer

#: In seconds: how long calls of the kubelet, the removal of permissions, and the start of a newer agent may take.
CALL_S: Final = 3.0
PERMISSIONS_S: Final = 3.0
SUCCESSOR_S: Final = 5.0
_AGAIN_S: Final = 0.1
_LOOK_S: Final = 0.02


async def handed_over(handover: Handover, servers: Sequence[ResourceServer], clock: Clock) -> bool:
    """Whether a newer agent keeps our connections with the kubelet; then ``servers`` will not close them.

    Waits for one that exists but does not serve yet.
    """
    until_s = clock.monotonic() + SUCCESSOR_S
    while not (kept := await _handed_over(handover, servers, clock)):
        if handover.newest or clock.monotonic() >= until_s:
            break
        await clock.sleep(_AGAIN_S)
    return kept


async def _handed_over(handover: Handover, servers: Sequence[ResourceServer], clock: Clock) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(CALL_S):
            while any(server.busy for server in servers):
                await clock.sleep(_LOOK_S)
    if any(server.busy for server in servers):
        return False  # that call would never end on a connection that stays open
    connections = [one for server in servers for one in server.connections()]
    try:
        kept = await handover.leave(connections)
    finally:
        for one in connections:
            one.close()
    if kept:
        for server in servers:
            server.stay_open()
    return kept


async def permissions_are_gone(ask: Callable[[], Awaitable[object]], clock: Clock) -> bool:
    """Whether the API server refuses us, as it does only when the whole installation is removed.

    The permissions go a moment after the pods of the DaemonSet get SIGTERM.
    """
    until_s = clock.monotonic() + PERMISSIONS_S
    while clock.monotonic() < until_s:
        try:
            await ask()
        except ApiError as error:
            return error.status in (401, 403)
        except KubeError:
            return False
        await clock.sleep(PERMISSIONS_S / 10)
    return False
