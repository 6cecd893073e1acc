"""Answers the kubelet for whole GPUs, which it gives to one container alone whatever is said."""

from collections.abc import Sequence

from gpushare.api import names
from gpushare.nodeagent.allocate.allocator import Allocator, Giving
from gpushare.nodeagent.allocate.container_response import Injection
from gpushare.nodeagent.allocate.exclusive_gpus import ExclusiveGpus
from gpushare.nodeagent.allocate.matcher import ClaimBook
from gpushare.nodeagent.deviceplugin.device_ids import in_order
from gpushare.nodeagent.errors import ClaimRefused, UnknownDeviceId


class WholeAllocator:
    """In turn with ``allocator``, which answers for shares."""

    def __init__(self, allocator: Allocator, book: ClaimBook, whole: ExclusiveGpus, give: Giving) -> None:
        self._allocator = allocator
        self._book = book
        self._whole_gpus = whole
        self._give = give

    async def prefer(
        self, resource: str, amount: int, available: Sequence[str], must: Sequence[str]
    ) -> list[str]:
        """The IDs that the kubelet should take."""
        return self._whole_gpus.prefer(self._book.node, self._book.ids, amount, available, must)

    async def allocate(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Injection]:
        """What each of ``containers`` gets with its IDs; all or none. Raises ``ClaimRefused``."""
        return await self._allocator.in_turn(resource, containers, self._answers)

    async def _answers(self, resource: str, containers: Sequence[Sequence[str]]) -> list[Injection]:
        return [self._answer(resource, ids) for ids in containers]

    def _answer(self, resource: str, ids: Sequence[str]) -> Injection:
        try:
            uuids = [self._book.ids.gpu_of(device_id) for device_id in in_order(ids)]
            access = self._give(uuids)
        except (UnknownDeviceId, ClaimRefused) as error:
            refusal = ClaimRefused(error.subject, error.problem)
            raise self._allocator.refused(resource, len(ids), refusal) from None
        return Injection(
            envs={names.ENV_VISIBLE_DEVICES: ",".join(uuids)},
            annotations=dict(access.annotations or {}),
            cdi_devices=access.cdi_devices,
        )
