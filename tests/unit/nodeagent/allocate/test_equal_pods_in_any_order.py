"""Equal pods, a kubelet that admits them in its own order, and records written in between: no pod is refused."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.api import names
from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Pod
from gpushare.kube.event_recorder import EventType, ObjectReference, Occurrence
from gpushare.nodeagent.allocate.allocator import Allocator
from gpushare.nodeagent.allocate.container_response import NoIsolation
from gpushare.nodeagent.allocate.exclusive_pods import ExclusivePods
from gpushare.nodeagent.allocate.grant_log import DeviceListing
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod, BoundPod, allocated_pod, bound_pod
from gpushare.nodeagent.deviceplugin.device_ids import CORE_PER_GPU
from gpushare.nodeagent.errors import AllocationRefused
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare.nodeagent.reconcile.pod_handler import PodsOnNode
from gpushare.nodeagent.reconcile.reconciler import Reconciler
from gpushare.nodeagent.runtime.cdi.gpu_access import Access
from tests.randomized import rounds
from tests.unit.nodeagent.allocate.allocated_pods import APP, allocated, node_of, request

GPUS: Final = 4
UNITS_OF_A_GPU: Final = 15
CONTAINER: Final = "c0"


class Wish(NamedTuple):
    """What a pod requests of one GPU: units of memory, and optionally percent of compute."""

    units: int
    core_percent: int = 0

    def in_any_order(self, slow: random.Random) -> list[tuple[str, int]]:
        """The kubelet's requests, one after the other; it iterates over an unordered map."""
        requests = [(names.GPU_MEM, self.units), (names.GPU_CORE, self.core_percent)]
        slow.shuffle(requests)
        return [(resource, amount) for resource, amount in requests if amount]


EQUAL: Final = Wish(3)


class Quiet:
    """Events that are dropped, and a clock whose steps are all equally long."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def record(
        self,
        regarding: ObjectReference,
        *,
        kind: EventType,
        reason: str,
        action: str,
        note: str,
        cause: str = "",
        occurrence: Occurrence = "each",
    ) -> None:
        """Drops the event."""

    def monotonic(self) -> float:
        self._now_s += 0.01
        return self._now_s

    def time_ns(self) -> int:
        return int(self._now_s * 1e9)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Node:
    """A node's agent between an API server, a lagging watch and a kubelet, each as slow as ``slow`` says."""

    def __init__(self, slow: random.Random, *, lists_empty: bool = True) -> None:
        self.slow = slow
        self.lists_empty = lists_empty
        """Whether its kubelet lists a pod that it is about to admit."""
        self.node = node_of(*[UNITS_OF_A_GPU * 1024] * GPUS, mode=NodeMode.CORE_MEM)
        self.api: dict[str, Pod] = {}
        self.seen: asyncio.Queue[Pod] = asyncio.Queue()
        self.shown = 0
        self.calm = False
        self.held: dict[str, dict[tuple[str, str], frozenset[str]]] = {}
        self.book = NodeAllocations(self.node)
        whole, quiet, metrics = ExclusivePods(), Quiet(), Metrics()
        self.pods = PodsOnNode(self.book, whole, quiet, lambda: None)
        self.pods.rebuild()
        self.reconciler = Reconciler(
            self.book, whole, self, self, events=quiet, metrics=metrics, clock=quiet, on_blocked=lambda: None
        )
        self.allocator = Allocator(
            self.book,
            self.pods,
            list_pods=self.list_pods,
            listing=self,
            backend_of=lambda mode: NoIsolation(),
            give=lambda uuids, in_place=False: Access(),
            events=quiet,
            metrics=metrics,
            clock=quiet,
            on_answer=lambda: None,
        )

    async def lag(self) -> None:
        for _ in range(self.slow.choice([0, 1, 3, 10])):
            await asyncio.sleep(0)

    async def list_pods(self) -> list[Pod]:
        await self.lag()
        return list(self.api.values())

    @property
    def held_by_others(self) -> dict[str, str]:
        return {}

    async def read(self, timeout_s: float) -> DeviceListing:
        listing = {
            key: dict(ids_by_resource)
            for key, ids_by_resource in self.held.items()
            if ids_by_resource or self.lists_empty
        }
        await self.lag()
        return listing

    async def annotate_pod(
        self, namespace: str, name: str, annotations: Mapping[str, str | None], *, uid: str
    ) -> None:
        await self.lag()
        pod = self.api[uid]
        merged = {**(pod.metadata.annotations or {}), **annotations}
        remaining = {one: value for one, value in merged.items() if value is not None}
        self.show(
            msgspec.structs.replace(
                pod, metadata=msgspec.structs.replace(pod.metadata, annotations=remaining)
            )
        )
        await self.lag()

    def show(self, pod: Pod) -> None:
        self.api[pod.metadata.uid] = pod
        self.shown += 1
        self.seen.put_nowait(pod)

    def decided_pod(self, name: str, wish: Wish, gpu: int) -> Pod:
        decided = allocated(self.node, name, gpu, request((APP, *wish)))
        limits = {resource: str(amount) for resource, amount in wish.in_any_order(self.slow)}
        return self.pod_of(decided, limits, CONTAINER)

    def pod_of(self, decided: AllocatedPod, limits: Mapping[str, str], *containers: str) -> Pod:
        made = {
            "metadata": {
                "name": decided.bound.name,
                "namespace": "default",
                "uid": decided.uid,
                "annotations": decided.bound.annotations,
            },
            "spec": {
                "nodeName": self.node.name,
                "containers": [{"name": one, "resources": {"limits": limits}} for one in containers],
            },
        }
        return msgspec.convert(made, Pod)

    def bind(self, name: str, wish: Wish, gpu: int) -> str:
        return self.bound(self.decided_pod(name, wish, gpu))

    def bound(self, pod: Pod) -> str:
        self.api[pod.metadata.uid] = pod
        self.pods.upsert(self.record(pod))
        return pod.metadata.uid

    def looks_free(self) -> list[Wish]:
        """Memory of each GPU that no pod is counted on, as seen by a scheduler that reads every write immediately."""
        free = [Wish(UNITS_OF_A_GPU, CORE_PER_GPU)] * GPUS
        for pod in self.api.values():
            notes = pod.metadata.annotations or {}
            for record in {notes[names.ANN_SHARE], notes.get(names.ANN_ALSO, notes[names.ANN_SHARE])}:
                counted = read_allocation({names.ANN_SHARE: record}, None)
                assert counted is not None
                for share in counted.gpus:
                    units, core_percent = free[share.index]
                    free[share.index] = Wish(units - share.units, core_percent - share.core_percent)
        return free

    async def schedule(self, wish: Wish, bound: list[str]) -> None:
        """Bind pods that request ``wish`` wherever they seem to fit."""
        while True:
            free = self.looks_free()
            for gpu in range(GPUS):
                if free[gpu].units >= wish.units and free[gpu].core_percent >= wish.core_percent:
                    pod = self.decided_pod(f"late-{len(bound)}", wish, gpu)
                    bound.append(pod.metadata.uid)
                    self.show(pod)
            await asyncio.sleep(0)

    @staticmethod
    def record(pod: Pod) -> BoundPod:
        record = bound_pod(pod)
        assert record is not None
        return record

    def free(self, resource: str) -> list[str]:
        used = {
            one for ids_by_resource in self.held.values() for ids in ids_by_resource.values() for one in ids
        }
        ids = self.book.ids
        every = [
            one
            for gpu in self.node.devices
            for one in (
                ids.core_ids(gpu) if resource == names.GPU_CORE else ids.memory_ids(gpu, self.node.unit)
            )
        ]
        free = [one for one in every if one not in used]
        self.slow.shuffle(free)
        return free

    async def watch(self) -> None:
        while True:
            pod = await self.seen.get()
            await self.lag()
            self.pods.upsert(self.record(pod))
            self.seen.task_done()

    async def reconcile(self) -> None:
        while True:
            shown = self.shown
            done = await self.reconciler.once()
            await self.seen.join()
            self.calm = done and shown == self.shown
            await self.lag()
            await asyncio.sleep(0)

    async def at_rest(self) -> None:
        """The agent has processed everything and has nothing to write."""
        self.calm = False
        while not self.calm:
            await asyncio.sleep(0)

    async def admit(self, uid: str, wish: Wish) -> None:
        """As the kubelet does; raises ``AllocationRefused`` where it would fail the pod."""
        admitted = self.held.setdefault(f"default/{self.api[uid].metadata.name}", {})
        await self.serve(CONTAINER, wish, admitted)
        on = {gpu for ids in admitted.values() for gpu in self.book.ids.by_gpu(ids)}
        assert len(on) == 1, f"{uid} has memory of one GPU and compute of another"
        await self.run(uid)

    async def serve(
        self, container: str, wish: Wish, admitted: dict[tuple[str, str], frozenset[str]]
    ) -> None:
        for resource, amount in wish.in_any_order(self.slow):
            ids = await self.allocator.prefer(resource, amount, self.free(resource), [])
            await self.lag()
            await self.allocator.allocate(resource, [ids])
            await self.lag()
            admitted[container, resource] = frozenset(ids)
            await self.lag()

    async def run(self, uid: str) -> None:
        pod = self.api[uid]
        self.show(msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Running")))
        await self.lag()

    @asynccontextmanager
    async def looked_after(self, *beside: Coroutine[Any, Any, None]) -> AsyncIterator["asyncio.Task[None]"]:
        """Run its watch and its reconciler, whose task is yielded, and everything else in ``beside``."""
        reconciling, *others = (asyncio.create_task(one) for one in (self.reconcile(), self.watch(), *beside))
        try:
            async with asyncio.timeout(30):
                yield reconciling
        finally:
            for task in (reconciling, *others):
                task.cancel()

    async def settled(self) -> None:
        """The watch has shown every write, and no more writes follow."""
        shown = -1
        while shown != self.shown:
            await self.seen.join()
            shown = self.shown
            while not await self.reconciler.once():
                await asyncio.sleep(0)


async def serves_who_comes_meanwhile(
    slow: random.Random, *, early: Wish, late: Wish, lists_empty: bool = True
) -> None:
    """One pod that requests ``early`` on each GPU, and one for ``late`` wherever there is room for it."""
    node = Node(slow, lists_empty=lists_empty)
    pending = [node.bind(f"early-{gpu}", early, gpu) for gpu in range(GPUS)]
    came: list[str] = []
    async with node.looked_after(node.schedule(late, came)):
        taken = 0
        while pending or taken < len(came):
            pending += came[taken:]
            taken = len(came)
            uid = pending.pop(slow.randrange(len(pending)))
            name = node.api[uid].metadata.name
            try:
                await node.admit(uid, early if name.startswith("early") else late)
            except AllocationRefused as refusal:
                pytest.fail(f"{name}: {refusal}")
            if not pending:
                await node.at_rest()


async def admits_all(slow: random.Random, *, equals: Wish, of_a_gpu: int, other: Wish) -> None:
    node = Node(slow)
    first = node.bind("first", other, slow.randrange(GPUS))
    equal = [node.bind(f"equal-{number:02}", equals, number % GPUS) for number in range(of_a_gpu * GPUS)]
    slow.shuffle(equal)
    async with node.looked_after() as reconciling:
        refused = []
        for uid in (first, *equal):
            try:
                await node.admit(uid, other if uid == first else equals)
            except AllocationRefused as refusal:
                refused.append(f"{node.api[uid].metadata.name}: {refusal}")
        assert not refused
        reconciling.cancel()
        await node.settled()
    for pod in node.api.values():
        ids = node.held[f"default/{pod.metadata.name}"][CONTAINER, names.GPU_MEM]
        record = allocated_pod(node.record(pod), node.node)
        assert record is not None
        assert record.assigned
        assert {share.uuid for share in record.allocation.gpus} == set(node.book.ids.by_gpu(ids))


def test_a_watch_that_lags_does_not_have_an_older_record_marked() -> None:
    async def story() -> Pod:
        node = Node(random.Random(0))
        uid = node.bind("early", EQUAL, 0)
        for gpu in (1, 0):  # the first answer was for a pod with the same request
            ids = node.book.ids.memory_ids(node.node.devices[gpu], node.node.unit)[: EQUAL.units]
            node.held["default/early"] = {(CONTAINER, names.GPU_MEM): frozenset(ids)}
            while not await node.reconciler.once():
                if names.ANN_ALSO in (node.api[uid].metadata.annotations or {}):
                    node.pods.upsert(node.record(node.api[uid]))
                await asyncio.sleep(0)
        return node.api[uid]

    pod = asyncio.run(story())
    record = allocated_pod(Node.record(pod), node_of(*[UNITS_OF_A_GPU * 1024] * GPUS))
    assert record is not None
    assert record.assigned
    assert [share.index for share in record.allocation.gpus] == [0]


@pytest.mark.parametrize(
    ("equals", "of_a_gpu", "other"),
    [(EQUAL, 4, Wish(2)), (Wish(11, 5), 1, Wish(2, 5)), (Wish(1, 45), 2, Wish(2, 10))],
    ids=["memory", "memory is what fills", "compute is what fills"],
)
@pytest.mark.no_cover  # would double the duration; other tests cover the same lines
@settings(max_examples=rounds(40, soak=600), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_no_pod_is_refused_and_every_record_becomes_correct(
    equals: Wish, of_a_gpu: int, other: Wish, seed: int
) -> None:
    asyncio.run(admits_all(random.Random(seed), equals=equals, of_a_gpu=of_a_gpu, other=other))


@pytest.mark.parametrize(
    ("early", "late"),
    [
        (Wish(8), Wish(8)),
        (Wish(3), Wish(15)),
        (Wish(5), Wish(6)),
        (Wish(11, 5), Wish(11, 5)),
        (Wish(2, 60), Wish(2, 60)),
        (Wish(5, 30), Wish(6, 30)),
    ],
    ids=lambda wish: f"{wish.units} units, {wish.core_percent}%",
)
@pytest.mark.no_cover
@settings(max_examples=rounds(80, soak=600), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_a_pod_bound_while_equal_pods_are_being_distinguished_is_served_too(
    early: Wish, late: Wish, seed: int
) -> None:
    asyncio.run(serves_who_comes_meanwhile(random.Random(seed), early=early, late=late))
