"""Prepares and unprepares ResourceClaims at the kubelet's request.

Repeated calls return the same result: a claim's directory is named after its UID and stays, with the memory accounts of running
containers, and everything else is derived from the claim. Files are written before the kubelet gets its response. Their order
ensures that a process that dies leaves nothing ambiguous: MIG instances, directory, then CDI file; MIG instances go first, then the CDI
file. During a rolling update two agents prepare claims of one node, and each follows what the other does by these files.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from gpushare.api import names
from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.device import Device
from gpushare.api.node.modes import NodeMode
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.nodeagent.allocate.allocator import GiveAccess
from gpushare.nodeagent.allocate.container_response import Backend, Grant, Injection, core_envs, memory_envs
from gpushare.nodeagent.dra.claim_files import ClaimedShare, ClaimFiles, PreparedClaim, qualified
from gpushare.nodeagent.dra.claim_instances import ClaimInstances
from gpushare.nodeagent.dra.claims import AllocatedDevice, ClaimReference, allocated_devices, shares_of
from gpushare.nodeagent.errors import AllocationRefused

logger = logging.getLogger(__name__)

#: The kubelet waits 45 s for a response. The API server, which the kubelet has just reached, gets less.
READ_S: Final = 10.0


class PreparedDevice(NamedTuple):
    """A device of a claim, and the CDI names that its containers receive."""

    allocated: AllocatedDevice
    cdi_devices: tuple[str, ...]


class ClaimPreparer:
    """``pool`` is the node's name; ``read_claim`` reads a claim's JSON from the API server; ``release`` removes a claim's directory."""

    def __init__(
        self,
        pool: str,
        files: ClaimFiles,
        instances: ClaimInstances,
        *,
        read_claim: Callable[[ClaimReference], Awaitable[bytes]],
        gpus: Callable[[], Sequence[Device]],
        backend_of: Callable[[NodeMode], Backend],
        give: GiveAccess,
        release: Callable[[str], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._files = files
        self._instances = instances
        self._read_claim = read_claim
        self._gpus = gpus
        self._backend_of = backend_of
        self._give = give
        self._release = release
        self._on_change = on_change
        self._prepared: dict[str, PreparedClaim] = {}
        self._turn = asyncio.Lock()

    async def adopt(self) -> None:
        """Load what earlier agents have prepared."""
        await asyncio.to_thread(self._files.sweep)
        await self.refresh()

    async def refresh(self) -> None:
        """Follow what another agent has prepared and unprepared meanwhile."""
        async with self._turn:
            await self._follow()

    async def _follow(self) -> None:
        try:
            found = await asyncio.to_thread(self._files.read)
        except OSError as error:
            logger.warning("files of ResourceClaims cannot be listed: %s", error)
            return
        before = self._prepared
        read = ((uid, entry or before.get(uid)) for uid, entry in found.items())
        self._prepared = {uid: entry for uid, entry in read if entry is not None}
        if self._prepared != before:
            self._on_change()

    @property
    def prepared(self) -> Mapping[str, PreparedClaim]:
        """Prepared claims, by UID."""
        return self._prepared

    async def prepare(self, claim: ClaimReference) -> list[PreparedDevice]:
        """What containers that use ``claim`` receive; raises ``AllocationRefused``."""
        async with self._turn:
            await self._follow()
            allocated, config = allocated_devices(await self._read(claim), claim, self._pool)
            earlier = self._prepared.get(claim.uid)
            is_new = earlier is None or (bool(earlier.instances) and not earlier.shares)
            instances = await self._created(claim, allocated)
            gpus = self._gpus()
            shares = shares_of(claim, allocated, gpus)
            grant = Grant(
                pod=claim.key,
                uid=claim.uid,
                container="",
                shares=shares,
                pod_units=sum(share.units for share in shares),
                mode=NodeMode.DRA,
                ids=(claim.uid,),
                compute_class=config.compute_class,
                compute_policy=config.core_policy,
            )
            monitors = allocated[0].admin_access
            held = () if monitors else shares
            prepared = PreparedClaim(
                claim,
                tuple(
                    ClaimedShare(share.uuid, share.mib, share.core_percent, config.core_policy)
                    for share in held
                ),
                instances,
            )
            # Before its directory exists, which would otherwise be collected as unused.
            before = self._prepared.get(claim.uid)
            self._prepared[claim.uid] = prepared
            try:
                cdi_names, injection = self._monitoring(shares) if monitors else await self._injection(grant)
                await asyncio.to_thread(self._files.write, prepared, injection)
            except (AllocationRefused, OSError) as error:
                if before is None:
                    del self._prepared[claim.uid]
                else:
                    self._prepared[claim.uid] = before
                if isinstance(error, AllocationRefused):
                    raise AllocationRefused(f"ResourceClaim {claim.key}", error.problem) from None
                raise AllocationRefused(
                    f"ResourceClaim {claim.key}", f"its CDI file cannot be written: {error.strerror or error}"
                ) from None
        if is_new:
            logger.info(
                "ResourceClaim %s: prepared with %s",
                claim.key,
                " and ".join(
                    (f"{share.mib} MiB of " if share.mib else "access to ")
                    + f"GPU {share.label}"
                    + (f" and {share.core_percent}% of its compute" if share.core_percent else "")
                    for share in shares
                ),
            )
            self._on_change()
        by_device = {gpu.offered_as: cdi_names[gpu.uuid] for gpu in gpus if gpu.uuid in cdi_names}
        return [
            PreparedDevice(device, (*by_device[device.device], qualified(claim.uid))) for device in allocated
        ]

    async def unprepare(self, claim: ClaimReference) -> None:
        """Undo ``prepare``, also for a claim that is gone; raises ``AllocationRefused``."""
        async with self._turn:
            await self._follow()
            await self._instances.destroy(claim, self._prepared)
            try:
                await asyncio.to_thread(self._files.remove, claim.uid)
                before = self._prepared.pop(claim.uid, None)
                await self._release(claim.uid)
            except OSError as error:
                raise AllocationRefused(
                    f"ResourceClaim {claim.key}", f"its files cannot be removed: {error.strerror or error}"
                ) from None
        if before is not None:
            logger.info("ResourceClaim %s: unprepared", claim.key)
            self._on_change()

    async def _created(self, claim: ClaimReference, allocated: Sequence[AllocatedDevice]) -> tuple[str, ...]:
        """Create the claim's MIG instances; who only monitors finds those that exist."""
        devices = [device.device for device in allocated if not device.admin_access]
        try:
            return await self._instances.create(claim, devices, self._prepared)
        except OSError as error:
            raise AllocationRefused(
                f"ResourceClaim {claim.key}", f"its CDI file cannot be written: {error.strerror or error}"
            ) from None

    def _monitoring(self, shares: Iterable[GpuShare]) -> tuple[dict[str, tuple[str, ...]], Injection]:
        """CDI names by GPU, and what is added to all of them, for containers that are not limited."""
        uuids = [share.uuid for share in shares]
        cdi_names = {uuid: self._give([uuid], in_place=False).cdi_devices for uuid in uuids}
        devices = self._give(uuids, in_place=False).devices
        return cdi_names, Injection({names.ENV_VISIBLE_DEVICES: ",".join(uuids)}, devices=devices)

    async def _injection(self, grant: Grant) -> tuple[dict[str, tuple[str, ...]], Injection]:
        """CDI names by GPU, and what is added to all of them."""
        backend = self._backend_of(grant.mode)
        in_place = backend.in_place
        uuids = [share.uuid for share in grant.shares]
        cdi_names = {uuid: self._give([uuid], in_place=in_place).cdi_devices for uuid in uuids}
        devices = self._give(uuids, in_place=in_place).devices
        added = await backend.inject(grant, in_place=in_place)
        compute = core_envs(grant) if grant.shares[0].core_percent else {}
        return cdi_names, Injection(
            memory_envs(grant) | compute | added.envs, added.mounts, (*devices, *added.devices)
        )

    async def _read(self, claim: ClaimReference) -> bytes:
        try:
            return await self._read_claim(claim)
        except ApiError as error:
            if error.not_found:
                raise AllocationRefused(f"ResourceClaim {claim.key}", "it does not exist any more") from None
            raise AllocationRefused(f"ResourceClaim {claim.key}", str(error)) from None
        except KubeError as error:
            raise AllocationRefused(f"ResourceClaim {claim.key}", str(error)) from None
