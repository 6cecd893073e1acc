"""What the kubelet was answered, is about to ask, and says that its containers have. Pure.

The kubelet's list is the truth about where containers are, and it is late: an answer is listed a moment after it was
given, and for the pod that was really meant, which may be another that asks alike.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpushare.api.request.request import ContainerKind
from gpushare.nodeagent.allocate.pod_allocations import Claim

#: How long an answered ``Allocate`` that the kubelet does not list is believed. It lists it at once, unless it
#: died before it wrote its checkpoint: then it asks again.
UNLISTED_GRACE_S: Final = 10.0

#: How long after ``GetPreferredAllocation`` its ``Allocate`` is waited for. The kubelet sends it at once.
PREFERRED_GRACE_S: Final = 2.0


class Slot(NamedTuple):
    """What one ``Allocate`` serves: a resource of a container."""

    uid: str
    container: str
    resource: str


class Preference(NamedTuple):
    """Which IDs the kubelet was told to take, and for which pod that was thought to be."""

    uid: str
    ids: frozenset[str]
    at_s: float


#: ``namespace/name`` → (container, resource) → device IDs, as the kubelet's pod resources list them.
DeviceListing = Mapping[str, Mapping[tuple[str, str], frozenset[str]]]


@dataclass(frozen=True, slots=True)
class _Grant:
    ids: frozenset[str]
    at_s: float


class Answers:
    """For the pods of ``claims`` (by UID), which their book keeps."""

    def __init__(self, claims: Mapping[str, Claim]) -> None:
        self._claims = claims
        self._grants: dict[str, dict[tuple[str, str], _Grant]] = {}
        self._listing: dict[str, Mapping[tuple[str, str], frozenset[str]]] | None = None
        self._asked_at_s = float("-inf")
        self._registered_at_s: dict[str, float] = {}
        self._seen_with_devices: set[str] = set()
        self.preference: Preference | None = None
        """What the kubelet was told last, while it has not asked since."""

    @property
    def heard(self) -> bool:
        """Whether the kubelet has ever listed."""
        return self._listing is not None

    def lists(self, key: str) -> bool:
        """Whether the kubelet lists the pod of that name at all."""
        return self._listing is not None and key in self._listing

    def listed(self, key: str) -> Mapping[tuple[str, str], frozenset[str]]:
        """What the kubelet lists for the pod of that name."""
        return {} if self._listing is None else self._listing.get(key, {})

    def without_devices(self) -> list[str]:
        """Pods (``namespace/name``) that the kubelet lists with nothing of ours."""
        return [key for key, given in (self._listing or {}).items() if not given]

    def has_served(self, claim: Claim) -> bool:
        """Whether its containers have had devices that the kubelet lists (it lists none of init containers)."""
        if claim.uid in self._seen_with_devices:
            return True
        return claim.assigned and any(one.kind is ContainerKind.APP for one in claim.request.containers)

    def unlist(self, key: str) -> None:
        """What was listed under this name was another pod's."""
        if self._listing is not None:
            self._listing.pop(key, None)

    def has_told(self, ids: Iterable[str]) -> bool:
        """Whether the kubelet was told last to take just these."""
        return self.preference is not None and self.preference.ids == frozenset(ids)

    def grant(self, slot: Slot, ids: Iterable[str], now_s: float) -> None:
        """An ``Allocate`` was answered."""
        self.preference = None
        self._grants.setdefault(slot.uid, {})[slot.container, slot.resource] = _Grant(frozenset(ids), now_s)

    def revoke(self, slot: Slot) -> None:
        """The answer was not given after all."""
        self._grants.get(slot.uid, {}).pop((slot.container, slot.resource), None)

    def drop(self, uid: str) -> None:
        """The pod is gone."""
        self._grants.pop(uid, None)
        self._seen_with_devices.discard(uid)

    def given(self, claim: Claim) -> dict[tuple[str, str], frozenset[str]]:
        """(container, resource) → the IDs that the pod has: as the kubelet lists them, or as answered since."""
        given = {name: grant.ids for name, grant in self._grants.get(claim.uid, {}).items()}
        if self._listing is not None:
            given |= self._listing.get(claim.pod.key, {})
        return given

    def registered(self, resource: str, at_s: float) -> None:
        """At that moment a kubelet that may be new took us for ``resource``.

        It will ask again for what was answered before and it does not list.
        """
        self._registered_at_s[resource] = at_s

    def registered_at_s(self, resource: str) -> float:
        """When that was last."""
        return self._registered_at_s.get(resource, float("-inf"))

    def observe(
        self, listing: DeviceListing, asked_at_s: float, *, grace_s: float = UNLISTED_GRACE_S
    ) -> list[Slot]:
        """Take in what the kubelet listed when asked at ``asked_at_s``; the answers that are believed no longer.

        Answers given since say more than the list; those that are not listed are believed for ``grace_s`` seconds, or until
        a kubelet that may be new has ``registered`` us. A list that was asked for before one that came already says nothing new:
        what is believed is judged by the later one.
        """
        if asked_at_s < self._asked_at_s and self._listing is not None:
            listing, asked_at_s = self._listing, self._asked_at_s
        self._asked_at_s = asked_at_s
        self._listing = dict(listing)
        self._seen_with_devices |= {
            claim.uid for claim in self._claims.values() if listing.get(claim.pod.key)
        }
        # The list may be that of the kubelet before.
        registered = {name: at_s for name, at_s in self._registered_at_s.items() if at_s <= asked_at_s}
        holders = {one: key for key, given in listing.items() for ids in given.values() for one in ids}
        self._hand_over(listing, holders)
        forgotten = []
        for uid, name, grant in self._all():
            claim = self._claims.get(uid)
            age_s = asked_at_s - grant.at_s
            if age_s < 0 and claim is not None:
                continue
            init = self._is_init(uid, name[0])
            # Listed for another pod: that one asked alike and was taken for this one.
            if claim is None or (not init and not grant.ids.isdisjoint(holders)):
                del self._grants[uid][name]
            elif name in listing.get(claim.pod.key, {}):
                # The pod has other devices, so the answer was for one that asked alike, and is listed for that one soon.
                if age_s > grace_s:
                    del self._grants[uid][name]
            elif grant.at_s < registered.get(name[1], 0.0) or (age_s > grace_s and not init):
                del self._grants[uid][name]
                forgotten.append(Slot(uid, *name))
        return forgotten

    def _hand_over(self, listing: DeviceListing, holders: Mapping[str, str]) -> None:
        """Answers that are not listed yet go to whom they were for, as far as the list tells.

        The kubelet serves one pod at a time: where one of a pod's answers is listed for another, so will be the
        rest. And a pod that has other devices was not meant: of those that ask alike one that has none was.
        """
        uids = {claim.pod.key: claim.uid for claim in self._claims.values()}
        found: dict[str, dict[tuple[str, str], _Grant]] = {}
        astray = []
        for uid, grants in self._grants.items():
            claim = self._claims.get(uid)
            unlisted = {name: grant for name, grant in grants.items() if grant.ids.isdisjoint(holders)}
            if claim is None or not unlisted:
                continue
            keys = {holders[one] for grant in grants.values() for one in grant.ids if one in holders}
            holder = next((self._claims[uids[key]] for key in keys - {claim.pod.key} if key in uids), None)
            if holder is not None and holder.likeness == claim.likeness and holder.uid not in found:
                found[holder.uid] = _renamed(unlisted, claim, holder)
            else:
                astray.append((claim, unlisted))
        for claim, unlisted in astray:
            if claim.uid not in found and not unlisted.keys() & listing.get(claim.pod.key, {}).keys():
                found[claim.uid] = unlisted
        for claim, unlisted in astray:
            if found.get(claim.uid) is not unlisted:
                other = self._without(claim, found, listing)
                found.setdefault(other.uid, _renamed(unlisted, claim, other))
        listed = {
            uid: {name: grant for name, grant in grants.items() if not grant.ids.isdisjoint(holders)}
            for uid, grants in self._grants.items()
        }
        self._grants = {uid: listed.get(uid, {}) | found.get(uid, {}) for uid in {**listed, **found}}

    def _without(self, claim: Claim, found: Collection[str], listing: DeviceListing) -> Claim:
        """A pod that asks as ``claim`` does and has nothing, one that the kubelet knows if there is; or that itself."""
        others = [
            one
            for one in self._claims.values()
            if one.likeness == claim.likeness
            and not one.pod.terminating
            and one.uid not in found
            and not listing.get(one.pod.key)
        ]
        return min(others, key=lambda one: (one.pod.key not in listing, one.assume_time_ns), default=claim)

    def unconfirmed(self, now_s: float) -> bool:
        """Whether the kubelet was given answers that it has not listed yet, or is about to ask for what it was told."""
        if self.preference is not None and now_s - self.preference.at_s > PREFERRED_GRACE_S:
            self.preference = None
        return self.preference is not None or any(
            not self._is_init(uid, container) for uid, (container, _), _ in self._all()
        )

    def _all(self) -> list[tuple[str, tuple[str, str], _Grant]]:
        return [(uid, name, grant) for uid, grants in self._grants.items() for name, grant in grants.items()]

    def _is_init(self, uid: str, container: str) -> bool:
        """Whether it is an init container: the kubelet lists no devices of those."""
        claim = self._claims.get(uid)
        return claim is not None and any(
            one.name == container and one.kind is ContainerKind.INIT for one in claim.request.containers
        )


def _renamed(
    grants: Mapping[tuple[str, str], _Grant], claim: Claim, other: Claim
) -> dict[tuple[str, str], _Grant]:
    """Answers for containers of ``claim`` as those for the same containers of ``other``, which asks alike."""
    pairs = zip(claim.request.containers, other.request.containers, strict=True)
    named = {one.name: their.name for one, their in pairs}
    return {(named[container], resource): grant for (container, resource), grant in grants.items()}
