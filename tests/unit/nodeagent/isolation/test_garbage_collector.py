"""Directories of containers are removed once, by whichever agent comes first."""

import asyncio
from pathlib import Path

from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.nodeagent.allocate.grant_log import DeviceListing
from gpushare.nodeagent.isolation.storage.directories import Directories
from gpushare.nodeagent.isolation.storage.files import Claimed
from gpushare.nodeagent.isolation.storage.garbage_collector import Keeper
from gpushare.nodeagent.observability.metrics import Metrics


class Slow:
    """A kubelet that lists nothing, once the test lets it answer."""

    def __init__(self) -> None:
        self.queried, self.let = asyncio.Event(), asyncio.Event()

    @property
    def held_by_others(self) -> dict[str, str]:
        return {}

    async def read(self, timeout_s: float) -> DeviceListing:
        self.queried.set()
        await self.let.wait()
        return {}


async def test_an_agent_that_stops_while_cleaning_up_leaves_nothing(tmp_path: Path) -> None:
    directories, kubelet = Directories(tmp_path / "containers"), Slow()
    for name in "abcdef":
        directories.make(Claimed(f"default/{name}", f"u{name}", "c", "GPU-a", 10, name), "hard")
    keeper = Keeper(
        directories,
        tmp_path / "lib",
        kubelet,
        live=lambda: (),
        refresh=lambda: asyncio.sleep(0),
        library=lambda: "",
        metrics=Metrics(),
        clock=SYSTEM_CLOCK,
        grace_s=0.0,
    )
    await keeper.adopt()
    tidying = asyncio.create_task(keeper.once())
    await kubelet.queried.wait()
    leaving = asyncio.create_task(keeper.clear())
    kubelet.let.set()
    await tidying
    assert await leaving
    assert directories.names() == []
