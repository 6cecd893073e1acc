"""Equal pods with one GPU per container, admitted in any order while records are written: no pod is refused."""

import asyncio
import random
from collections.abc import Sequence
from typing import Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.api.request.request import Request
from gpushare.nodeagent.allocate.grant_log import DeviceListing
from gpushare.nodeagent.allocate.pod_allocations import allocated_pod
from gpushare.nodeagent.deviceplugin.device_ids import CORE_PER_GPU
from gpushare.nodeagent.errors import AllocationRefused
from tests.randomized import rounds
from tests.unit.nodeagent.allocate.allocated_pods import APP, allocated, request
from tests.unit.nodeagent.allocate.test_equal_pods_in_any_order import UNITS_OF_A_GPU, Node, Wish

CONTAINERS: Final = ("c0", "c1")
# : The two GPUs for which pods are allocated: every GPU has equally many of them.
APART: Final = ((0, 1), (2, 3))
OVERLAPPING: Final = ((0, 1), (1, 2), (2, 3), (3, 0))
PLACES: Final = [
    pytest.param(places * times, id=f"{len(places) * times} pods, {words}")
    for places, words in ((APART, "apart"), (OVERLAPPING, "overlapping"))
    for times in (1, 2)
]


def wanted(wish: Wish) -> Request:
    """A request of containers with equal amounts."""
    both = request(*[(APP, *wish)] * len(CONTAINERS))
    units, core_percent = wish
    return msgspec.structs.replace(
        both, memory_units=units, core_percent=core_percent, gpu_count=len(CONTAINERS), apart=True
    )


class Apart(Node):
    """The same node, for pods of two containers; ``lists_whole``: its kubelet lists a pod only once it has all it requests."""

    def __init__(self, slow: random.Random, *, lists_whole: bool) -> None:
        super().__init__(slow)
        self.lists_whole = lists_whole

    @property
    def held_by_others(self) -> dict[str, str]:
        return {}

    async def read(self, timeout_s: float) -> DeviceListing:
        listing = await super().read(timeout_s)
        if not self.lists_whole:
            return listing
        return {key: its for key, its in listing.items() if len({name for name, _ in its}) == len(CONTAINERS)}

    def bind_apart(self, name: str, wish: Wish, gpus: Sequence[int]) -> str:
        limits = {resource: str(amount) for resource, amount in wish.in_any_order(self.slow)}
        return self.bound(self.pod_of(allocated(self.node, name, gpus, wanted(wish)), limits, *CONTAINERS))

    async def admit_apart(self, uid: str, wish: Wish) -> None:
        """As the kubelet does; raises ``AllocationRefused`` where it would fail the pod."""
        admitted = self.held.setdefault(f"default/{self.api[uid].metadata.name}", {})
        for container in CONTAINERS:
            await self.serve(container, wish, admitted)
        await self.run(uid)


def filling(places: Sequence[Sequence[int]], *, core: bool) -> Wish:
    """As many pods as fit: a container on a GPU of another takes away that one's memory."""
    of_a_gpu = sum(0 in gpus for gpus in places)
    return Wish(UNITS_OF_A_GPU // of_a_gpu, CORE_PER_GPU // of_a_gpu if core else 0)


async def admits_all(
    slow: random.Random, requested: Wish, places: Sequence[Sequence[int]], *, whole: bool, rests: bool
) -> None:
    node = Apart(slow, lists_whole=whole)
    pods = [node.bind_apart(f"p{at}", requested, gpus) for at, gpus in enumerate(places)]
    slow.shuffle(pods)
    async with node.looked_after() as reconciling:
        for uid in pods:
            try:
                await node.admit_apart(uid, requested)
            except AllocationRefused as refusal:
                pytest.fail(f"{node.api[uid].metadata.name}: {refusal}")
            if rests:
                await node.at_rest()
        reconciling.cancel()
        await node.settled()
    for pod in node.api.values():
        record = allocated_pod(node.record(pod), node.node)
        assert record is not None
        assert record.assigned
        for container in record.request.containers:
            has = node.held[f"default/{pod.metadata.name}"]
            for resource in {resource for name, resource in has if name == container.name}:
                on = set(node.book.ids.by_gpu(has[container.name, resource]))
                assert record.decided_gpus(container) == on, (
                    "compute and memory lie on the GPU that is recorded"
                )


@pytest.mark.parametrize("rests", [True, False], ids=["with time in between", "at once"])
@pytest.mark.parametrize("core", [False, True], ids=["memory", "memory and compute"])
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.no_cover  # would double the duration; other tests cover the same lines
@settings(max_examples=rounds(10, soak=100), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_no_pod_is_refused_and_every_container_is_where_its_record_says(
    places: Sequence[Sequence[int]], core: bool, rests: bool, seed: int
) -> None:
    requested = filling(places, core=core)
    asyncio.run(admits_all(random.Random(seed), requested, places, whole=False, rests=rests))


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.no_cover  # would double the duration; other tests cover the same lines
@settings(max_examples=rounds(10, soak=100), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_a_pod_taken_for_another_leaves_that_pod_its_own_places(
    places: Sequence[Sequence[int]], seed: int
) -> None:
    """If the kubelet lists no pod before it has everything, the first to come gets what was allocated to the oldest."""
    requested = filling(places, core=False)
    asyncio.run(admits_all(random.Random(seed), requested, places, whole=True, rests=True))
