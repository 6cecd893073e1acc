"""An agent that the kubelet disconnects repeatedly backs off; meanwhile another agent may have taken over."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from gpushare.api import names
from gpushare.kube.clock import SystemClock
from gpushare.nodeagent.deviceplugin.registration import ResourceServer
from gpushare.nodeagent.deviceplugin.service import DeviceFeed, DevicePlugin
from gpushare.nodeagent.observability.metrics import Metrics
from tests.integration.nodeagent.changing import Changes
from tests.integration.nodeagent.scripted_kubelet import ScriptedKubelet


class HeldClock(SystemClock):
    """Time stands still, and its sleeps last until a test ends them."""

    def __init__(self, changes: Changes) -> None:
        self.sleeping = 0
        self.ended = asyncio.Event()
        self._changes = changes

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.sleeping += 1
        self._changes.notify()
        await self.ended.wait()


async def test_an_agent_in_back_off_leaves_the_kubelet_to_a_newer_one(short_folder: Path) -> None:
    """Otherwise the kubelet would use the older one from then on, over a connection without a reader once
    that has ended.
    """
    changes = Changes()
    kubelet, clock, newest = ScriptedKubelet(short_folder, changes), HeldClock(changes), True
    await kubelet.start()
    checks = 0

    def acts() -> bool:
        nonlocal checks
        checks += 1
        changes.notify()
        return newest

    server = ResourceServer(
        names.GPU_MEM,
        DevicePlugin(names.GPU_MEM, DeviceFeed(), cast("Any", None)),
        kubelet.plugins_dir / "gpushare-mem-1.sock",
        metrics=Metrics(),
        clock=clock,
        acts=acts,
        on_registered=lambda resource, at_s: None,
    )
    running = asyncio.create_task(server.run())
    try:
        for times in (1, 2):
            await changes.until(lambda times=times: len(kubelet.registrations) == times and server.registered)
            await kubelet._hang_up(names.GPU_MEM)
        await changes.until(lambda: clock.sleeping == 1, "it holds back")
        newest, before = False, checks
        clock.ended.set()
        await changes.until(lambda: checks > before or server.registered, "it goes on")
        assert len(kubelet.registrations) == 2
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await kubelet.stop()
