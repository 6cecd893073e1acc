"""What an agent does between being told to end and its end. It serves all the while."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.clock import Clock
from gpushare.nodeagent.deviceplugin.handover import Handover
from gpushare.nodeagent.deviceplugin.registration import ResourceServer

#: Seconds that questions of the kubelet may take to be answered, that rights may take to go, and that a newer agent may
#: take until it serves.
ANSWER_S: Final = 3.0
RIGHTS_S: Final = 3.0
HEIR_S: Final = 5.0
_AGAIN_S: Final = 0.1
_LOOK_S: Final = 0.02


async def handed_over(succession: Handover, servers: Sequence[ResourceServer], clock: Clock) -> bool:
    """Whether a newer agent keeps our connections with the kubelet; then ``servers`` will not close them.

    One that is there and does not serve yet is waited for.
    """
    until_s = clock.monotonic() + HEIR_S
    while not (kept := await _handed_over(succession, servers, clock)):
        if succession.newest or clock.monotonic() >= until_s:
            break
        await clock.sleep(_AGAIN_S)
    return kept


async def _handed_over(succession: Handover, servers: Sequence[ResourceServer], clock: Clock) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            while any(server.busy for server in servers):
                await clock.sleep(_LOOK_S)
    if any(server.busy for server in servers):
        return False  # who waits for an answer would wait for good on a connection that stays
    connections = [one for server in servers for one in server.connections()]
    try:
        kept = await succession.leave(connections)
    finally:
        for one in connections:
            one.close()
    if kept:
        for server in servers:
            server.stay_open()
    return kept


async def rights_are_gone(ask: Callable[[], Awaitable[object]], clock: Clock) -> bool:
    """Whether the API server refuses us, as it does when the whole installation is removed and else never.

    The rights go a moment after the pods of the DaemonSet are told to end.
    """
    until_s = clock.monotonic() + RIGHTS_S
    while clock.monotonic() < until_s:
        try:
            await ask()
        except ApiError as error:
            return error.status in (401, 403)
        except KubeError:
            return False
        await clock.sleep(RIGHTS_S / 10)
    return False
