"""What holds this node's containers to their share at present, why it is that, and what is wrong with it."""

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from gpushare.api.node.modes import NodeMode
from gpushare.kube.clock import Clock
from gpushare.nodeagent.allocate.container_response import Backend, NoIsolation
from gpushare.nodeagent.errors import AllocationRefused, NodeAgentError
from gpushare.nodeagent.isolation.backend_selection import Backing, backing, cannot
from gpushare.nodeagent.isolation.backends.cdi_overlay import NotShimmed, shimmed
from gpushare.nodeagent.isolation.backends.driver_limits import NOT_LOOKED as LIMITS_NOT_LOOKED
from gpushare.nodeagent.isolation.backends.driver_limits import DriverAlone, DriverLimits
from gpushare.nodeagent.isolation.backends.mps import NOT_LOOKED, Mps
from gpushare.nodeagent.isolation.backends.preload import NoDriver, Preload, Ready, driver_on_host
from gpushare.nodeagent.isolation.backends.subprocesses import Child
from gpushare.nodeagent.isolation.options import AskedIsolation
from gpushare.nodeagent.isolation.selftest.context_cost import contexts_mib
from gpushare.nodeagent.isolation.selftest.selftest import OUTCOMES, Trials, Verdict
from gpushare.nodeagent.isolation.storage.directories import Directories
from gpushare.nodeagent.isolation.storage.files import LIBRARIES, Claimed
from gpushare.nodeagent.isolation.storage.garbage_collector import Keeper
from gpushare.nodeagent.isolation.storage.libraries import Release, deliver, hold, is_whole, remove_all
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare.nodeagent.reconcile.pod_resources import Listing
from gpushare.nodeagent.runtime.cdi.gpu_access import GpuAccess
from gpushare.nodeagent.settings import Settings

logger = logging.getLogger(__name__)

ARBITER: Final = "arbiter"
_KINDS: Final = ("none", "preload", "mps", "driver")
_NOT_YET: Final = "isolation is not ready yet"


class Isolation:
    """``on_change`` is called, in the event loop, when ``active``, ``trouble``, ``fallen``, ``lacking`` or ``contexts_mib`` read otherwise."""

    def __init__(
        self,
        settings: Settings,
        listing: Listing,
        limits: DriverLimits,
        *,
        live: Callable[[], Collection[str]],
        metrics: Metrics,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_change = on_change
        self._metrics = metrics
        self._mode = NodeMode.DEFAULT
        self._gpus: tuple[str, ...] = ()
        self._acts = True
        self._driven = True
        self._access: GpuAccess | None = None
        self._release: Release | None = None
        self._ready: Ready | None = None
        self._trouble = _NOT_YET
        self._without_driver = False
        self._verdict = Verdict("skipped")
        self._looked_in_place = False
        self._was_able = False
        self._cleared = False
        self._trials = Trials(settings.driver_root, clock=clock)
        self._shimmed: tuple[bytes, Release, bytes | None] | None = None
        self._probed = False
        self._stamps: list[tuple[int, int, int]] = []
        self._contexts_mib: Mapping[str, int] = {}
        self._told = ""
        self._woken = asyncio.Event()
        self._arbiter: tuple[Child, asyncio.Task[None]] | None = None
        self._arbiter_fault = ""
        self._options = settings.isolation
        root = self._options.folder.parent
        self._libraries = root / "lib"
        self._directories = Directories(self._options.folder)
        self._keeper = Keeper(
            self._directories,
            self._libraries,
            listing,
            live=live,
            library=lambda: self._release.name if self._release is not None else "",
            metrics=metrics,
            clock=clock,
            grace_s=settings.pace.keep_s,
            policy=self._options.core_policy,
        )
        self._none = NoIsolation()
        self._limits = limits
        self._driver = DriverAlone(limits)
        self._preload = Preload(
            self._directories,
            policy=self._options.core_policy,
            most_pods=self._options.pods_per_gpu,
            ready=self._given,
            in_place=lambda: self._in_place,
            others=self._keeper.others,
            on_made=self._keeper.made,
        )
        self._mps = Mps(settings.host_root, root / "mps", clock=clock, on_change=self._changed)
        self.decided = asyncio.Event()
        """Set while it is known how it stands with what was taken last, and what agents before this one have left."""

    def attend(self, access: GpuAccess) -> None:
        """How containers get their GPU is known from there."""
        self._access = access

    def take(self, mode: NodeMode, gpus: Sequence[str], *, acts: bool, driven: bool) -> None:
        """The node's mode and GPUs (UUIDs); ``acts``: no newer agent keeps its programs instead; ``driven``: there is a
        driver that works."""
        if driven != self._driven:
            self._driven = driven
            self._woken.set()
        now = (mode, tuple(gpus), acts, self._in_place)
        if now != (self._mode, self._gpus, self._acts, self._looked_in_place):
            self._mode, self._gpus, self._acts, self._looked_in_place = now
            self.decided.clear()
            self._woken.set()

    def backend_of(self, mode: NodeMode) -> Backend:
        """What turns a share into what holds a container to it, on a node in ``mode``."""
        backends: dict[str, Backend] = {
            "none": self._none,
            "preload": self._preload,
            "mps": self._mps,
            "driver": self._driver,
        }
        return backends[self._backing_in(mode).kind]

    def shimmed(self, content: bytes) -> bytes | None:
        """A description of GPUs with our libraries in place; ``None`` where there is none to be."""
        release = self._release
        if release is None or self._intended.kind != "preload" or self._verdict.outcome == "failed":
            return None
        if self._shimmed is None or self._shimmed[:2] != (content, release):
            made: bytes | None = None
            try:
                made = shimmed(content, release.folder)
            except NotShimmed as error:
                logger.warning("%s; they are named in /etc/ld.so.preload instead", error)
            self._shimmed = (content, release, made)
        return self._shimmed[2]

    @property
    def active(self) -> str:
        """Which way is gone and why, for people: one line."""
        chosen = self._backing
        if chosen.kind != "preload":
            what = "driver (memory alone, by cgroup)" if chosen.kind == "driver" else chosen.kind
            return f"{what}: {chosen.why}" + (f"; but {self.trouble}" if self.trouble else "")
        untried = self._verdict.why if self._verdict.outcome == "skipped" and not self.trouble else ""
        faults = "; ".join(
            filter(
                None,
                (
                    self.trouble,
                    self._arbiter_fault,
                    untried and f"the libraries could not be tried on this node's driver ({untried})",
                ),
            )
        )
        behind = "; behind it the driver's own limits" if self._limits.offered else ""
        return f"preload ({self._way}{behind}): {chosen.why}" + (f"; but {faults}" if faults else "")

    @property
    def trouble(self) -> str:
        """Why no container could be held to its share, and what to do; empty when all can, or none need be."""
        kind = self._backing.kind
        if kind == "preload":
            return self._unfit
        if kind == "driver":
            return self._limits.trouble if self._driven else ""
        return self._mps.trouble if kind == "mps" and self._gpus else ""

    @property
    def fallen(self) -> str:
        """Why containers are not held to their share though this node's mode asks for it; empty when they are."""
        return self._fallen_in(self._mode)

    @property
    def alarm(self) -> str:
        """``trouble`` that people should hear of: not that of a beginning."""
        return "" if self.trouble in (_NOT_YET, NOT_LOOKED, LIMITS_NOT_LOOKED) else self.trouble

    def lacking(self) -> dict[str, str]:
        """GPUs whose containers could not be held to their share, by UUID, and why."""
        if self._backing.kind == "mps":
            return self._mps.lacking()
        if self._backing.kind == "driver" and not self.trouble:
            return self._limits.lacking()
        trouble = self.trouble
        return dict.fromkeys(self._gpus, trouble) if trouble else {}

    def directories(self) -> list[tuple[Claimed, Path]]:
        """Those of isolated containers, and whom they were made for; the oldest first."""
        return self._keeper.directories()

    @property
    def contexts_mib(self) -> Mapping[str, int]:
        """MiB that a CUDA context takes of a GPU, by UUID, as far as the node's containers have measured it."""
        return self._contexts_mib

    @property
    def by_driver(self) -> bool:
        """Whether the driver's own limits are to hold containers, alone or behind our libraries.

        Not beside MPS: it may end clients that are above a soft limit, and there would be none.
        """
        return self._backing.kind in ("preload", "driver")

    def pods_changed(self) -> None:
        """A pod may have gone."""
        self._keeper.look_soon()

    async def release(self, uid: str) -> None:
        """Take away what the claim of that UID was given; raises ``OSError``."""
        await self._keeper.release(uid)

    async def keep(self) -> None:
        """Take away what no pod uses, until cancelled. The node's pods must be known."""
        await self._keeper.run(self._settings.pace.sweep_s)

    @property
    def there(self) -> bool:
        """Whether anything of isolation is on this node."""
        return any(one.exists() for one in (self._libraries, self._directories.root, self._mps.folder))

    async def clear(self) -> None:
        """Take away for good what no pod uses; the agent leaves, and none comes after it."""
        self._cleared = True
        await asyncio.to_thread(self._mps.clear)
        if await self._keeper.clear():
            await asyncio.to_thread(remove_all, self._libraries, self._directories.root)

    async def run(self) -> None:
        """Keep all in order until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._mps.run(self._settings.pace.isolation_s))
            tasks.create_task(self._follow(tasks))
            tasks.create_task(self._follow_limits())

    @property
    def _unfit(self) -> str:
        """Why our libraries can hold nobody. That there is no driver is told as that, and no fault of theirs."""
        return "" if self._without_driver and not self._driven else self._trouble

    @property
    def _intended(self) -> Backing:
        return backing(self._options.asked, self._mode)

    @property
    def _backing(self) -> Backing:
        return self._backing_in(self._mode)

    def _backing_in(self, mode: NodeMode) -> Backing:
        fallen = self._fallen_in(mode)
        return cannot(mode, fallen) if fallen else backing(self._options.asked, mode)

    def _fallen_in(self, mode: NodeMode) -> str:
        """``fallen``, were the node in ``mode``.

        A node that could hold containers to their share and cannot now is in trouble instead: what it has given out is
        held, and nobody should get more than others by being late, or by filling a disk.
        """
        if self._options.asked is not AskedIsolation.AUTO:
            return ""
        kind = backing(self._options.asked, mode).kind
        if kind == "mps":
            return self._mps.unable if self._gpus else ""
        if kind == "none" or self._unfit == _NOT_YET:
            return ""
        return self._unfit if self._verdict.outcome == "failed" or not self._was_able else ""

    @property
    def _in_place(self) -> bool:
        access = self._access
        return (
            self._intended.kind == "preload"
            and access is not None
            and access.in_place
            and access.choice is not None
            and access.choice.way == "cdi"
        )

    @property
    def _way(self) -> str:
        return "in place of the driver's libraries, by CDI" if self._in_place else "by /etc/ld.so.preload"

    def _given(self) -> Ready:
        if self._trouble or self._ready is None:
            raise AllocationRefused("", f"no container can be held to its share: {self._trouble or _NOT_YET}")
        return self._ready

    async def _follow_limits(self) -> None:
        while True:
            await self._limits.changed()
            self._changed()

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        await self._keeper.adopt()
        self._was_able = self._keeper.keeps_any
        while True:
            self._woken.clear()
            await self._look()
            found_mib = await asyncio.to_thread(contexts_mib, self._keeper.directories())
            self._contexts_mib = {**self._contexts_mib, **found_mib}
            self._keep_arbiter(tasks)
            wants = self._acts and self._intended.kind == "mps" and not self._cleared
            # At the very beginning no GPU is known: that ends no daemon.
            self._mps.want(
                self._gpus if wants else (), acts=self._acts and bool(self._gpus) and not self._cleared
            )
            if not self._woken.is_set():
                self.decided.set()
            self._changed()
            try:
                async with asyncio.timeout(self._settings.pace.isolation_s):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _look(self) -> None:
        if self._intended.kind != "preload" or self._cleared:
            return
        before = self._release
        without_driver = False
        try:
            ready = await asyncio.to_thread(self._prepared, self._in_place)
            if self._acts:
                self._verdict = await self._trials.verdict(ready.release, self._gpus)
            if self._verdict.outcome == "failed":
                raise NodeAgentError(
                    "isolation libraries", f"they do not stand this node's driver: {self._verdict.why}"
                )
            self._ready = ready
            self._trouble = ""
            self._was_able = True
        except NoDriver as error:
            # With a new release comes a new description, which may say where the driver is.
            without_driver = self._release == before
            self._trouble = str(error) if without_driver else _NOT_YET
        except NodeAgentError as error:
            self._trouble = str(error)
        self._without_driver = without_driver
        if self._release != before and self._access is not None:
            self._access.look_again()

    def _prepared(self, in_place: bool) -> Ready:  # noqa: FBT001 - handed through a thread
        """Have all on the host that a container needs; raises ``NodeAgentError``. Called in a thread."""
        settings = self._settings
        self._release = self._delivered()
        try:
            if not self._probed or not self._directories.root.is_dir():
                self._probed = False
                self._directories.prepare()
                self._probed = True
        except OSError as error:
            raise NodeAgentError(
                f"--isolation-dir {self._options.folder}",
                f"it cannot be written: {error.strerror or error}; mount a folder of the node there",
            ) from None
        driver = None if in_place else driver_on_host(settings.driver_root, settings.host_root)
        return Ready(self._release, driver)

    def _delivered(self) -> Release:
        source = self._options.library_folder
        stamps = []
        for name in LIBRARIES:
            try:
                status = os.stat(source / name)
                stamps.append((status.st_ino, status.st_size, status.st_mtime_ns))
            except OSError:
                stamps.append((0, 0, 0))
        known = self._release
        if known is None or stamps != self._stamps or not is_whole(known):
            known = deliver(source, self._libraries)
            self._stamps = stamps
        hold(known)
        return known

    def _keep_arbiter(self, tasks: asyncio.TaskGroup) -> None:
        program = self._options.library_folder / ARBITER
        wanted = self._acts and self._intended.kind == "preload" and self._mode.limits_compute
        there = wanted and os.access(program, os.X_OK)
        if there and self._arbiter is None:
            child = Child(
                (str(program), "--containers", str(self._options.folder)),
                env={"PATH": os.defpath},
                clock=self._clock,
                on_change=self._changed,
            )
            self._arbiter = (child, tasks.create_task(child.run()))
        elif not there and self._arbiter is not None:
            self._arbiter[1].cancel()
            self._arbiter = None
        self._arbiter_fault = (
            f"{program} is not there, so each container paces itself" if wanted and not there else ""
        )

    def _changed(self) -> None:
        """Tell when anything reads otherwise."""
        if self._arbiter is not None:
            self._arbiter_fault = self._arbiter[0].fault
        reads = f"{self.active} {self.lacking()} {self._verdict.outcome} {self._contexts_mib}"
        if reads == self._told:
            return
        self._told = reads
        for kind in _KINDS:
            behind = kind == "driver" and self._backing.kind == "preload" and self._limits.offered
            active = kind == self._backing.kind or behind
            self._metrics.isolation.set(kind, self._options.asked.value, value=float(active))
        for outcome in OUTCOMES:
            tried = self._backing.kind == "preload" or bool(self.fallen)
            self._metrics.selftest.set(outcome, value=float(tried and outcome == self._verdict.outcome))
        logger.info("containers are held to their share by: %s", self.active)
        self._on_change()
