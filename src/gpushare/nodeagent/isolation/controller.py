"""The isolation backend of this node: which one is active, why, and what is wrong with it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from gpushare.api.node.modes import NodeMode
from gpushare.kube.clock import Clock
from gpushare.nodeagent.allocate.container_response import Backend, Grant, NoIsolation
from gpushare.nodeagent.isolation.backend_selection import Backing, backing, cannot
from gpushare.nodeagent.isolation.backends.arbiter import Arbiter
from gpushare.nodeagent.isolation.backends.cdi_overlay import NotShimmed, shimmed
from gpushare.nodeagent.isolation.backends.driver_limits import NOT_FOR_CLAIMS, DriverAlone, DriverLimits
from gpushare.nodeagent.isolation.backends.driver_limits import NOT_LOOKED as LIMITS_NOT_LOOKED
from gpushare.nodeagent.isolation.backends.mps import NOT_LOOKED, Mps
from gpushare.nodeagent.isolation.backends.preload import Preload
from gpushare.nodeagent.isolation.backends.preload_readiness import NOT_CHECKED, PreloadReadiness
from gpushare.nodeagent.isolation.options import AskedIsolation
from gpushare.nodeagent.isolation.selftest.context_cost import contexts_mib
from gpushare.nodeagent.isolation.selftest.selftest import OUTCOMES
from gpushare.nodeagent.isolation.storage.directories import Directories
from gpushare.nodeagent.isolation.storage.files import Claimed
from gpushare.nodeagent.isolation.storage.garbage_collector import Keeper
from gpushare.nodeagent.isolation.storage.libraries import Release, remove_all
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare.nodeagent.reconcile.pod_resources import Listing
from gpushare.nodeagent.runtime.cdi.gpu_access import GpuAccess
from gpushare.nodeagent.settings import Settings

logger = logging.getLogger(__name__)

_KINDS: Final = ("none", "preload", "mps", "driver")


class Isolation:
    """``on_change`` is called, in the event loop, when ``active``, ``trouble``, ``fallen``, ``lacking`` or ``contexts_mib`` changed.

    ``on_made`` is called when a container got its directory; for ``needs_allowance`` see ``Preload``,
    for ``live`` and ``refresh`` ``Keeper``.
    """

    def __init__(
        self,
        settings: Settings,
        listing: Listing,
        limits: DriverLimits,
        *,
        live: Callable[[], Collection[str]],
        refresh: Callable[[], Awaitable[None]],
        metrics: Metrics,
        clock: Clock,
        on_change: Callable[[], None],
        on_made: Callable[[], None],
        needs_allowance: Callable[[Grant], bool],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._on_change = on_change
        self._metrics = metrics
        self._mode = NodeMode.DEFAULT
        self._gpus: tuple[str, ...] = ()
        self._acts = True
        self._driven = True
        self._unused: frozenset[str] | None = None
        self._access: GpuAccess | None = None
        self._looked_in_place = False
        self._cleared = False
        self._shimmed: tuple[bytes, Release, bytes | None] | None = None
        self._contexts_mib: Mapping[str, int] = {}
        self._reported = ""
        self._woken = asyncio.Event()
        self._options = settings.isolation
        root = self._options.folder.parent
        self._libraries = root / "lib"
        self._directories = Directories(self._options.folder)
        self._readiness = PreloadReadiness(settings, self._directories, self._libraries, clock=clock)
        self._arbiter = Arbiter(self._options, clock=clock, on_change=self._changed)
        self._keeper = Keeper(
            self._directories,
            self._libraries,
            listing,
            live=live,
            refresh=refresh,
            library=lambda: self._readiness.release.name if self._readiness.release is not None else "",
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
            ready=self._readiness.ready,
            in_place=lambda: self._in_place,
            others=self._keeper.others,
            on_made=self._made,
            on_failed=self._directory_failed,
            # Without samples nobody would know what is used.
            may_burst=self._options.watch.policy != "off",
            needs_allowance=needs_allowance,
        )
        self._on_made = on_made
        self._mps = Mps(settings.host_root, root / "mps", clock=clock, on_change=self._changed)
        self.decided = asyncio.Event()
        """Set while the state for the last ``take``, and what previous agents left, is known."""

    def attend(self, access: GpuAccess) -> None:
        """Use ``access`` to know how containers get their GPU."""
        self._access = access

    def take(
        self,
        mode: NodeMode,
        gpus: Sequence[str],
        *,
        acts: bool,
        driven: bool,
        unused: frozenset[str] | None = None,
    ) -> None:
        """The node's mode and GPUs (UUIDs); ``acts``: no newer agent runs its programs instead; ``driven``: there is a
        working driver. ``unused``: those that no pod holds, if our programs must leave the driver; else ``None``."""
        if driven != self._driven:
            self._driven = driven
            self._woken.set()
        now = (mode, tuple(gpus), acts, self._in_place, unused)
        if now != (self._mode, self._gpus, self._acts, self._looked_in_place, self._unused):
            self._mode, self._gpus, self._acts, self._looked_in_place, self._unused = now
            self.decided.clear()
            self._woken.set()

    def backend_of(self, mode: NodeMode) -> Backend:
        """The backend that enforces shares on a node in ``mode``."""
        backends: dict[str, Backend] = {
            "none": self._none,
            "preload": self._preload,
            "mps": self._mps,
            "driver": self._driver,
        }
        return backends[self._backing_in(mode).kind]

    def shimmed(self, content: bytes) -> bytes | None:
        """A CDI spec with our libraries in place of the driver's; ``None`` if none is wanted."""
        release = self._readiness.release
        if release is None or self._intended.kind != "preload" or self._readiness.verdict.outcome == "failed":
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
        """The active backend and why, for people: one line."""
        chosen = self._backing
        if chosen.kind != "preload":
            what = "driver (memory only, by cgroup)" if chosen.kind == "driver" else chosen.kind
            return f"{what}: {chosen.why}" + (f"; but {self.trouble}" if self.trouble else "")
        untried = (
            self._readiness.verdict.why
            if self._readiness.verdict.outcome == "skipped" and not self.trouble
            else ""
        )
        faults = "; ".join(
            filter(
                None,
                (
                    self.trouble,
                    self._arbiter.fault,
                    untried and f"the libraries could not be tested on this node's driver ({untried})",
                ),
            )
        )
        behind = "; backed by the driver's own limits" if self._limits.offered else ""
        return f"preload ({self._way}{behind}): {chosen.why}" + (f"; but {faults}" if faults else "")

    @property
    def trouble(self) -> str:
        """Why no container can be isolated, and what to do; empty when all can, or none need be."""
        kind = self._backing.kind
        if kind == "preload":
            return self._unfit
        if kind == "driver" and self._mode.claims:
            return NOT_FOR_CLAIMS
        if kind == "driver":
            return self._limits.trouble if self._driven else ""
        return self._mps.trouble if kind == "mps" and self._gpus else ""

    @property
    def fallen(self) -> str:
        """Why containers are not isolated although this node's mode requires it; empty when they are."""
        return self._fallen_in(self._mode)

    @property
    def alarm(self) -> str:
        """``trouble`` that is to be reported: not that during startup."""
        return "" if self.trouble in (NOT_CHECKED, NOT_LOOKED, LIMITS_NOT_LOOKED) else self.trouble

    def lacking(self) -> dict[str, str]:
        """GPUs whose containers cannot be isolated, by UUID, and why."""
        if self._backing.kind == "mps":
            return self._mps.lacking()
        if self._backing.kind == "driver" and not self.trouble:
            return self._limits.lacking()
        trouble = self.trouble
        return dict.fromkeys(self._gpus, trouble) if trouble else {}

    def directories(self) -> list[tuple[Claimed, Path]]:
        """The directories of isolated containers, oldest first."""
        return self._keeper.directories()

    @property
    def contexts_mib(self) -> Mapping[str, int]:
        """MiB that a CUDA context takes of a GPU, by UUID, as measured by the node's containers."""
        return self._contexts_mib

    @property
    def by_driver(self) -> bool:
        """Whether the driver's own limits apply, as the only limits or in addition to our libraries.

        Not with MPS: it may end clients that are above a soft limit, and there would be none.
        """
        return self._backing.kind in ("preload", "driver")

    def _made(self, folder: Path, claimed: Claimed) -> None:
        self._keeper.made(folder, claimed)
        self._on_made()

    def _directory_failed(self) -> None:
        self._readiness.directory_failed()
        self._woken.set()

    def pods_changed(self) -> None:
        """A pod may have gone."""
        self._keeper.look_soon()

    async def release(self, uid: str) -> None:
        """Remove what was created for the claim with that UID; raises ``OSError``."""
        await self._keeper.release(uid)

    async def keep(self) -> None:
        """Remove what no pod uses, until cancelled. The node's pods must be known."""
        await self._keeper.run(self._settings.pace.sweep_s)

    @property
    def there(self) -> bool:
        """Whether anything of isolation is on this node."""
        return any(one.exists() for one in (self._libraries, self._directories.root, self._mps.folder))

    async def clear(self) -> None:
        """Remove permanently what no pod uses: gpushare is being uninstalled."""
        self._cleared = True
        await asyncio.to_thread(self._mps.clear)
        if await self._keeper.clear():
            await asyncio.to_thread(remove_all, self._libraries, self._directories.root)

    async def run(self) -> None:
        """Run the backends until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._mps.run(self._settings.pace.isolation_s))
            tasks.create_task(self._follow(tasks))
            tasks.create_task(self._follow_limits())

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

        A node that could isolate before and cannot now is in trouble instead: earlier containers are limited, and none should get
        more by being late, or by filling a disk.
        """
        if self._options.asked is not AskedIsolation.AUTO:
            return ""
        kind = backing(self._options.asked, mode).kind
        if kind == "mps":
            return self._mps.unable if self._gpus else ""
        if kind == "none" or self._unfit == NOT_CHECKED:
            return ""
        return (
            self._unfit
            if self._readiness.verdict.outcome == "failed" or not self._readiness.was_ready
            else ""
        )

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

    async def _follow_limits(self) -> None:
        while True:
            await self._limits.changed()
            self._changed()

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        await self._keeper.adopt()
        self._readiness.was_ready = self._keeper.keeps_any
        while True:
            self._woken.clear()
            await self._check_libraries()
            found_mib = await asyncio.to_thread(contexts_mib, self._keeper.directories())
            self._contexts_mib = {**self._contexts_mib, **found_mib}
            limits_compute = self._intended.kind == "preload" and self._mode.limits_compute
            self._arbiter.keep(tasks, wanted=self._acts and limits_compute)
            wants = self._acts and self._intended.kind == "mps" and not self._cleared
            served = [gpu for gpu in self._gpus if gpu not in (self._unused or ())]
            # At startup no GPU is known yet: that must not stop daemons.
            self._mps.want(
                served if wants else (), acts=self._acts and bool(self._gpus) and not self._cleared
            )
            if not self._woken.is_set():
                self.decided.set()
            self._changed()
            try:
                async with asyncio.timeout(self._settings.pace.isolation_s):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _check_libraries(self) -> None:
        if self._intended.kind == "preload" and not self._cleared:
            tests = self._acts and self._unused is None
            other = await self._readiness.check(self._gpus, in_place=self._in_place, acts=tests)
            if other and self._access is not None:
                self._access.look_again()

    @property
    def _unfit(self) -> str:
        """Why our libraries cannot isolate any container. A missing driver is reported as that, and is not their fault."""
        return "" if self._readiness.lacks_driver and not self._driven else self._readiness.trouble

    def _changed(self) -> None:
        """Report whatever changed."""
        reads = f"{self.active} {self.lacking()} {self._readiness.verdict.outcome} {self._contexts_mib}"
        if reads == self._reported:
            return
        self._reported = reads
        for kind in _KINDS:
            behind = kind == "driver" and self._backing.kind == "preload" and self._limits.offered
            active = kind == self._backing.kind or behind
            self._metrics.isolation.set(kind, self._options.asked.value, value=float(active))
        for outcome in OUTCOMES:
            tried = self._backing.kind == "preload" or bool(self.fallen)
            self._metrics.selftest.set(
                outcome, value=float(tried and outcome == self._readiness.verdict.outcome)
            )
        logger.info("limits are enforced by: %s", self.active)
        self._on_change()
