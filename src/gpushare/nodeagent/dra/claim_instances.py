"""MIG instances of claims: created when the first claim is prepared that was allocated one, destroyed when the last is unprepared.

An instance is recorded in the claim's file before it is created, and the record goes after it was destroyed. So an agent that follows
one that was killed anywhere in between knows which instances are ours: those of recorded claims. The kubelet repeats the call, and
placements say what exists already. All others belong to somebody else.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Protocol

from gpushare.api.node.device import Device
from gpushare.nodeagent.dra.claim_files import ClaimFiles, PreparedClaim
from gpushare.nodeagent.dra.claims import ClaimReference
from gpushare.nodeagent.driver.discovery import DivisibleGpu
from gpushare.nodeagent.driver.placements import Placement, PlacementTaken, placement_named
from gpushare.nodeagent.errors import AllocationRefused, NvmlFailed

#: How long a new instance may take until containers can get it. The kubelet waits 45 s for all of a claim's.
_READY_S: Final = 15.0


class InstanceMaker(Protocol):
    """Creates and destroys MIG instances; the GPUs are read again before either returns."""

    async def create_instance(self, placement: Placement, *, ours: bool) -> None:
        """Unless it exists and is ``ours``; raises ``PlacementTaken``, ``NvmlFailed``."""

    async def destroy_instance(self, placement: Placement) -> None:
        """If it exists; raises ``NvmlFailed``."""


class ClaimInstances:
    """``divisible`` are the GPUs on which instances are created; ``gpus`` all that containers can get, with instances that exist."""

    def __init__(
        self,
        maker: InstanceMaker,
        files: ClaimFiles,
        *,
        divisible: Callable[[], Sequence[DivisibleGpu]],
        gpus: Callable[[], Sequence[Device]],
    ) -> None:
        self._maker = maker
        self._files = files
        self._divisible = divisible
        self._gpus = gpus
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """The GPUs may have changed."""
        self._changed.set()

    async def create(
        self, claim: ClaimReference, devices: Iterable[str], prepared: dict[str, PreparedClaim]
    ) -> tuple[str, ...]:
        """Have those of the allocated ``devices`` that are placements as GPUs of the node; returns their names.

        ``prepared`` has the records of all claims by UID, and gets that of this one. Raises ``AllocationRefused``, ``OSError``.
        """
        names = tuple(dict.fromkeys(name for name in devices if placement_named(name) is not None))
        placements = {one.name: one for gpu in self._divisible() for one in gpu.placements}
        occupied = {one.name for gpu in self._divisible() for one in gpu.occupied}
        for name in names:
            if name not in placements:
                raise _refused(claim, f"the node has no GPU {name} now")
            ours = name in instances_of(prepared.values())
            if name in occupied and not ours:
                raise _refused(claim, str(PlacementTaken(str(placements[name]))))
            before = prepared.get(claim.uid, PreparedClaim(claim, ()))
            if name not in before.instances:
                prepared[claim.uid] = before._replace(instances=(*before.instances, name))
                await asyncio.to_thread(self._files.begin, prepared[claim.uid])
            try:
                await self._maker.create_instance(placements[name], ours=ours)
            except PlacementTaken as error:
                prepared[claim.uid] = before
                await asyncio.to_thread(self._files.begin, before)
                raise _refused(claim, str(error)) from None
            except NvmlFailed as error:
                raise _refused(claim, f"{error.subject} cannot be created: {error.problem}") from None
        if names:
            await self._wait_for(claim, names)
        return names

    async def destroy(self, claim: ClaimReference, prepared: dict[str, PreparedClaim]) -> None:
        """Destroy the instances that no claim but this one has; raises ``AllocationRefused``."""
        if claim.uid not in prepared:
            return
        others = instances_of(one for uid, one in prepared.items() if uid != claim.uid)
        for name in prepared[claim.uid].instances:
            placement = placement_named(name)
            if placement is None or name in others:
                continue
            try:
                await self._maker.destroy_instance(placement)
            except NvmlFailed as error:
                raise _refused(claim, f"{error.subject} cannot be destroyed: {error.problem}") from None

    async def _wait_for(self, claim: ClaimReference, names: Collection[str]) -> None:
        """Until containers can get the new instances: they are found, and described for CDI."""
        missing: dict[str, str] = {}
        try:
            async with asyncio.timeout(_READY_S):
                while True:
                    self._changed.clear()
                    gpus = {gpu.offered_as: gpu for gpu in self._gpus()}
                    missing = {
                        name: gpus[name].reason if name in gpus else "NVML has not found it yet"
                        for name in names
                        if name not in gpus or not gpus[name].healthy
                    }
                    if not missing:
                        return
                    await self._changed.wait()
        except TimeoutError:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
            raise _refused(
                claim, f"its MIG instances were created and cannot be used yet ({reasons})"
            ) from None


def instances_of(prepared: Iterable[PreparedClaim]) -> set[str]:
    """The names of all MIG instances that were created for these claims."""
    return {name for one in prepared for name in one.instances}


def _refused(claim: ClaimReference, problem: str) -> AllocationRefused:
    return AllocationRefused(f"ResourceClaim {claim.key}", problem)
