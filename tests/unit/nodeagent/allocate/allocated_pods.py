"""Allocations written by hand, and a kubelet without sockets that admits the pods."""

import itertools
from collections.abc import Callable, Sequence

import msgspec

from gpushare.api import names
from gpushare.api.allocation.allocation import allocate_over
from gpushare.api.allocation.annotations import Stamp, allocation_annotations
from gpushare.api.node.device import Device, NodeDevices, index_uuid
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request, effective_amount
from gpushare.nodeagent.allocate.grant_log import Slot
from gpushare.nodeagent.allocate.matcher import AllocateMatcher, Match
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod, BoundPod, allocated_pod, amount_of
from gpushare.nodeagent.reconcile.allocation_patch import RecordPatch, record_patch, relocation_patch

APP, INIT, SIDECAR = ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR
_numbers = itertools.count(1)


def node_of(
    *sizes_mib: int, mode: NodeMode = NodeMode.SHARE, unit: MemoryUnit = MemoryUnit.GIB
) -> NodeDevices:
    devices = tuple(
        Device(index, f"GPU-{index + 1:08x}-1111", size_mib) for index, size_mib in enumerate(sizes_mib)
    )
    return NodeDevices("n1", mode, unit, devices)


def request(
    *asked: tuple[ContainerKind, int] | tuple[ContainerKind, int, int], gpus: int = 1, whole: bool = False
) -> Request:
    """Requests of containers (kind, units on each GPU[, percent]); init containers and sidecars first."""
    containers, counts = [], {True: 0, False: 0}
    for at, (kind, units, *core) in enumerate(asked):
        app = kind is APP
        containers.append(ContainerRequest(f"c{at}", kind, counts[app], units * gpus, core[0] if core else 0))
        counts[app] += 1
    return Request(
        effective_amount([(one.kind, one.memory_units) for one in containers]) // gpus,
        effective_amount([(one.kind, one.core_percent) for one in containers]),
        tuple(containers),
        gpus,
        whole,
    )


def undescribed(node: NodeDevices) -> NodeDevices:
    """``node`` as schedulers see it by its capacity, before its GPUs are described."""
    devices = tuple(
        msgspec.structs.replace(device, uuid=index_uuid(node.name, device.index)) for device in node.devices
    )
    return msgspec.structs.replace(node, devices=devices)


def allocated(
    node: NodeDevices, name: str, on: int | Sequence[int], wanted: Request, *, at_ns: int | None = None
) -> AllocatedPod:
    """A pod allocated on GPU ``on``, or on several."""
    number = next(_numbers)
    places = (on,) if isinstance(on, int) else on
    allocation = allocate_over(node, [node.devices[place] for place in places], wanted)
    stamp = Stamp(number if at_ns is None else at_ns, assigned=False)
    annotations = allocation_annotations(allocation, wanted, stamp)
    made = allocated_pod(BoundPod(f"uid-{number}", "default", name, "", wanted, annotations), node)
    assert made is not None
    return made


PickFn = Callable[[str, int, Sequence[str], Sequence[str]], list[str]]


class Admitting:
    """Admits pods as the kubelet does, against a book. ``pick`` chooses IDs: (resource, amount, free, must)."""

    def __init__(self, book: NodeAllocations) -> None:
        self.book = book
        self.held: dict[str, dict[tuple[str, str], frozenset[str]]] = {}
        self.now_s = 0.0

    def free(self, resource: str) -> list[str]:
        used = {
            one for ids_by_resource in self.held.values() for ids in ids_by_resource.values() for one in ids
        }
        ids = self.book.ids
        return [
            one
            for device in self.book.node.devices
            for one in (
                ids.core_ids(device)
                if resource == names.GPU_CORE
                else ids.memory_ids(device, self.book.node.unit)
            )
            if one not in used
        ]

    def admit(self, one: AllocatedPod, pick: PickFn | None = None) -> list[Match]:
        """Makes every ``Allocate`` call of the pod; raises ``AllocationRefused`` as the agent would."""
        choose = pick or AllocateMatcher(self.book).prefer
        ids_by_resource = self.held.setdefault(one.bound.key, {})
        reusable: dict[str, set[str]] = {}
        matches = []
        try:
            for container in one.bound.request.containers:
                for resource in (names.GPU_MEM, names.GPU_CORE):
                    amount = amount_of(container, resource)
                    if not amount:
                        continue
                    pool = reusable.setdefault(resource, set())
                    must = sorted(pool)[:amount]
                    ids = (
                        must
                        if len(must) == amount
                        else choose(resource, amount, [*self.free(resource), *must], must)
                    )
                    match = AllocateMatcher(self.book).match(resource, ids)
                    self.book.grants.grant(
                        Slot(match.pod.uid, match.container.name, resource), ids, self.now_s
                    )
                    matches.append(match)
                    ids_by_resource[container.name, resource] = frozenset(ids)
                    pool.update(ids) if container.kind is INIT else pool.difference_update(ids)
        except BaseException:
            del self.held[one.bound.key]
            raise
        return matches

    def listing(self) -> dict[str, dict[tuple[str, str], frozenset[str]]]:
        """The pod resources list: without init containers."""
        kinds = {
            (one.bound.key, container.name): container.kind
            for one in self.book.pods
            for container in one.bound.request.containers
        }
        return {
            key: {name: ids for name, ids in ids_by_resource.items() if kinds.get((key, name[0])) is not INIT}
            for key, ids_by_resource in self.held.items()
        }

    def reconcile(self) -> dict[str, str]:
        """Compare with the list and write what must be written; pod name → text of its event."""
        self.now_s += 1.0
        self.book.grants.observe(self.listing(), self.now_s)
        notes = {}
        while (found := self.book.find_relocation()) is not None:
            change = relocation_patch(found.pod, found.devices, self.book.node)
            notes[found.pod.bound.name] = self._write(found.pod, change)
            self.book.relocated(found)
        for one in list(self.book.pods):
            change = record_patch(one, self.book.device_ids(one), self.book.node, self.book.ids)
            if change is not None:
                notes[one.bound.name] = self._write(one, change)
        return notes

    def _write(self, one: AllocatedPod, change: RecordPatch) -> str:
        fresh = allocated_pod(one.bound.annotated(change.annotations), self.book.node)
        assert fresh is not None
        self.book.put(fresh)
        return change.note
