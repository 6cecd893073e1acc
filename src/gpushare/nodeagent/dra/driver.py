"""The DRA driver of a node within the node agent: slice, plugin and prepared claims together.

It starts when the node is in mode ``dra`` for the first time, or has claims from an earlier time in that mode, and runs until
the agent stops: the kubelet cannot terminate a pod whose claims are not unprepared.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.device import Device
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.client.session import Session, segment
from gpushare.kube.clock import Clock
from gpushare.nodeagent.allocate.allocator import GiveAccess
from gpushare.nodeagent.dra.claim_files import ClaimFiles, PreparedClaim
from gpushare.nodeagent.dra.claim_instances import ClaimInstances, InstanceMaker, instances_of
from gpushare.nodeagent.dra.claims import ClaimReference, claim_uid
from gpushare.nodeagent.dra.health import DeviceHealth
from gpushare.nodeagent.dra.partitions import counter_sets_of, partitions_of
from gpushare.nodeagent.dra.plugin import DraPlugin, PluginServer
from gpushare.nodeagent.dra.preparer import READ_S, ClaimPreparer
from gpushare.nodeagent.dra.publisher import SlicePublisher
from gpushare.nodeagent.dra.slices import Owner, devices_of
from gpushare.nodeagent.driver.discovery import DivisibleGpu
from gpushare.nodeagent.driver.nvml import Hardware
from gpushare.nodeagent.errors import AllocationRefused
from gpushare.nodeagent.isolation.controller import Isolation
from gpushare.nodeagent.settings import Settings

logger = logging.getLogger(__name__)


#: How long a GPU may be unresponsive before pods with claims on it are evicted: reopening a driver takes seconds.
EVICT_AFTER_S: Final = 60.0
#: Interval of the search for claims that are gone but were never unprepared: a kubelet that lost its state does not unprepare.
_SWEEP_S: Final = 600.0


class DraDriver:
    """``gpus`` are those that the driver finds, ``divisible`` those on which ``maker`` creates MIG instances.

    ``on_change`` is called when the value of any property changes.
    """

    def __init__(
        self,
        settings: Settings,
        session: Session,
        generation: int,
        *,
        gpus: Callable[[], Sequence[Device]],
        divisible: Callable[[], Sequence[DivisibleGpu]],
        maker: InstanceMaker,
        isolation: Isolation,
        give: GiveAccess,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self._session = session
        self._default = settings.default_share
        self._most_shares = settings.isolation.pods_per_gpu
        self._clock = clock
        files = ClaimFiles(settings.cdi_folders[-1])
        self._instances = ClaimInstances(maker, files, divisible=divisible, gpus=gpus)
        self._preparer = ClaimPreparer(
            settings.node,
            files,
            self._instances,
            read_claim=self._read_claim,
            gpus=gpus,
            backend_of=isolation.backend_of,
            give=give,
            release=isolation.release,
            on_change=on_change,
        )
        self._plugin = DraPlugin(self._preparer, self._registered)
        self._health = DeviceHealth(settings.node, clock)
        self._server = PluginServer(
            self._plugin,
            self._health,
            settings.plugins_registry,
            generation,
            clock=clock,
            on_change=on_change,
        )
        self._publisher = SlicePublisher(settings.node, session, clock=clock, on_change=on_change)
        self._on_change = on_change
        self._needed = asyncio.Event()
        self._lost_since: dict[str, float] = {}
        self._losing = asyncio.Event()
        self._outdated = asyncio.Event()

    async def adopt(self, lost_since_s: Mapping[str, float]) -> None:
        """Load what earlier agents have prepared, and take over since when GPUs (UUIDs) do not respond."""
        await self._preparer.adopt()
        self._lost_since = dict(lost_since_s)
        self._losing.set()
        if self.claims:
            self._needed.set()

    async def refresh(self) -> None:
        """Follow what another agent has prepared and unprepared meanwhile."""
        await self._preparer.refresh()
        if self.claims:
            self._needed.set()

    def refresh_soon(self) -> None:
        """Another agent came or left."""
        self._outdated.set()

    def _registered(self) -> None:
        # Until now the kubelet has called another agent.
        self.refresh_soon()
        self._on_change()

    def offer(
        self,
        owner: Owner | None,
        gpus: Sequence[Device],
        lost: Collection[str],
        hardware: Mapping[str, Hardware],
        held: Mapping[str, Sequence[GpuShare]],
        divisible: Sequence[DivisibleGpu] = (),
    ) -> None:
        """Offer the node's GPUs, and report their health; no ``owner``: the node is in another mode, and offers none.

        ``lost`` (UUIDs) do not respond now; ``held``: by UUID, shares of pods from before the node's mode changed.
        """
        self._health.update(gpus)
        self._instances.changed()
        dead = self._dead(lost)
        if owner is None:
            self._publisher.want(None, ())
            return
        self._needed.set()
        existing = devices_of(
            [gpu for gpu in gpus if not gpu.claim_device],
            hardware,
            self._most_shares,
            dead,
            held,
            self._default,
        )
        partitions = partitions_of(divisible, self.instances, self._most_shares, dead, self._default)
        self._publisher.want(owner, existing + partitions, counter_sets_of(divisible))

    def _dead(self, lost: Collection[str]) -> Collection[str]:
        """GPUs that have not responded for ``EVICT_AFTER_S``; ``on_change`` is called when this has changed."""
        now_s = self._clock.monotonic()
        if not self._lost_since.keys() >= set(lost):
            self._losing.set()
        self._lost_since = {gpu: self._lost_since.get(gpu, now_s) for gpu in lost}
        return {gpu for gpu, since_s in self._lost_since.items() if now_s - since_s >= EVICT_AFTER_S}

    @property
    def lost_since_s(self) -> Mapping[str, float]:
        """Since when GPUs (UUIDs) do not respond."""
        return dict(self._lost_since)

    def rest(self) -> None:
        """Stop maintaining the slice, because a newer agent does."""
        self._publisher.rest()

    @property
    def claims(self) -> Mapping[str, PreparedClaim]:
        """Prepared claims, by UID."""
        return self._preparer.prepared

    @property
    def instances(self) -> Collection[str]:
        """The MIG instances that were created for claims, by the names of their devices."""
        return instances_of(self._preparer.prepared.values())

    def held(self) -> Mapping[str, str]:
        """GPUs (UUIDs) of which prepared claims have a share, and why they are not allocated in another mode."""
        return {
            share.gpu: f"shared by ResourceClaim {prepared.claim.key} since before the node's mode changed, until it is released"
            for prepared in self._preparer.prepared.values()
            for share in prepared.shares
        }

    @property
    def trouble(self) -> str:
        """Why no claim can be allocated or prepared on this node, and what to do; empty if they can."""
        if self._plugin.refusal:
            return f"the kubelet refuses the driver: {self._plugin.refusal}"
        return self._server.fault or self._publisher.fault

    @property
    def missing(self) -> list[str]:
        """What is not ready, one text each."""
        missing = [] if self._plugin.registered else ["DRA driver not registered with the kubelet"]
        return [*missing, "no ResourceSlice published"] if self._publisher.missing else missing

    async def run(self) -> None:
        """Serve from the time when it is first needed, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_others())
            await self._needed.wait()
            for part in (self._server.run(), self._publisher.run(), self._sweep(), self._follow_losses()):
                tasks.create_task(part)

    async def _follow_others(self) -> None:
        while True:
            await self._outdated.wait()
            self._outdated.clear()
            await self.refresh()

    async def _follow_losses(self) -> None:
        while True:
            await self._losing.wait()
            now_s = self._clock.monotonic()
            ages_s = (now_s - since_s for since_s in self._lost_since.values())
            left_s = [EVICT_AFTER_S - age_s for age_s in ages_s if age_s < EVICT_AFTER_S]
            if not left_s:
                self._losing.clear()
                continue
            await self._clock.sleep(min(left_s))
            self._on_change()

    async def _sweep(self) -> None:
        gone: set[str] = set()
        while True:
            claims = [one.claim for one in self._preparer.prepared.values()]
            before, gone = gone, {one.uid for one in claims if await self._is_gone(one)}
            # Only if gone in two passes: a kubelet may be about to unprepare it.
            for claim in claims:
                if claim.uid in gone & before:
                    logger.warning("ResourceClaim %s is gone and was never unprepared", claim.key)
                    try:
                        await self._preparer.unprepare(claim)
                    except AllocationRefused as refusal:
                        logger.warning("%s", refusal)
            await self._clock.sleep(_SWEEP_S)

    async def _is_gone(self, claim: ClaimReference) -> bool:
        try:
            return claim_uid(await self._read_claim(claim)) != claim.uid
        except ApiError as error:
            return error.not_found
        except (KubeError, ValueError, RecursionError):
            return False

    def _read_claim(self, claim: ClaimReference) -> Awaitable[bytes]:
        path = f"/apis/resource.k8s.io/v1/namespaces/{segment(claim.namespace)}/resourceclaims/{segment(claim.name)}"
        return self._session.request("GET", path, timeout_s=READ_S)
