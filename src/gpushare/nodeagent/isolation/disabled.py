"""A node agent that isolates nobody, and says so. It loads nothing of what isolation needs."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from gpushare.api.node.modes import NodeMode
from gpushare.nodeagent.allocate.container_response import Backend, NoIsolation
from gpushare.nodeagent.isolation.backend_selection import backing
from gpushare.nodeagent.isolation.options import AskedIsolation, IsolationOptions
from gpushare.nodeagent.isolation.storage.files import Claimed
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare.nodeagent.runtime.cdi.gpu_access import GpuAccess


class Isolating(Protocol):
    """What the agent asks of isolation (``state.Isolation``, or ``NotIsolating``)."""

    decided: asyncio.Event
    """Set while it is known how it stands with what was taken last."""

    @property
    def active(self) -> str:
        """Which way is gone and why, for people: one line."""

    @property
    def trouble(self) -> str:
        """Why no container could be held to its share, and what to do; empty when all can."""

    @property
    def fallen(self) -> str:
        """Why containers are not held to their share though this node's mode asks for it; empty when they are."""

    @property
    def alarm(self) -> str:
        """``trouble`` that people should hear of: not that of a beginning."""

    @property
    def there(self) -> bool:
        """Whether anything of isolation is on this node."""

    def attend(self, access: GpuAccess) -> None:
        """How containers get their GPU is known from there."""

    def take(self, mode: NodeMode, gpus: Sequence[str], *, acts: bool, driven: bool) -> None:
        """The node's mode and GPUs (UUIDs); ``acts``: no newer agent keeps its programs instead; ``driven``: there is a
        driver that works."""

    def backend_of(self, mode: NodeMode) -> Backend:
        """What turns a share into what holds a container to it, on a node in ``mode``."""

    def shimmed(self, content: bytes) -> bytes | None:
        """A description of GPUs with our libraries in place; ``None`` where there is none to be."""

    def lacking(self) -> dict[str, str]:
        """GPUs whose containers could not be held to their share, by UUID, and why."""

    def directories(self) -> Iterable[tuple[Claimed, Path]]:
        """Those of isolated containers, and whom they were made for; the oldest first."""

    @property
    def contexts_mib(self) -> Mapping[str, int]:
        """MiB that a CUDA context takes of a GPU, by UUID, as far as the node's containers have measured it."""

    @property
    def by_driver(self) -> bool:
        """Whether the driver's own limits are to hold containers."""

    def pods_changed(self) -> None:
        """A pod may have gone."""

    async def release(self, uid: str) -> None:
        """Take away what the claim of that UID was given; raises ``OSError``."""

    async def run(self) -> None:
        """Keep all in order until cancelled."""

    async def keep(self) -> None:
        """Take away what no pod uses, until cancelled. The node's pods must be known."""

    async def clear(self) -> None:
        """Take away for good what no pod uses; the agent leaves, and none comes after it."""


class NotIsolating:
    """``--isolation none``, where no container has anything of isolation."""

    trouble = alarm = fallen = ""
    there = by_driver = False
    contexts_mib: Mapping[str, int] = MappingProxyType({})

    def __init__(self, metrics: Metrics) -> None:
        self._mode = NodeMode.DEFAULT
        self._none = NoIsolation()
        self.decided = asyncio.Event()
        self.decided.set()
        metrics.isolation.set("none", AskedIsolation.NONE.value, value=1.0)

    @property
    def active(self) -> str:
        """Why nothing is."""
        chosen = backing(AskedIsolation.NONE, self._mode)
        return f"{chosen.kind}: {chosen.why}"

    def attend(self, access: GpuAccess) -> None:
        """Nothing to know."""

    def take(self, mode: NodeMode, gpus: Sequence[str], *, acts: bool, driven: bool) -> None:
        """Only the mode matters."""
        self._mode = mode

    def backend_of(self, mode: NodeMode) -> Backend:
        """None that does anything."""
        return self._none

    def shimmed(self, content: bytes) -> bytes | None:
        """Nothing."""
        return None

    def lacking(self) -> dict[str, str]:
        """None."""
        return {}

    def directories(self) -> Iterable[tuple[Claimed, Path]]:
        """None."""
        return ()

    def pods_changed(self) -> None:
        """Nothing to do."""

    async def release(self, uid: str) -> None:
        """Nothing to do."""

    async def run(self) -> None:
        """Nothing to do."""

    async def keep(self) -> None:
        """Nothing to do."""

    async def clear(self) -> None:
        """Nothing to do."""


def is_off(options: IsolationOptions) -> bool:
    """Whether nothing is asked for, and no agent before this one has left files of containers."""
    return options.asked is AskedIsolation.NONE and not Path(options.folder).exists()
