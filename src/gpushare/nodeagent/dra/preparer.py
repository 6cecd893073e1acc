"""Prepares ResourceClaims and takes that back, as the kubelet asks.

Asked again, a claim gets the same answer: its directory has its UID as name and stays with the sums that running containers
have in it, and all else follows from the claim. What is written is there before the kubelet is answered, in an order in which
a process that dies leaves nothing that another one could mistake: directory, then CDI file; and the file goes first.
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
from gpushare.nodeagent.dra.claim_files import ClaimFiles, PreparedClaim, qualified
from gpushare.nodeagent.dra.claims import AllocatedDevice, ClaimReference, allocated_devices, shares_of
from gpushare.nodeagent.errors import AllocationRefused

logger = logging.getLogger(__name__)

#: The kubelet waits 45 s for an answer; the API server, which has just answered the kubelet, gets less.
READ_S: Final = 10.0


class PreparedDevice(NamedTuple):
    """A device of a claim, and the CDI names by which containers get it."""

    allocated: AllocatedDevice
    cdi_devices: tuple[str, ...]


class ClaimPreparer:
    """``pool`` is the node's name; ``read_claim`` reads a claim's JSON from the API server; ``release`` removes a claim's directory."""

    def __init__(
        self,
        pool: str,
        files: ClaimFiles,
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
        self._read_claim = read_claim
        self._gpus = gpus
        self._backend_of = backend_of
        self._give = give
        self._release = release
        self._on_change = on_change
        self._prepared: dict[str, PreparedClaim] = {}
        self._turn = asyncio.Lock()

    async def adopt(self) -> None:
        """Know what agents before this one have prepared."""
        await asyncio.to_thread(self._files.sweep)
        found = await asyncio.to_thread(lambda: list(self._files.read()))
        self._prepared = {one.claim.uid: one for one in found}

    @property
    def prepared(self) -> Mapping[str, PreparedClaim]:
        """The claims that are prepared, by UID."""
        return self._prepared

    async def prepare(self, claim: ClaimReference) -> list[PreparedDevice]:
        """What containers that use ``claim`` get; raises ``AllocationRefused``."""
        async with self._turn:
            allocated, config = allocated_devices(await self._read(claim), claim, self._pool)
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
            prepared = PreparedClaim(claim, () if monitors else tuple(share.uuid for share in shares))
            # Before its directory is there, which would else be taken for one that nobody uses.
            known = self._prepared.get(claim.uid)
            self._prepared[claim.uid] = prepared
            try:
                cdi_names, injection = self._monitoring(shares) if monitors else await self._injection(grant)
                await asyncio.to_thread(self._files.write, prepared, injection)
            except (AllocationRefused, OSError) as error:
                if known is None:
                    del self._prepared[claim.uid]
                if isinstance(error, AllocationRefused):
                    raise AllocationRefused(f"ResourceClaim {claim.key}", error.problem) from None
                raise AllocationRefused(
                    f"ResourceClaim {claim.key}", f"its CDI file cannot be written: {error.strerror or error}"
                ) from None
        if known is None:
            logger.info(
                "ResourceClaim %s: prepared with %s",
                claim.key,
                " and ".join(
                    (f"{share.mib} MiB of " if share.mib else "access to ")
                    + f"GPU {share.index}"
                    + (f" and {share.core_percent}% of its compute" if share.core_percent else "")
                    for share in shares
                ),
            )
            self._on_change()
        by_device = {gpu.uuid.lower(): cdi_names[gpu.uuid] for gpu in gpus if gpu.uuid in cdi_names}
        return [PreparedDevice(one, (*by_device[one.device], qualified(claim.uid))) for one in allocated]

    async def unprepare(self, claim: ClaimReference) -> None:
        """Take back what ``prepare`` made, also for a claim that is gone; raises ``AllocationRefused``."""
        async with self._turn:
            try:
                await asyncio.to_thread(self._files.remove, claim.uid)
                known = self._prepared.pop(claim.uid, None)
                await self._release(claim.uid)
            except OSError as error:
                raise AllocationRefused(
                    f"ResourceClaim {claim.key}", f"its files cannot be removed: {error.strerror or error}"
                ) from None
        if known is not None:
            logger.info("ResourceClaim %s: unprepared", claim.key)
            self._on_change()

    def _monitoring(self, shares: Iterable[GpuShare]) -> tuple[dict[str, tuple[str, ...]], Injection]:
        """CDI names by GPU, and what comes with them all, for containers that are not limited."""
        uuids = [share.uuid for share in shares]
        cdi_names = {uuid: self._give([uuid], in_place=False).cdi_devices for uuid in uuids}
        return cdi_names, Injection({names.ENV_VISIBLE_DEVICES: ",".join(uuids)})

    async def _injection(self, grant: Grant) -> tuple[dict[str, tuple[str, ...]], Injection]:
        """CDI names by GPU, and what comes with them all."""
        backend = self._backend_of(grant.mode)
        in_place = backend.in_place
        uuids = [share.uuid for share in grant.shares]
        cdi_names = {uuid: self._give([uuid], in_place=in_place).cdi_devices for uuid in uuids}
        added = await backend.inject(grant, in_place=in_place)
        compute = core_envs(grant) if grant.shares[0].core_percent else {}
        return cdi_names, Injection(memory_envs(grant) | compute | added.envs, added.mounts, added.devices)

    async def _read(self, claim: ClaimReference) -> bytes:
        try:
            return await self._read_claim(claim)
        except ApiError as error:
            if error.not_found:
                raise AllocationRefused(f"ResourceClaim {claim.key}", "it does not exist any more") from None
            raise AllocationRefused(f"ResourceClaim {claim.key}", str(error)) from None
        except KubeError as error:
            raise AllocationRefused(f"ResourceClaim {claim.key}", str(error)) from None
