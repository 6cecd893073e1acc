"""The pods of one node that have an allocation, what the scheduler decided for them, and where they really are. Pure.

Pods with identical requests share the GPU sets that were decided for all of them: ``Allocate`` names no pod, so one pod may be
served in place of another. The other then waits for the GPU set that the first one did not take. No third pod's GPU set is
ever touched, however full a GPU is.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.request.request import ContainerKind, ContainerRequest
from gpushare.nodeagent.allocate.grant_log import DevicesByContainer, GrantLog
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod, is_complete
from gpushare.nodeagent.deviceplugin.device_ids import CORE_PER_GPU, DeviceIds
from gpushare.nodeagent.errors import UnknownDeviceId
from gpushare.nodeagent.reconcile.allocation_patch import allocation_at


class Position(NamedTuple):
    """The GPU set (UUIDs) that was decided for a pod, and the one that it has; ``None`` while it waits."""

    pod: AllocatedPod
    decided: frozenset[str]
    actual: frozenset[str] | None


class Relocation(NamedTuple):
    """A waiting pod and the GPUs to decide for it instead; ``partner`` is the identical pod (UID) that has its own."""

    pod: AllocatedPod
    devices: tuple[Device, ...]
    partner: str = ""


@dataclass(frozen=True, slots=True)
class Holding:
    """What follows from a pod's record and its device IDs. It is the same object until one of them changes.

    ``served``: the record is marked or the pod runs, and the kubelet's list does not contradict; ``shares``: what it
    holds, on the GPUs that it really has; ``decided`` and ``actual``: UUIDs of the GPUs.
    """

    pod: AllocatedPod
    ids: DevicesByContainer
    served: bool
    shares: tuple[GpuShare, ...]
    decided: frozenset[str]
    actual: frozenset[str]
    signature: tuple[object, ...]


class NodeAllocations:
    """Calls cost O(pods of the node) at most, and little for pods that have not changed."""

    def __init__(self, node: NodeDevices) -> None:
        self._pods: dict[str, AllocatedPod] = {}
        self.grants = GrantLog(self._pods)
        self._holdings: dict[str, Holding] = {}
        self._unserved: dict[str, AllocatedPod] = {}
        self._relocated_partners: set[str] = set()
        """Pods whose recorded GPU set was since decided for the identical pod that they swapped with."""
        self.set_node(node)

    def set_node(self, node: NodeDevices) -> None:
        """Set the GPUs, their mode and their unit."""
        self.node = node
        self.ids = DeviceIds(node.devices)
        self._devices = {device.uuid: device for device in node.devices}
        self.grants.touch(self._pods)

    @property
    def pods(self) -> Collection[AllocatedPod]:
        """All pods of the node with an allocation."""
        return self._pods.values()

    def pod(self, uid: str) -> AllocatedPod | None:
        """The pod with that UID."""
        return self._pods.get(uid)

    def put(self, pod: AllocatedPod) -> None:
        """A pod was bound, or its record changed."""
        self._pods[pod.uid] = pod
        self.grants.put(pod)
        if gpu_set(pod.allocation.gpus) == gpu_set(self.shares(pod)):
            self._relocated_partners.discard(pod.uid)

    def remove(self, uid: str) -> None:
        """A pod has finished or is gone: its devices are free."""
        self._relocated_partners.discard(uid)
        self._holdings.pop(uid, None)
        self._unserved.pop(uid, None)
        if (pod := self._pods.pop(uid, None)) is not None:
            self.grants.drop(pod)

    def holdings(self) -> Mapping[str, Holding]:
        """Those of all pods, by UID."""
        self._refresh()
        return self._holdings

    def unserved(self) -> Collection[AllocatedPod]:
        """The pods that still wait for their devices.

        A record may have been marked for a grant that went to an identical pod: then this one still waits.
        """
        self._refresh()
        return self._unserved.values()

    def device_ids(self, pod: AllocatedPod) -> DevicesByContainer:
        """(container, resource) → the pod's device IDs: as the kubelet lists them, or as granted since."""
        return self._holding(pod).ids

    def is_begun(self, pod: AllocatedPod) -> bool:
        """Whether the kubelet is admitting it: it has some of the devices that it requests."""
        ids = self.device_ids(pod)
        return bool(ids) and not is_complete(pod, ids)

    def is_untouched(self, pod: AllocatedPod) -> bool:
        """Whether it waits and the kubelet was not asked to take any device for it."""
        return not self._is_preferred(pod) and not self.device_ids(pod) and not pod.bound.terminating

    def holders_of(self, ids: frozenset[str]) -> set[str]:
        """The pods (UIDs) that have any of these IDs: only an app container of the same pod gets them again."""
        return {
            pod.uid
            for pod in self._pods.values()
            if any(not ids.isdisjoint(held) for held in self.device_ids(pod).values())
        }

    # --- where pods are ---

    def gpus_of(self, pod: AllocatedPod) -> tuple[str, ...]:
        """The GPUs (UUIDs) that the pod really has."""
        return tuple(share.uuid for share in self.shares(pod))

    def share_of(self, pod: AllocatedPod, gpu: str, container: str) -> GpuShare | None:
        """A container's share of a GPU that the pod really has, the whole pod's where ``container`` requests no memory; ``None``: none."""
        whole = next((share for share in self.shares(pod) if share.uuid == gpu), None)
        requesting = next((one for one in pod.request.containers if one.name == container), None)
        device = self._devices.get(gpu)
        if whole is None or requesting is None or device is None or not requesting.memory_units:
            return whole
        if not pod.on_same_gpus and gpu not in self._gpus_now(pod, requesting, self.device_ids(pod)):
            return None  # another container's
        return pod.share_on(device, requesting, self.node.unit)

    def shares(self, pod: AllocatedPod) -> tuple[GpuShare, ...]:
        """What a pod holds, on the GPUs that it really has."""
        return self._holding(pod).shares

    def held(self, *, but: AllocatedPod | None = None) -> dict[str, list[GpuShare]]:
        """What all pods hold or are to get, by GPU (UUID)."""
        held: dict[str, list[GpuShare]] = {}
        for pod in self._pods.values():
            if pod is not but:
                for share in self.shares(pod):
                    held.setdefault(share.uuid, []).append(share)
        return held

    def has_room(self, pod: AllocatedPod, device: Device) -> bool:
        """Whether the pod may have ``device``, and its part of one GPU fits there beside all other allocations."""
        if not pod.request.allows(device):
            return False
        wanted = pod.pod_share_on(device, self.node.unit)
        if not device.healthy or pod.request.memory_units > wanted.device_units:
            return False
        return _fits(device, [*self.held(but=pod).get(device.uuid, ()), wanted])

    def may_move(self, pod: AllocatedPod, devices: Sequence[Device]) -> bool:
        """Whether the whole pod, which waits, may go to ``devices`` without affecting other allocations."""
        return (
            len(devices) == pod.request.gpu_count
            and pod.on_same_gpus
            and self.is_untouched(pod)
            and all(self.has_room(pod, device) for device in devices)
        )

    def expected_gpus(self, pod: AllocatedPod, container: ContainerRequest) -> frozenset[str]:
        """The GPU set on which ``container``, which is next, should get its devices."""
        ids = self.device_ids(pod)
        gpus = self._served_on(pod, container, ids)
        if pod.on_same_gpus:
            others = (self._gpus_of_ids(pod, one) for one in ids.values())
            return gpus or next((one for one in others if one), None) or pod.decided_gpus(container)
        if gpus is not None:
            return gpus
        other = self._whose_decision(pod, ids)
        return other.decided_gpus(other.request.containers[pod.request.containers.index(container)])

    def devices_of(self, gpus: Collection[str]) -> tuple[Device, ...]:
        """The node's devices with these UUIDs."""
        return tuple(device for device in self.node.devices if device.uuid in gpus)

    def _whose_decision(self, pod: AllocatedPod, ids: DevicesByContainer) -> AllocatedPod:
        """Whose decision the containers of a pod with a GPU for each follow.

        If one is served: that of the pod which it was decided for. Before: the pod's own, or that of an identical pod which has it.
        """
        signature = self._holding(pod).signature
        served = {name: self._gpus_of_ids(pod, one) for (name, _), one in ids.items()}
        if served:
            identical = (one for one in self._pods.values() if self._holding(one).signature == signature)
            return next((one for one in (pod, *identical) if _is_served_as(pod, one, served)), pod)
        partners: dict[str, str] = {}
        for waiting, _, partner in swaps(self.positions(signature)):
            if waiting.uid not in partners and partner not in partners.values():
                partners[waiting.uid] = partner
        return self._pods.get(partners.get(pod.uid, ""), pod)

    def _is_preferred(self, pod: AllocatedPod) -> bool:
        return self.grants.preference is not None and self.grants.preference.uid == pod.uid

    def _refresh(self) -> None:
        for uid in self.grants.take_changed():
            if (pod := self._pods.get(uid)) is not None:
                self._holdings[uid] = holding = self._derive(pod)
                if holding.served:
                    self._unserved.pop(uid, None)
                else:
                    self._unserved[uid] = pod

    def _holding(self, pod: AllocatedPod) -> Holding:
        self._refresh()
        known = self._holdings.get(pod.uid)
        return known if known is not None and known.pod is pod else self._derive(pod)

    def _derive(self, pod: AllocatedPod) -> Holding:
        ids = self.grants.device_ids(pod)
        served = pod.assigned or pod.bound.running
        lasting = any(one.kind is not ContainerKind.INIT for one in pod.request.containers)
        if served and lasting and self.grants.has_listing:
            served = is_complete(pod, ids)
        shares = self._shares(pod, ids)
        decided = gpu_set(pod.allocation.gpus)
        return Holding(pod, ids, served, shares, decided, gpu_set(shares), pod.request_signature)

    def _shares(self, pod: AllocatedPod, ids: DevicesByContainer) -> tuple[GpuShare, ...]:
        shares = pod.allocation.gpus
        if not pod.on_same_gpus:
            gpus = {one.name: self._gpus_now(pod, one, ids) for one in pod.request.containers}
            if all(gpus[one.name] == pod.decided_gpus(one) for one in pod.request.containers):
                return shares
            actual = allocation_at(pod, gpus, self.node)
            return shares if actual is None else actual.gpus
        preference = self.grants.preference
        preferred = [preference.ids] if preference is not None and self._is_preferred(pod) else []
        candidates = (self._gpus_of_ids(pod, some) for some in (*ids.values(), *preferred))
        gpus_now = next((gpus for gpus in candidates if gpus), None)
        if gpus_now is None or gpus_now == gpu_set(shares) or not gpus_now <= self._devices.keys():
            return shares
        return tuple(pod.pod_share_on(device, self.node.unit) for device in self.devices_of(gpus_now))

    def _gpus_now(
        self, pod: AllocatedPod, container: ContainerRequest, ids: DevicesByContainer
    ) -> frozenset[str]:
        """The GPUs that one container of a pod with ``ids`` has, or is to get."""
        return self._served_on(pod, container, ids) or pod.decided_gpus(container)

    def _served_on(
        self, pod: AllocatedPod, container: ContainerRequest, ids: DevicesByContainer
    ) -> frozenset[str] | None:
        """The GPUs that one container of a pod has by its device IDs."""
        own = (some for (name, _), some in ids.items() if name == container.name)
        return next((gpus for some in own if (gpus := self._gpus_of_ids(pod, some))), None)

    def _gpus_of_ids(self, pod: AllocatedPod, ids: frozenset[str]) -> frozenset[str]:
        """The GPUs of a container with these IDs; empty if the IDs do not determine them."""
        if pod.request.gpu_count == 1:
            # Any ID determines it: no container gets IDs of two GPUs.
            try:
                return frozenset((self.ids.gpu_of(next(iter(ids))),))
            except (UnknownDeviceId, StopIteration):
                return frozenset()
        gpus = frozenset(self.ids.by_gpu(ids))
        return gpus if len(gpus) == pod.request.gpu_count else frozenset()

    # --- pods with identical requests ---

    def positions(self, signature: tuple[object, ...]) -> list[Position]:
        """Where the pods with this ``request_signature`` were decided, and where they are."""
        self._refresh()
        positions = []
        for uid in self._pods:
            one = self._holdings[uid]
            if one.signature == signature:
                if one.ids or one.served or self._is_preferred(one.pod):
                    decided = one.actual if uid in self._relocated_partners else one.decided
                    positions.append(Position(one.pod, decided, one.actual))
                elif not one.pod.bound.terminating:
                    positions.append(Position(one.pod, one.decided, None))
        return positions

    def find_relocation(self) -> Relocation | None:
        """A waiting pod whose GPU set went to an identical pod, or no longer has room, and other GPUs that have room.

        It is derived from what containers really have, so it is found again after a restart. ``None``: every decision
        still holds, or there is no other GPU.
        """
        untouched = [pod for pod in self.unserved() if self.is_untouched(pod)]
        if not untouched:
            return None
        for signature in dict.fromkeys(pod.request_signature for pod in untouched):
            for waiting, gpus, partner in swaps(self.positions(signature)):
                devices = self.devices_of(gpus)
                usable = len(devices) == len(gpus) and all(device.healthy for device in devices)
                if usable and self.is_untouched(waiting):
                    return Relocation(waiting, devices, partner)
        held = self.held()
        for device in self.node.devices:
            if _fits(device, held.get(device.uuid, ())):
                continue
            displaced = [
                pod
                for pod in untouched
                if device.uuid in gpu_set(pod.allocation.gpus) and not pod.bound.running
            ]
            for pod, others in self._alternatives(device, held[device.uuid], displaced):
                if self.may_move(pod, others):
                    return Relocation(pod, others)
        return None

    def relocated(self, relocation: Relocation) -> None:
        """The relocation was recorded: the partner no longer counts where its record still has it."""
        if relocation.partner in self._pods:
            self._relocated_partners.add(relocation.partner)

    def _alternatives(
        self, device: Device, held: Sequence[GpuShare], waiting: Sequence[AllocatedPod]
    ) -> Iterator[tuple[AllocatedPod, tuple[Device, ...]]]:
        """Pods to move off ``device``, the smallest that suffices first, else the largest; each with other GPUs."""
        above_mib = sum(share.mib for share in held) - device.total_mib

        def order(pod: AllocatedPod) -> tuple[bool, int]:
            mib = next(share.mib for share in pod.allocation.gpus if share.uuid == device.uuid)
            return (mib < above_mib, mib if mib >= above_mib else -mib)

        for pod in sorted(waiting, key=order):
            decided = gpu_set(pod.allocation.gpus)
            for other in self.node.devices:
                if other.uuid not in decided:
                    yield pod, self.devices_of(decided - {device.uuid} | {other.uuid})


class Swap(NamedTuple):
    """``waiting`` is to be decided for ``gpus``, which ``partner`` (UID), an identical pod, left for those of ``waiting``."""

    waiting: AllocatedPod
    gpus: frozenset[str]
    partner: str


def swaps(identical: Collection[Position]) -> Iterator[Swap]:
    """One for each waiting pod whose GPU set another of these identical pods has."""
    for partner in identical:
        if partner.actual is None or partner.actual == partner.decided:
            continue
        for waiting in identical:
            if waiting.actual is None and waiting.decided == partner.actual:
                yield Swap(waiting.pod, partner.decided, partner.pod.uid)


def gpu_set(shares: Iterable[GpuShare]) -> frozenset[str]:
    """The UUIDs of the GPUs."""
    return frozenset(share.uuid for share in shares)


def _fits(device: Device, shares: Sequence[GpuShare]) -> bool:
    return (
        sum(share.mib for share in shares) <= device.total_mib
        and sum(share.core_percent for share in shares) <= CORE_PER_GPU
    )


def _is_served_as(pod: AllocatedPod, other: AllocatedPod, served: Mapping[str, frozenset[str]]) -> bool:
    """Whether the containers of ``pod`` that are ``served`` (by name) are where ``other`` was decided, container by container."""
    pairs = zip(pod.request.containers, other.request.containers, strict=True)
    return all(served[one.name] == other.decided_gpus(their) for one, their in pairs if one.name in served)
