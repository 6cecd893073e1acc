"""Which container an ``Allocate`` is for: it carries device IDs and nothing else. Pure.

Known are the scheduler's decision for each bound pod (container → GPU, units), the kubelet's list of what containers have, and what
was granted since. The kubelet admits one pod after the other, requests devices for its containers in the order in which they
start, and assigns an app container the IDs of a finished init container of its pod. So an ``Allocate`` of n units on GPU g
is for a *next waiting* container that requests n and is expected on g; of several, for the pod that is being admitted, then
for one that the kubelet lists, then for the oldest decision.

Two pods with identical requests may be mistaken for each other. That is harmless: their containers get the same but for the GPU,
which follows from the IDs, and reconciliation records what each really has. If no decision names g, a pod may be moved there
only if all candidates are identical, and if g has room beside every other decision. Everything else is refused: a
guess would hand out memory that was decided for another pod.

A pod may have several GPUs: then each of its containers has as many units on each of them, and all this is true of its *GPU
set*. The IDs of a container lie on the whole set in equal parts; only those that a finished init container leaves, which the
kubelet passes on as it likes, may lie on a part of it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.device import NodeDevices
from gpushare.api.request.pluralize import counted
from gpushare.api.request.request import ContainerRequest
from gpushare.nodeagent.allocate.grant_log import Preference
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations, Position
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod, amount_of, amount_text
from gpushare.nodeagent.errors import AllocationRefused, UnknownDeviceId


class Waiting(NamedTuple):
    """A container that is next in its pod, and the GPU set (UUIDs) on which its IDs are expected."""

    pod: AllocatedPod
    container: ContainerRequest
    expected: frozenset[str]


@dataclass(frozen=True, slots=True)
class Match:
    """The container that an ``Allocate`` is for, and its shares by GPU index. ``moved``: other GPUs than were decided."""

    pod: AllocatedPod
    container: ContainerRequest
    shares: tuple[GpuShare, ...]
    moved: bool


class AllocateMatcher:
    """Matches the kubelet's calls with the pods of ``allocations``."""

    def __init__(self, allocations: NodeAllocations) -> None:
        self._allocations = allocations

    def waiting(self, resource: str, amount: int) -> list[Waiting]:
        """The next containers of all pods that request ``amount``, the likeliest first."""
        requesting = [
            one
            for pod in self._allocations.unserved()
            for one in self._next(pod, resource)
            if amount_of(one.container, resource) == amount
        ]
        # A kubelet that lost its checkpoint calls again for running pods.
        found = [
            one for one in requesting if not one.pod.bound.running or self._allocations.is_begun(one.pod)
        ]
        return sorted(found or requesting, key=self._likelihood)

    def lists_any(self, resource: str, amount: int) -> bool:
        """Whether the kubelet lists any of those that wait: the one that it admits may have been bound a moment ago."""
        return any(self._allocations.grants.lists(one.pod.key) for one in self.waiting(resource, amount))

    def prefer(
        self, resource: str, amount: int, available: Iterable[str], must: Sequence[str], now_s: float = 0.0
    ) -> list[str]:
        """The ``amount`` IDs of ``available`` to take next, ``must`` among them.

        Raises ``AllocationRefused`` when no container waits for that many, or no GPU has them.
        """
        grants, ids = self._allocations.grants, self._allocations.ids
        grants.preference = None
        free = ids.by_gpu(available)
        if must:
            uid, gpus = self._gpus_with(resource, amount, must)
        else:
            uid, gpus = self._preferred_gpus(resource, amount, free)
        chosen = ids.balanced(gpus, free, must, amount)
        if len(chosen) < amount:
            node = self._allocations.node
            raise AllocationRefused(
                f"node {node.name}",
                f"{node.gpu_names(gpus)} {'has' if len(gpus) == 1 else 'have'} {counted(len(chosen), 'free device')} of "
                f"{resource}, but {amount} {'is' if amount == 1 else 'are'} needed",
            )
        grants.preference = Preference(uid, frozenset(chosen), now_s)
        return chosen

    def match(self, resource: str, ids: Sequence[str]) -> Match:
        """The container for these IDs; raises ``AllocationRefused`` if there is none, or several that differ."""
        per_gpu, amount = self._per_gpu(ids), len(ids)
        gpus = frozenset(per_gpu)
        waiting = self._candidates(resource, amount)
        grants = self._allocations.grants
        preference = grants.preference if grants.is_preferred(ids) else None
        grants.preference = None
        if preference is not None:
            # Our own preference holds, whatever was decided or learned since.

            def order(one: Waiting) -> tuple[bool, bool]:
                # By now the kubelet may list that another pod has the rest of what this is a part of.
                begun = bool(self._allocations.device_ids(one.pod)) and one.expected == gpus
                return (not begun, one.pod.uid != preference.uid)

            for one in sorted(waiting, key=order):
                possible = one.pod.uid == preference.uid or _identical(waiting)
                if possible and len(gpus) == one.pod.request.gpu_count:
                    return self._matched(one, gpus)
        reused = self._allocations.holders_of(frozenset(ids))
        waiting.sort(key=lambda one: one.pod.uid not in reused)  # stable: otherwise the order stays
        even = len(set(per_gpu.values())) == 1
        for one in waiting:
            if (gpus == one.expected and even) or (gpus <= one.expected and one.pod.uid in reused):
                return self._matched(one, one.expected)
        devices = self._allocations.devices_of(gpus)
        movable = [one for one in waiting if even and self._allocations.may_move(one.pod, devices)]
        if movable and _identical(waiting):
            return self._matched(movable[0], gpus)
        raise self._refusal(resource, amount, per_gpu, waiting)

    def _candidates(self, resource: str, amount: int) -> list[Waiting]:
        """Those of ``waiting`` that may be meant: if they differ, one that the kubelet lists."""
        waiting, allocations = self.waiting(resource, amount), self._allocations
        listed = [
            one for one in waiting if allocations.device_ids(one.pod) or allocations.grants.lists(one.pod.key)
        ]
        return waiting if _identical(waiting) else listed or waiting

    def _next(self, pod: AllocatedPod, resource: str) -> Iterator[Waiting]:
        """The next container of ``pod``, which is not served, for ``resource``, if any."""
        if pod.bound.terminating:
            return
        ids = self._allocations.device_ids(pod)
        requesting = [one for one in pod.request.containers if amount_of(one, resource)]
        # In the order in which they start: a container with devices comes after all before it.
        at = max((at + 1 for at, one in enumerate(requesting) if (one.name, resource) in ids), default=0)
        if at < len(requesting):
            yield Waiting(pod, requesting[at], self._allocations.expected_gpus(pod, requesting[at]))

    def _likelihood(self, one: Waiting) -> tuple[bool, bool, bool, int, str, str]:
        bound = one.pod.bound
        return (
            not self._allocations.device_ids(one.pod),
            one.pod.assigned,
            not self._allocations.grants.lists(one.pod.key),
            one.pod.assume_time_ns,
            bound.created,
            bound.uid,
        )

    def _matched(self, one: Waiting, gpus: frozenset[str]) -> Match:
        pod, unit = one.pod, self._allocations.node.unit
        devices = self._allocations.devices_of(gpus)
        shares = tuple(pod.share_on(device, one.container, unit) for device in devices)
        return Match(pod, one.container, shares, moved=pod.decided_gpus(one.container) != gpus)

    def _preferred_gpus(
        self, resource: str, amount: int, free: Mapping[str, Sequence[str]]
    ) -> tuple[str, frozenset[str]]:
        waiting = self._candidates(resource, amount)

        def has_ids(gpus: Collection[str]) -> bool:
            return all(len(free.get(uuid, ())) * len(gpus) >= amount for uuid in gpus)

        signatures = {one.pod.request_signature for one in waiting}
        left = {one: remaining_gpu_sets(self._allocations.positions(one)) for one in signatures}
        for one in waiting:
            # With a GPU per container, only its own or its partner's; remaining sets are counted by whole pods.
            own = not one.pod.on_same_gpus or bool(self._allocations.device_ids(one.pod))
            own = own or left[one.pod.request_signature][one.expected] > 0
            if own and has_ids(one.expected):
                return one.pod.uid, one.expected
        if _identical(waiting):
            for pod in [one.pod for one in waiting if self._is_movable(one.pod)]:
                remaining = left[pod.request_signature]
                for gpus in (*remaining, *self._other_gpus(pod, has_ids)):
                    if remaining.get(gpus, 1) > 0 and has_ids(gpus):
                        return pod.uid, gpus
        for one in waiting:
            if has_ids(one.expected):
                return one.pod.uid, one.expected
        raise self._refusal(resource, amount, {}, waiting)

    def _is_movable(self, pod: AllocatedPod) -> bool:
        return pod.on_same_gpus and self._allocations.is_untouched(pod)

    def _other_gpus(
        self, pod: AllocatedPod, has_ids: Callable[[Collection[str]], bool]
    ) -> Iterator[frozenset[str]]:
        """A GPU set with enough free for a waiting pod in addition to all other allocations."""
        count = pod.request.gpu_count
        found = [
            device.uuid
            for device in self._allocations.node.devices
            if has_ids([device.uuid] * count) and self._allocations.has_room(pod, device)
        ]
        if len(found) >= count:
            yield frozenset(found[:count])

    def _gpus_with(self, resource: str, amount: int, must: Sequence[str]) -> tuple[str, frozenset[str]]:
        """The GPU set for a container that is to get the IDs ``must`` of a finished init container of its pod."""
        gpus, holders = frozenset(self._per_gpu(must)), self._allocations.holders_of(frozenset(must))
        for one in self._candidates(resource, amount):
            if one.pod.uid in holders and gpus <= one.expected:
                return one.pod.uid, one.expected
        return "", gpus

    def _per_gpu(self, ids: Sequence[str]) -> dict[str, int]:
        """How many of the IDs lie on each GPU."""
        try:
            per_gpu = self._allocations.ids.gpus_of(ids)
        except UnknownDeviceId as error:
            raise AllocationRefused(error.subject, error.problem) from None
        if not per_gpu:
            raise AllocationRefused(
                f"node {self._allocations.node.name}", "the kubelet allocated no device at all"
            )
        return per_gpu

    def _refusal(
        self, resource: str, amount: int, per_gpu: Mapping[str, int], waiting: Sequence[Waiting]
    ) -> AllocationRefused:
        return refusal(self._allocations.node, resource, amount, per_gpu, waiting)


def refusal(
    node: NodeDevices,
    resource: str,
    amount: int,
    per_gpu: Mapping[str, int],
    waiting: Sequence[Waiting],
) -> AllocationRefused:
    """That no pod can get ``amount`` devices, ``per_gpu`` (UUID) as many; ``waiting`` request as many."""
    of = f" of {node.gpu_names(per_gpu)}" if per_gpu else ""
    if len(per_gpu) > 1:
        on = ", ".join(f"{count} on {node.gpu_names([uuid])}" for uuid, count in per_gpu.items())
        of = f" with devices on several GPUs ({on})"
    text = f"no pod bound to node {node.name} is waiting for {amount_text(resource, amount)}{of}"
    if waiting:
        where = ", ".join(f"{one.pod.key} on {node.gpu_names(one.expected)}" for one in waiting[:3])
        more = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
        text += f"; the scheduler placed {where}{more}, and no other GPU has enough free"
    return AllocationRefused("", text, tuple(one.pod.uid for one in waiting))


def remaining_gpu_sets(identical: Iterable[Position]) -> Counter[frozenset[str]]:
    """The GPU sets that were decided for ``identical`` pods, less those that they have; negative where more came."""
    left: Counter[frozenset[str]] = Counter()
    for one in identical:
        left[one.decided] += 1
        if one.actual is not None:
            left[one.actual] -= 1
    return left


def _identical(waiting: Sequence[Waiting]) -> bool:
    return len({one.pod.request_signature for one in waiting}) == 1
