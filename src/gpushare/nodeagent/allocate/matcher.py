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

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpushare.api.allocation.allocation import GpuShare
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.request.pluralize import counted
from gpushare.api.request.request import ContainerKind, ContainerRequest
from gpushare.nodeagent.allocate.grant_log import Answers, Preference
from gpushare.nodeagent.allocate.identical_pods import Standing, exchanges, goes_by, heirs, left_to
from gpushare.nodeagent.allocate.pod_allocations import Claim
from gpushare.nodeagent.allocate.refusal_texts import gpus_named, refusal
from gpushare.nodeagent.allocate.requested_devices import amount_of, is_complete
from gpushare.nodeagent.deviceplugin.device_ids import CORE_PER_GPU, DeviceIds
from gpushare.nodeagent.errors import ClaimRefused, UnknownDeviceId
from gpushare.nodeagent.reconcile.allocation_patch import allocation_at


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


class Move(NamedTuple):
    """A waiting pod and the GPUs that it is to be decided for; by whom it was displaced, if by one that asks alike (UID)."""

    claim: Claim
    devices: tuple[Device, ...]
    stranger: str = ""


class ClaimBook:
    """The claims of one node and who has been served. Every call costs O(pods of the node)."""

    def __init__(self, node: NodeDevices) -> None:
        self._claims: dict[str, Claim] = {}
        self.answers = Answers(self._claims)
        self._exchanged: set[str] = set()
        """Pods whose twin was decided for the place that their record has still."""
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
        if not claim.is_together and gpu not in self._place_now(claim, asking):
            return None  # its neighbour's
        return claim.share_on(device, asking, self.node.unit)

    def put(self, claim: Claim) -> None:
        """A pod was bound, or its record changed."""
        if claim.uid not in self._claims:
            self.answers.unlist(claim.pod.key)
        self._claims[claim.uid] = claim
        if _uuids(claim.allocation.gpus) == _uuids(self._shares(claim)):
            self._exchanged.discard(claim.uid)

    def remove(self, uid: str) -> None:
        """A pod has finished or is gone: what it held is free."""
        claim = self._claims.pop(uid, None)
        self._exchanged.discard(uid)
        self.answers.drop(uid)
        if claim is not None:
            self.answers.unlist(claim.pod.key)

    def given(self, claim: Claim) -> dict[tuple[str, str], frozenset[str]]:
        """(container, resource) → the IDs that the pod has: as the kubelet lists them, or as answered since."""
        return self.answers.given(claim)

    def waiting(self, resource: str, amount: int) -> list[Waiting]:
        """The containers whose turn it is and that want ``amount``, the likeliest first."""
        wanting = self._wanting(resource, amount)
        # A kubelet that lost its checkpoint asks again for what is running.
        found = [one for one in wanting if not one.claim.pod.running or self.is_begun(one.claim)]
        return sorted(found or wanting, key=self._likelihood)

    def _wanting(self, resource: str, amount: int) -> list[Waiting]:
        return [
            one
            for claim in self._claims.values()
            for one in self._next(claim, resource)
            if amount_of(one.container, resource) == amount
        ]

    def is_begun(self, claim: Claim) -> bool:
        """Whether the kubelet is in the middle of it: the pod has some of what it asks for."""
        given = self.given(claim)
        return bool(given) and not is_complete(claim, given)

    def _asking(self, resource: str, amount: int) -> list[Waiting]:
        """Those of ``waiting`` that can be meant: of pods that differ the kubelet asks for one that it lists."""
        waiting = self.waiting(resource, amount)
        listed = [one for one in waiting if self.given(one.claim) or self.answers.lists(one.claim.pod.key)]
        return waiting if _alike(waiting) else listed or waiting

    def known(self, resource: str, amount: int) -> bool:
        """Whether the kubelet lists any of those that wait: the one that it asks for may have come a moment ago."""
        return any(self.answers.lists(one.claim.pod.key) for one in self.waiting(resource, amount))

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
                f"{self._named(place)} {'has' if len(place) == 1 else 'have'} {counted(len(chosen), 'free device')} of {resource} "
                f"where {amount} {'is' if amount == 1 else 'are'} wanted",
            )
        self.answers.preference = Preference(uid, frozenset(chosen), now_s)
        return chosen

    def match(self, resource: str, ids: Sequence[str]) -> Match:
        """Whom these IDs are for; raises ``ClaimRefused`` when nobody can be meant, or one of several unequal."""
        counted, amount = self._counted(ids), len(ids)
        place = frozenset(counted)
        waiting = self._asking(resource, amount)
        is_told = self.answers.has_told(ids)
        told, self.answers.preference = self.answers.preference, None
        if is_told and told is not None:
            # What we said ourselves holds, whatever has been decided anew since, or become known of who was meant.

            def order(one: Waiting) -> tuple[bool, bool]:
                # The kubelet may list by now that another has the rest of what this is a part of.
                begun = bool(self.given(one.claim)) and one.expected == place
                return (not begun, one.claim.uid != told.uid)

            for one in sorted(waiting, key=order):
                meant = one.claim.uid == told.uid or _alike(waiting)
                if meant and len(place) == one.claim.request.gpu_count:
                    return self._matched(one, place)
        reused = self._holders_of(frozenset(ids))
        waiting.sort(key=lambda one: one.claim.uid not in reused)  # stable: the order stays otherwise
        even = len(set(counted.values())) == 1
        for one in waiting:
            if (place == one.expected and even) or (place <= one.expected and one.claim.uid in reused):
                return self._matched(one, one.expected)
        devices = self._devices_of(place)
        movable = [one for one in waiting if even and self._movable(one.claim, devices)]
        if movable and _alike(waiting):
            return self._matched(movable[0], place)
        raise self._refusal(resource, amount, counted, waiting)

    def displaced(self) -> Move | None:
        """A waiting pod whose place has gone to one that asks alike, or that has no room there, and GPUs that have room for it.

        Seen from what containers really have, so that it is found again after a restart. ``None``: every
        decision can be kept, or none that cannot has another place to go.
        """
        for waiting, place, stranger in exchanges(self._standings()):
            devices = self._devices_of(place)
            there = len(devices) == len(place) and all(device.healthy for device in devices)
            if there and self._has_nothing(waiting):
                return Move(waiting, devices, stranger)
        held = self._held()
        for device in self.node.devices:
            if self._fits(device, held.get(device.uuid, ())):
                continue
            displaced = [
                one.claim
                for one in self._standings()
                if one.actual is None and device.uuid in one.decided and not one.claim.pod.running
            ]
            for claim, others in self._ways_out(device, held[device.uuid], displaced):
                if self._movable(claim, others):
                    return Move(claim, others)
        return None

    def exchanged(self, move: Move) -> None:
        """The pod was decided anew as ``move`` says: its place is that of the stranger, whatever that one's record says yet."""
        if move.stranger in self._claims:
            self._exchanged.add(move.stranger)

    def _standings(self, claims: Iterable[Claim] | None = None) -> list[Standing]:
        told, found = self.answers.preference, []
        for claim in self._claims.values() if claims is None else claims:
            decided, actual = _uuids(claim.allocation.gpus), _uuids(self._shares(claim))
            if self.given(claim) or self._is_served(claim) or (told is not None and told.uid == claim.uid):
                found.append(Standing(claim, actual if claim.uid in self._exchanged else decided, actual))
            elif not claim.pod.terminating:
                found.append(Standing(claim, decided, None))
        return found

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
        waiting = self._asking(resource, amount)

        def has_ids(place: Collection[str]) -> bool:
            return all(len(free.get(uuid, ())) * len(place) >= amount for uuid in place)

        standings = self._standings()
        likes = {one.claim.likeness for one in waiting}
        left = {like: left_to(one for one in standings if one.claim.likeness == like) for like in likes}
        for one in waiting:
            # One with a GPU per container goes to its twin's places alone; and what is left is counted by those of whole pods.
            own = not one.claim.is_together or bool(self.given(one.claim))
            own = own or left[one.claim.likeness][one.expected] > 0
            if own and has_ids(one.expected):
                return one.claim.uid, one.expected
        if _alike(waiting):
            for claim in [one.claim for one in waiting if self._is_free_to_go(one.claim)]:
                for place in (*left[claim.likeness], *self._elsewhere(claim, has_ids)):
                    if left[claim.likeness].get(place, 1) > 0 and has_ids(place):
                        return claim.uid, place
        for one in waiting:
            if has_ids(one.expected):
                return one.claim.uid, one.expected
        raise self._refusal(resource, amount, {}, waiting)

    def _elsewhere(
        self, claim: Claim, has_ids: Callable[[Collection[str]], bool]
    ) -> Iterator[frozenset[str]]:
        """A place with room for a waiting pod, all other decisions honoured."""
        count = claim.request.gpu_count
        found = [
            device.uuid
            for device in self.node.devices
            if has_ids([device.uuid] * count) and self._may_lie_on(claim, device)
        ]
        if len(found) >= count:
            yield frozenset(found[:count])

    def _place_with(self, resource: str, amount: int, must: Sequence[str]) -> tuple[str, frozenset[str]]:
        """The GPUs for a container that is to have the IDs ``must``, those of a finished init container of its pod."""
        place, holders = frozenset(self._counted(must)), self._holders_of(frozenset(must))
        for one in self._asking(resource, amount):
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
        if not self.answers.heard or not lasting:
            return True
        return is_complete(claim, self.given(claim))

    def _expected(
        self, claim: Claim, container: ContainerRequest, given: Mapping[tuple[str, str], frozenset[str]]
    ) -> frozenset[str]:
        place = self._served_at(claim, container)
        if claim.is_together:
            others = (self._place_of(claim, ids) for ids in given.values())
            return place or next((one for one in others if one), None) or claim.place(container)
        if place is not None:
            return place
        twin = self._followed(claim)
        return twin.place(twin.request.containers[claim.request.containers.index(container)])

    def _followed(self, claim: Claim) -> Claim:
        """Whose decision the containers of a pod with a GPU for each go by.

        Once one of them has its own: of whom that was decided for. Before: the pod's, or where a twin has its places, that twin's.
        """
        twins = [one for one in self._claims.values() if one.likeness == claim.likeness]
        served = {name: self._place_of(claim, ids) for (name, _), ids in self.given(claim).items()}
        if served:
            return next((one for one in [claim, *twins] if goes_by(claim, one, served)), claim)
        return self._claims.get(heirs(self._standings(twins)).get(claim.uid, ""), claim)

    def _place_now(self, claim: Claim, container: ContainerRequest) -> frozenset[str]:
        """The GPUs on which one container of a pod is, or was decided."""
        return self._served_at(claim, container) or claim.place(container)

    def _served_at(self, claim: Claim, container: ContainerRequest) -> frozenset[str] | None:
        """The GPUs on which one container of a pod is, if it has IDs that say."""
        own = (ids for (name, _), ids in self.given(claim).items() if name == container.name)
        return next((place for ids in own if (place := self._place_of(claim, ids))), None)

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
        return self._has_nothing(claim) and claim.is_together

    def _has_nothing(self, claim: Claim) -> bool:
        told = self.answers.preference
        meant = told is not None and told.uid == claim.uid
        return not meant and not self.given(claim) and not claim.pod.terminating

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
            places = {one.name: self._place_now(claim, one) for one in claim.request.containers}
            if all(places[one.name] == claim.place(one) for one in claim.request.containers):
                return shares
            there = allocation_at(claim, places, self.node)
            return shares if there is None else there.gpus
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
        return gpus_named(place, self.node)

    def _refusal(
        self, resource: str, amount: int, counted: Mapping[str, int], waiting: Sequence[Waiting]
    ) -> ClaimRefused:
        decided = [(one.claim, one.expected) for one in waiting]
        return refusal(self.node, resource, amount, counted, decided)


def _alike(waiting: Sequence[Waiting]) -> bool:
    return len({one.claim.likeness for one in waiting}) == 1


def _uuids(shares: Iterable[GpuShare]) -> frozenset[str]:
    return frozenset(share.uuid for share in shares)
