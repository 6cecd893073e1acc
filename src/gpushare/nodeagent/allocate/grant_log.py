"""Device IDs that were granted to containers: what ``Allocate`` answered, and what the kubelet lists. Pure.

The kubelet's pod resources are the truth about where containers are, and they lag: a grant is listed a moment later, and for the
pod that was really admitted, which may be another one with an identical request.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpushare.api.request.request import ContainerKind
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod

#: How long a grant is trusted that the kubelet does not list, in seconds. It lists grants immediately, unless it died before it
#: wrote its checkpoint: then it calls ``Allocate`` again.
UNLISTED_GRACE_S: Final = 10.0

#: How long ``Allocate`` is awaited after ``GetPreferredAllocation``, in seconds. The kubelet calls it immediately.
PREFERRED_GRACE_S: Final = 2.0


class Slot(NamedTuple):
    """What one ``Allocate`` serves: a resource of a container."""

    uid: str
    container: str
    resource: str


class Preference(NamedTuple):
    """The IDs that the kubelet was asked to take, and the pod that they are presumably for (UID, may be empty)."""

    uid: str
    ids: frozenset[str]
    at_s: float


#: (container, resource) → device IDs.
DevicesByContainer = Mapping[tuple[str, str], frozenset[str]]
#: ``namespace/name`` → the device IDs of its containers, as the kubelet's pod resources list them.
DeviceListing = Mapping[str, DevicesByContainer]


@dataclass(frozen=True, slots=True)
class _Grant:
    ids: frozenset[str]
    at_s: float


class GrantLog:
    """Grants for ``pods`` (by UID), a mapping that its owner keeps up to date."""

    def __init__(self, pods: Mapping[str, AllocatedPod]) -> None:
        self._pods = pods
        self._uids: dict[str, list[str]] = {}
        """The pods' UIDs by ``namespace/name``, the latest last."""
        self._grants: dict[str, dict[tuple[str, str], _Grant]] = {}
        self._listing: dict[str, DevicesByContainer] | None = None
        self._listed_at_s = float("-inf")
        self._registered_at_s: dict[str, float] = {}
        self._seen_with_devices: set[str] = set()
        self._preference: Preference | None = None
        self._changed: dict[str, None] = {}

    @property
    def preference(self) -> Preference | None:
        """The last answer to ``GetPreferredAllocation``, until ``Allocate`` is called."""
        return self._preference

    @preference.setter
    def preference(self, preference: Preference | None) -> None:
        self.touch(one.uid for one in (self._preference, preference) if one is not None)
        self._preference = preference

    def take_changed(self) -> Collection[str]:
        """The pods (UIDs) of which anything may have changed since the last call, in that order."""
        if not self._changed:
            return ()
        changed, self._changed = self._changed, {}
        return changed

    def touch(self, uids: Iterable[str]) -> None:
        """``take_changed`` is to return these pods."""
        self._changed.update(dict.fromkeys(uids))

    @property
    def has_listing(self) -> bool:
        """Whether the kubelet has ever listed its pods."""
        return self._listing is not None

    def lists(self, key: str) -> bool:
        """Whether the kubelet lists the pod ``namespace/name`` at all."""
        return self._listing is not None and key in self._listing

    def listed(self, key: str) -> DevicesByContainer:
        """What the kubelet lists for the pod ``namespace/name``."""
        return {} if self._listing is None else self._listing.get(key, {})

    def without_devices(self) -> list[str]:
        """Pods (``namespace/name``) that the kubelet lists without any device of ours."""
        return [key for key, devices in (self._listing or {}).items() if not devices]

    def has_had_devices(self, pod: AllocatedPod) -> bool:
        """Whether the kubelet has listed devices of it (it lists none of init containers)."""
        if pod.uid in self._seen_with_devices:
            return True
        return pod.assigned and any(one.kind is ContainerKind.APP for one in pod.request.containers)

    def put(self, pod: AllocatedPod) -> None:
        """The pod is new among ``pods``, or its record changed."""
        uids = self._uids.setdefault(pod.key, [])
        if pod.uid not in uids:
            uids.append(pod.uid)
            self._forget_listing(pod.key)  # another pod's of the same name
        self.touch([pod.uid])

    def is_preferred(self, ids: Iterable[str]) -> bool:
        """Whether the kubelet was asked to take exactly these."""
        return self.preference is not None and self.preference.ids == frozenset(ids)

    def grant(self, slot: Slot, ids: Iterable[str], now_s: float) -> None:
        """Record the answer to an ``Allocate``."""
        self.preference = None
        self._grants.setdefault(slot.uid, {})[slot.container, slot.resource] = _Grant(frozenset(ids), now_s)
        self.touch([slot.uid])

    def revoke(self, slot: Slot) -> None:
        """The ``Allocate`` failed after all."""
        self._grants.get(slot.uid, {}).pop((slot.container, slot.resource), None)
        self.touch([slot.uid])

    def drop(self, pod: AllocatedPod) -> None:
        """The pod is gone."""
        self._forget_listing(pod.key)
        self._grants.pop(pod.uid, None)
        self._seen_with_devices.discard(pod.uid)
        if pod.uid in (uids := self._uids.get(pod.key, [])):
            uids.remove(pod.uid)
        if not uids:
            self._uids.pop(pod.key, None)

    def device_ids(self, pod: AllocatedPod) -> dict[tuple[str, str], frozenset[str]]:
        """(container, resource) → the pod's device IDs: as the kubelet lists them, or as granted since."""
        ids = {name: grant.ids for name, grant in self._grants.get(pod.uid, {}).items()}
        return ids | dict(self.listed(pod.key))

    def kubelet_registered(self, resource: str, at_s: float) -> None:
        """A kubelet, perhaps a restarted one, accepted our registration of ``resource``.

        It calls ``Allocate`` again for what was granted before and it does not list.
        """
        self._registered_at_s[resource] = at_s

    def registered_at_s(self, resource: str) -> float:
        """When that was last."""
        return self._registered_at_s.get(resource, float("-inf"))

    def observe(
        self, listing: DeviceListing, requested_at_s: float, *, grace_s: float = UNLISTED_GRACE_S
    ) -> list[Slot]:
        """Take in the kubelet's list as requested at ``requested_at_s``; returns the grants that are no longer trusted.

        Grants after that moment override the list. Unlisted ones are trusted for ``grace_s`` seconds, or until the kubelet may have
        restarted. A list that was requested before the latest one is ignored: grants are then compared with the latest.
        """
        if requested_at_s < self._listed_at_s and self._listing is not None:
            listing, requested_at_s = self._listing, self._listed_at_s
        self._listed_at_s = requested_at_s
        self._take(listing)
        if not self._grants:
            return []
        before = {uid: dict(grants) for uid, grants in self._grants.items()}
        # The list may be that of the kubelet before a restart.
        registered = {name: at_s for name, at_s in self._registered_at_s.items() if at_s <= requested_at_s}
        granted = frozenset[str]().union(*(grant.ids for *_, grant in self._all()))
        holders = {
            device: key
            for key, devices in listing.items()
            for ids in devices.values()
            for device in ids & granted
        }
        self._reassign(listing, holders)
        forgotten = []
        for uid, name, grant in self._all():
            pod = self._pods.get(uid)
            age_s = requested_at_s - grant.at_s
            if age_s < 0 and pod is not None:
                continue
            init = self._is_init(uid, name[0])
            # Listed for another pod: one with an identical request, which was mistaken for this one.
            if pod is None or (not init and not grant.ids.isdisjoint(holders)):
                del self._grants[uid][name]
            elif name in listing.get(pod.key, {}):
                # The pod has other devices: the grant was for an identical pod, and will be listed for that one.
                if age_s > grace_s:
                    del self._grants[uid][name]
            elif grant.at_s < registered.get(name[1], 0.0) or (age_s > grace_s and not init):
                del self._grants[uid][name]
                forgotten.append(Slot(uid, *name))
        self._grants = {uid: grants for uid, grants in self._grants.items() if grants}
        uids = {**before, **self._grants}
        self.touch(uid for uid in uids if before.get(uid) != self._grants.get(uid))
        return forgotten

    def _take(self, listing: DeviceListing) -> None:
        """Replace the list; entries that stayed the same, which mostly are the same objects, cost little."""
        known = {} if self._listing is None else self._listing
        if self._listing is None:
            self.touch(self._pods)
        for key, devices in listing.items():
            was = known.get(key)
            if was is not devices and was != devices:
                self.touch(self._uids.get(key, ()))
                if devices:
                    self._seen_with_devices.update(self._uids.get(key, ()))
        for key in known.keys() - listing.keys():
            self.touch(self._uids.get(key, ()))
        self._listing = dict(listing)

    def _forget_listing(self, key: str) -> None:
        if self._listing is not None:
            self._listing.pop(key, None)
        self.touch(self._uids.get(key, ()))

    def _reassign(self, listing: DeviceListing, holders: Mapping[str, str]) -> None:
        """Assign unlisted grants to the pods that they were for, as far as the list tells.

        The kubelet admits one pod at a time: if one of a pod's grants is listed for another pod, so will the rest be. And a pod
        that has other devices was not the one admitted: an identical pod without devices was.
        """
        reassigned: dict[str, dict[tuple[str, str], _Grant]] = {}
        unmatched = []
        for uid, grants in self._grants.items():
            pod = self._pods.get(uid)
            unlisted = {name: grant for name, grant in grants.items() if grant.ids.isdisjoint(holders)}
            if pod is None or not unlisted:
                continue
            keys = {holders[device] for grant in grants.values() for device in grant.ids if device in holders}
            others = sorted(key for key in keys - {pod.key} if key in self._uids)
            holder = self._pods[self._uids[others[0]][-1]] if others else None
            if (
                holder is not None
                and holder.request_signature == pod.request_signature
                and holder.uid not in reassigned
            ):
                reassigned[holder.uid] = _renamed(unlisted, pod, holder)
            else:
                unmatched.append((pod, unlisted))
        for pod, unlisted in unmatched:
            if pod.uid not in reassigned and not unlisted.keys() & listing.get(pod.key, {}).keys():
                reassigned[pod.uid] = unlisted
        for pod, unlisted in unmatched:
            if reassigned.get(pod.uid) is not unlisted:
                other = self._identical_without_devices(pod, reassigned, listing)
                reassigned.setdefault(other.uid, _renamed(unlisted, pod, other))
        listed = {
            uid: {name: grant for name, grant in grants.items() if not grant.ids.isdisjoint(holders)}
            for uid, grants in self._grants.items()
        }
        self._grants = {
            uid: listed.get(uid, {}) | reassigned.get(uid, {}) for uid in {**listed, **reassigned}
        }

    def _identical_without_devices(
        self, pod: AllocatedPod, reassigned: Collection[str], listing: DeviceListing
    ) -> AllocatedPod:
        """A pod with an identical request and no devices, preferably one that the kubelet lists; else ``pod`` itself."""
        others = [
            other
            for other in self._pods.values()
            if other.request_signature == pod.request_signature
            and not other.bound.terminating
            and other.uid not in reassigned
            and not listing.get(other.key)
        ]
        return min(others, key=lambda other: (other.key not in listing, other.assume_time_ns), default=pod)

    def unconfirmed(self, now_s: float) -> bool:
        """Whether there are grants that the kubelet has not listed yet, or a preference that it is about to act on."""
        if self.preference is not None and now_s - self.preference.at_s > PREFERRED_GRACE_S:
            self.preference = None
        return self.preference is not None or any(
            not self._is_init(uid, container) for uid, (container, _), _ in self._all()
        )

    def _all(self) -> list[tuple[str, tuple[str, str], _Grant]]:
        return [(uid, name, grant) for uid, grants in self._grants.items() for name, grant in grants.items()]

    def _is_init(self, uid: str, container: str) -> bool:
        """Whether it is an init container: the kubelet lists no devices of those."""
        pod = self._pods.get(uid)
        return pod is not None and any(
            one.name == container and one.kind is ContainerKind.INIT for one in pod.request.containers
        )


def _renamed(
    grants: Mapping[tuple[str, str], _Grant], pod: AllocatedPod, other: AllocatedPod
) -> dict[tuple[str, str], _Grant]:
    """Grants for containers of ``pod`` as grants for the same containers of ``other``, whose request is identical."""
    pairs = zip(pod.request.containers, other.request.containers, strict=True)
    names = {one.name: their.name for one, their in pairs}
    return {(names[container], resource): grant for (container, resource), grant in grants.items()}
