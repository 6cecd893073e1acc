"""Which container is it? ``Allocate`` carries device IDs and nothing else; this finds whom they are for. Pure.

What is known: the scheduler's decision for each bound pod (container → GPU, units), what the kubelet says that
containers have, and what was answered since. What the kubelet is known to do: it admits one pod after the
other, asks for its containers in the order in which they start, and gives an app container the IDs of a
finished init container of its pod. So an ``Allocate`` of n units on GPU g is for a *next waiting* container
that wants n and is expected on g; of several the pod that is already being served, then one that the
kubelet lists, then the oldest decision.

Two pods that ask alike may so be taken for each other. That is harmless: their answers are the same but for the
GPU, which is that of the IDs, and the reconciliation writes on each what it really has. Where no decision names
g, a pod may be moved there only if all that come into question ask alike, and if g has the room when every
other decision is honoured. Everything else is refused: a guess would give memory away that
someone else was promised.

A pod may have several GPUs: then each of its containers has as many units on each of them, and all that is said here of a
GPU is said of such a set, its *place*. The IDs of one container so lie on the whole place, in equal parts; only those of a
finished init container, which the kubelet hands on as it likes, may lie on a part of it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpushare.model import names
from gpushare.model.allocation import GpuShare
from gpushare.model.device import Device, NodeDevices
from gpushare.model.request import ContainerKind, ContainerRequest
from gpushare.nodeagent.answers import Answers, Preference
from gpushare.nodeagent.bound_pods import Claim
from gpushare.nodeagent.device_ids import CORE_PER_GPU, DeviceIds
from gpushare.nodeagent.errors import ClaimRefused, UnknownDeviceId


class Waiting(NamedTuple):
    """A container whose turn it is, and the GPUs on which its IDs are expected (UUIDs)."""

    claim: Claim
    container: ContainerRequest
    expected: frozenset[str]


@dataclass(frozen=True, slots=True)
class Match:
    """Whom an ``Allocate`` is for, and what they get, by GPU index. ``moved``: other GPUs than were decided."""

    claim: Claim
    container: ContainerRequest
    shares: tuple[GpuShare, ...]
    moved: bool


class ClaimBook:
    """The claims of one node and who has been served. Every call costs O(pods of the node)."""

    def __init__(self, node: NodeDevices) -> None:
        self._claims: dict[str, Claim] = {}
        self.answers = Answers(self._claims)
        self.set_node(node)

    def set_node(self, node: NodeDevices) -> None:
        """The GPUs changed, or their mode or unit."""
        self.node = node
        self.ids = DeviceIds(node.devices)
        self._devices = {device.uuid: device for device in node.devices}

    @property
    def claims(self) -> Collection[Claim]:
        """All claims of the node."""
        return self._claims.values()

    def claim(self, uid: str) -> Claim | None:
        """The claim of the pod with that UID."""
        return self._claims.get(uid)

    def gpus_of(self, claim: Claim) -> tuple[str, ...]:
        """The GPUs (UUIDs) where the pod really is."""
        return tuple(share.uuid for share in self._shares(claim))

    def share_of(self, claim: Claim, gpu: str, container: str) -> GpuShare | None:
        """What a container of the pod may use of a GPU where the pod really is; all of the pod where ``container`` is
        not one that asks for memory. ``None``: nothing."""
        whole = next((share for share in self._shares(claim) if share.uuid == gpu), None)
        asking = next((one for one in claim.request.containers if one.name == container), None)
        device = self._devices.get(gpu)
        if whole is None or asking is None or device is None or not asking.memory_units:
            return whole
        return claim.share_on(device, asking, self.node.unit)

    def put(self, claim: Claim) -> None:
        """A pod was bound, or its record changed."""
        if claim.uid not in self._claims:
            self.answers.unlist(claim.pod.key)
        self._claims[claim.uid] = claim

    def remove(self, uid: str) -> None:
        """A pod has finished or is gone: what it held is free."""
        claim = self._claims.pop(uid, None)
        self.answers.drop(uid)
        if claim is not None:
            self.answers.unlist(claim.pod.key)

    def given(self, claim: Claim) -> dict[tuple[str, str], frozenset[str]]:
        """(container, resource) → the IDs that the pod has: as the kubelet lists them, or as answered since."""
        return self.answers.given(claim)

    def waiting(self, resource: str, amount: int) -> list[Waiting]:
        """The containers whose turn it is and that want ``amount``, the likeliest first."""
        # A kubelet that lost its checkpoint asks again for what is running.
        for running in (False, True):
            found = [
                one
                for claim in self._claims.values()
                if claim.pod.running is running or running
                for one in self._next(claim, resource)
                if amount_of(one.container, resource) == amount
            ]
            if found:
                return sorted(found, key=self._likelihood)
        return []

    def ambiguous(self, resource: str, amount: int) -> bool:
        """Whether taking one of the waiting pods for another would matter, and nothing tells them apart yet."""
        waiting = self.waiting(resource, amount)
        return len({_signature(one.claim) for one in waiting}) > 1 and not self.given(waiting[0].claim)

    def prefer(
        self, resource: str, amount: int, available: Iterable[str], must: Sequence[str], now_s: float = 0.0
    ) -> list[str]:
        """The ``amount`` IDs of ``available`` that should be given next, ``must`` among them.

        Raises ``ClaimRefused`` when no container waits for that many, or no GPU has them.
        """
        self.answers.preference = None
        free = self.ids.by_gpu(available)
        if must:
            uid, place = self._place_with(resource, amount, must)
        else:
            uid, place = self._preferred_place(resource, amount, free)
        chosen = self.ids.balanced(place, free, must, amount)
        if len(chosen) < amount:
            raise ClaimRefused(
                f"node {self.node.name}",
                f"{self._named(place)} {'has' if len(place) == 1 else 'have'} {len(chosen)} free devices of {resource} "
                f"where {amount} are wanted",
            )
        self.answers.preference = Preference(uid, frozenset(chosen), now_s)
        return chosen

    def match(self, resource: str, ids: Sequence[str]) -> Match:
        """Whom these IDs are for; raises ``ClaimRefused`` when nobody can be meant, or one of several unequal."""
        counted, amount = self._counted(ids), len(ids)
        place = frozenset(counted)
        waiting = self.waiting(resource, amount)
        told, self.answers.preference = self.answers.preference, None
        if told is not None and told.ids == frozenset(ids):
            # What we said ourselves holds, whatever has been decided anew since, or become known of who was meant.
            alike = len({_signature(one.claim) for one in waiting}) == 1
            for one in sorted(waiting, key=lambda one: one.claim.uid != told.uid):
                if (alike or one.claim.uid == told.uid) and len(place) == one.claim.request.gpu_count:
                    return self._matched(one, place)
        reused = self._holders_of(frozenset(ids))
        waiting.sort(key=lambda one: one.claim.uid not in reused)  # stable: the order stays otherwise
        even = len(set(counted.values())) == 1
        for one in waiting:
            if (place == one.expected and even) or (place <= one.expected and one.claim.uid in reused):
                return self._matched(one, one.expected)
        devices = self._devices_of(place)
        movable = [one for one in waiting if even and self._movable(one.claim, devices)]
        if movable and len({_signature(one.claim) for one in waiting}) == 1:
            return self._matched(movable[0], place)
        raise self._refusal(resource, amount, counted, waiting)

    def displaced(self) -> tuple[Claim, tuple[Device, ...]] | None:
        """A waiting pod one of whose decided GPUs has gone to pods that asked alike, and GPUs that have room for it.

        Seen from what containers really have, so that it is found again after a restart. ``None``: every
        decision can be kept, or none that cannot has another place to go.
        """
        held = self._held()
        for device in self.node.devices:
            if self._fits(device, held.get(device.uuid, ())):
                continue
            waiting = [
                claim
                for claim in self._claims.values()
                if device.uuid in _uuids(claim.allocation.gpus)
                and not claim.pod.running
                and not self._is_served(claim)
            ]
            for claim, others in (
                *self._exchanges(device, waiting),
                *self._ways_out(device, held[device.uuid], waiting),
            ):
                if self._movable(claim, others):
                    return claim, others
        return None

    def _exchanges(
        self, device: Device, waiting: Sequence[Claim]
    ) -> Iterator[tuple[Claim, tuple[Device, ...]]]:
        """For a pod that has come to ``device`` unrecorded, its twin goes to where that one was decided."""
        for stranger in self._claims.values():
            before, after = _uuids(stranger.allocation.gpus), _uuids(self._shares(stranger))
            if device.uuid in after - before and before <= self._devices.keys():
                for claim in waiting:
                    if _signature(claim) == _signature(stranger):
                        yield claim, self._devices_of(before)

    def _ways_out(
        self, device: Device, held: Sequence[GpuShare], waiting: Sequence[Claim]
    ) -> Iterator[tuple[Claim, tuple[Device, ...]]]:
        """The smallest pod whose going is enough, or else the largest."""
        above_mib = sum(share.mib for share in held) - device.total_mib

        def order(claim: Claim) -> tuple[bool, int]:
            mib = next(share.mib for share in claim.allocation.gpus if share.uuid == device.uuid)
            return (mib < above_mib, mib if mib >= above_mib else -mib)

        for claim in sorted(waiting, key=order):
            decided = _uuids(claim.allocation.gpus)
            for other in self.node.devices:
                if other.uuid not in decided:
                    yield claim, self._devices_of(decided - {device.uuid} | {other.uuid})

    def _matched(self, one: Waiting, place: frozenset[str]) -> Match:
        claim, unit = one.claim, self.node.unit
        shares = tuple(claim.share_on(device, one.container, unit) for device in self._devices_of(place))
        return Match(claim, one.container, shares, moved=claim.place(one.container) != place)

    def _preferred_place(
        self, resource: str, amount: int, free: Mapping[str, Sequence[str]]
    ) -> tuple[str, frozenset[str]]:
        waiting = self.waiting(resource, amount)
        for one in waiting:
            if all(len(free.get(uuid, ())) * len(one.expected) >= amount for uuid in one.expected):
                return one.claim.uid, one.expected
        if len({_signature(one.claim) for one in waiting}) == 1:
            for one in filter(lambda one: self._is_free_to_go(one.claim), waiting):
                count = one.claim.request.gpu_count
                roomy = (uuid for uuid, ids in free.items() if len(ids) * count >= amount)
                found = [uuid for uuid in roomy if self._may_lie_on(one.claim, self._devices[uuid])]
                if len(found) >= count:
                    return one.claim.uid, frozenset(found[:count])
        raise self._refusal(resource, amount, {}, waiting)

    def _place_with(self, resource: str, amount: int, must: Sequence[str]) -> tuple[str, frozenset[str]]:
        """The GPUs for a container that is to have the IDs ``must``, those of a finished init container of its pod."""
        place, holders = frozenset(self._counted(must)), self._holders_of(frozenset(must))
        for one in self.waiting(resource, amount):
            if one.claim.uid in holders and place <= one.expected:
                return one.claim.uid, one.expected
        return "", place

    def _next(self, claim: Claim, resource: str) -> Iterator[Waiting]:
        """The container of ``claim`` whose turn it is for ``resource``, if there is one."""
        if claim.pod.terminating:
            return
        if self._is_served(claim):
            return
        given = self.given(claim)
        wanted = [one for one in claim.request.containers if amount_of(one, resource)]
        # In the order in which they start: who has devices was asked for after all before it.
        turn = max((at + 1 for at, one in enumerate(wanted) if (one.name, resource) in given), default=0)
        if turn < len(wanted):
            yield Waiting(claim, wanted[turn], self._expected(claim, wanted[turn], given))

    def _is_served(self, claim: Claim) -> bool:
        """Whether its record is marked or it runs, and the kubelet does not say otherwise.

        A record may have been marked for an answer that went to a pod that asked alike: its pod waits still.
        """
        if not claim.assigned and not claim.pod.running:
            return False
        lasting = any(one.kind is not ContainerKind.INIT for one in claim.request.containers)
        return bool(self.given(claim)) or not self.answers.heard or not lasting

    def _expected(
        self, claim: Claim, container: ContainerRequest, given: Mapping[tuple[str, str], frozenset[str]]
    ) -> frozenset[str]:
        own = [ids for (name, _), ids in given.items() if name == container.name]
        others = list(given.values()) if claim.is_together else []
        found = (self._place_of(claim, ids) for ids in (*own, *others))
        return next((place for place in found if place), None) or claim.place(container)

    def _likelihood(self, one: Waiting) -> tuple[bool, bool, bool, int, str, str]:
        pod = one.claim.pod
        return (
            not self.given(one.claim),
            one.claim.assigned,
            not self.answers.lists(pod.key),
            one.claim.assume_time_ns,
            pod.created,
            pod.uid,
        )

    def _movable(self, claim: Claim, devices: Sequence[Device]) -> bool:
        """Whether the whole pod may go to ``devices``, all other decisions honoured."""
        return (
            len(devices) == claim.request.gpu_count
            and self._is_free_to_go(claim)
            and all(self._may_lie_on(claim, device) for device in devices)
        )

    def _is_free_to_go(self, claim: Claim) -> bool:
        told = self.answers.preference
        meant = told is not None and told.uid == claim.uid
        return not meant and not self.given(claim) and not claim.pod.terminating and claim.is_together

    def _may_lie_on(self, claim: Claim, device: Device) -> bool:
        """Whether ``device`` has room for the pod's part of one GPU, all other decisions honoured."""
        wanted = claim.pod_share_on(device, self.node.unit)
        if not device.healthy or claim.request.memory_units > wanted.device_units:
            return False
        return self._fits(device, [*self._held(but=claim).get(device.uuid, ()), wanted])

    def _held(self, *, but: Claim | None = None) -> dict[str, list[GpuShare]]:
        """What all pods hold or were promised, by GPU."""
        held: dict[str, list[GpuShare]] = {}
        for claim in self._claims.values():
            if claim is not but:
                for share in self._shares(claim):
                    held.setdefault(share.uuid, []).append(share)
        return held

    @staticmethod
    def _fits(device: Device, shares: Sequence[GpuShare]) -> bool:
        return (
            sum(share.mib for share in shares) <= device.total_mib
            and sum(share.core_percent for share in shares) <= CORE_PER_GPU
        )

    def _shares(self, claim: Claim) -> tuple[GpuShare, ...]:
        """What a pod holds, on the GPU where it really is."""
        shares = claim.allocation.gpus
        if not claim.is_together:
            return shares
        told = self.answers.preference
        own = [told.ids] if told is not None and told.uid == claim.uid else []
        found = (self._place_of(claim, ids) for ids in (*self.given(claim).values(), *own))
        place = next((place for place in found if place), None)
        if place is None or place == _uuids(shares) or not place <= self._devices.keys():
            return shares
        return tuple(claim.pod_share_on(device, self.node.unit) for device in self._devices_of(place))

    def _holders_of(self, ids: frozenset[str]) -> set[str]:
        """The pods that have any of these IDs: only an app container of the same pod gets them again."""
        return {
            claim.uid
            for claim in self._claims.values()
            if any(not ids.isdisjoint(held) for held in self.given(claim).values())
        }

    def _place_of(self, claim: Claim, ids: frozenset[str]) -> frozenset[str]:
        """The GPUs on which a container of the pod is, if its IDs say; none where they do not."""
        if claim.request.gpu_count == 1:
            # Any one of them tells: we let no container have IDs of two.
            try:
                return frozenset((self.ids.gpu_of(next(iter(ids))),))
            except (UnknownDeviceId, StopIteration):
                return frozenset()
        place = frozenset(self.ids.by_gpu(ids))
        return place if len(place) == claim.request.gpu_count else frozenset()

    def _counted(self, ids: Sequence[str]) -> dict[str, int]:
        """How many of the IDs lie on each GPU."""
        try:
            counted = self.ids.gpus_of(ids)
        except UnknownDeviceId as error:
            raise ClaimRefused(error.subject, error.problem) from None
        if not counted:
            raise ClaimRefused(f"node {self.node.name}", "the kubelet gave no device at all")
        return counted

    def _devices_of(self, place: Collection[str]) -> tuple[Device, ...]:
        return tuple(device for device in self.node.devices if device.uuid in place)

    def _named(self, place: Collection[str]) -> str:
        """``GPU 0`` or ``GPU 0 and GPU 1``."""
        unknown = sorted(uuid for uuid in place if uuid not in self._devices)
        return " and ".join(
            [
                *(f"GPU {device.index}" for device in self._devices_of(place)),
                *(f"GPU {uuid}" for uuid in unknown),
            ]
        )

    def _refusal(
        self, resource: str, amount: int, counted: Mapping[str, int], waiting: Sequence[Waiting]
    ) -> ClaimRefused:
        of = f" of {self._named(counted)}" if counted else ""
        if len(counted) > 1:
            on = ", ".join(f"{count} on {self._named([uuid])}" for uuid, count in counted.items())
            of = f" with devices on several GPUs ({on})"
        text = f"no pod bound to node {self.node.name} waits for {worded(resource, amount)}{of}"
        if waiting:
            where = ", ".join(f"{one.claim.pod.key} on {self._named(one.expected)}" for one in waiting[:3])
            more = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
            text += f"; as much is decided for {where}{more}, and it can be given nowhere else"
        return ClaimRefused("", text, tuple(one.claim.uid for one in waiting))


def amount_of(container: ContainerRequest, resource: str) -> int:
    """What ``container`` asks of a resource: units of GPU memory, percent of compute, or whole GPUs."""
    if resource == names.GPU_WHOLE:
        return container.whole_gpus
    return container.core_percent if resource == names.GPU_CORE else container.memory_units


def worded(resource: str, amount: int) -> str:
    """An amount as people say it: ``3 units``, ``30% compute``."""
    if resource == names.GPU_CORE:
        return f"{amount}% compute"
    return f"{amount} unit{'' if amount == 1 else 's'}"


def _signature(claim: Claim) -> tuple[object, ...]:
    """Equal for pods that may be taken for each other."""
    return (
        claim.allocation.unit,
        len(claim.allocation.gpus),
        claim.request.gpu_count,
        claim.request.whole_device,
        *((one.kind, one.memory_units, one.core_percent) for one in claim.request.containers),
    )


def _uuids(shares: Iterable[GpuShare]) -> frozenset[str]:
    return frozenset(share.uuid for share in shares)
