"""Handles the kubelet's calls for whole GPUs, which it allocates to one container exclusively in any case."""

from collections.abc import Sequence

from gpushare.api import names
from gpushare.nodeagent.allocate.allocator import Allocator, GiveAccess
from gpushare.nodeagent.allocate.container_response import Injection
from gpushare.nodeagent.allocate.exclusive_pods import ExclusivePods
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.deviceplugin.device_ids import in_order
from gpushare.nodeagent.errors import AllocationRefused, UnknownDeviceId


class WholeAllocator:
    """Takes turns with ``allocator``, which handles shares."""

    def __init__(
        self, allocator: Allocator, book: NodeAllocations, exclusive: ExclusivePods, give: GiveAccess
    ) -> None:
        self._allocator = allocator
        self._book = book
        self._exclusive = exclusive
        self._give = give

    async def prefer(
        self, resource: str, amount: int, available: Sequence[str], must: Sequence[str]
    ) -> list[str]:
        """The IDs to take."""
        return self._exclusive.prefer(self._book.node, self._book.ids, amount, available, must)

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Injection]:
        """What each of ``containers`` gets with its IDs; all or none. Raises ``AllocationRefused``."""
        return await self._allocator.in_turn(resource, containers, self._allocate)

    async def _allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Injection]:
        return [self._injection(resource, ids) for ids in containers]

    def _injection(self, resource: str, ids: Sequence[str]) -> Injection:
        try:
            uuids = [self._book.ids.gpu_of(device_id) for device_id in in_order(ids)]
            access = self._give(uuids)
        except (UnknownDeviceId, AllocationRefused) as error:
            refusal = AllocationRefused(error.subject, error.problem)
            raise self._allocator.refused(resource, len(ids), refusal) from None
        return Injection(
            envs={names.ENV_VISIBLE_DEVICES: ",".join(uuids)},
            devices=access.devices,
            annotations=dict(access.annotations or {}),
            cdi_devices=access.cdi_devices,
        )
