"""ResourcePolicies in the extender's verbs: which nodes a pod may have now, and the places that are booked for pods.

``filter`` returns only nodes of one unit and promises the pod a place in it. So the unit counts as taken for the next pod
before a Binding is seen. A promise ends when the pod is seen bound, is filtered again, or after some seconds. None of this is persisted:
how long a pod is pending is derived from its condition or an annotation (``refused_since``), and what a unit holds from its pods.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import compress
from typing import Final

import msgspec
import numpy as np

from gpushare.api.crd.resource_policy import PolicyPod, ResourcePolicy, TryNext, policy_pod_of
from gpushare.api.names import SCHEDULER_NAME
from gpushare.api.objects import Pod
from gpushare.kube.clock import Clock
from gpushare.ledger import Verdict
from gpushare.ledger.arrays import Mask
from gpushare.process.event import Event
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.plugins.resource_policy.model.policy_index import Census
from gpushare.scheduler.plugins.resource_policy.model.unit_selection import (
    PREEMPTION_S,
    Choice,
    Standing,
    choose,
)
from gpushare.scheduler.plugins.resource_policy.model.unit_usage import PolicyBook
from gpushare.scheduler.requeue.refused_since import RefusedSince
from gpushare.scheduler.server.protocol import Victims

logger = logging.getLogger(__name__)

#: Seconds until an unused promise expires.
PROMISED_S: Final = 15.0
#: Seconds after which a pod is retried if kube-scheduler may have sent us only a part of the nodes.
LOOK_AGAIN_S: Final = 15.0
#: kube-scheduler never stops its search for feasible nodes before it has found so many.
_FEWEST_OFFERED: Final = 100
_REMEMBERED: Final = 4096
_AT_ONCE: Final = 64
#: Seconds for which a pod is remembered that our watch has not shown yet: kube-scheduler's watch may be ahead.
_UNSEEN_S: Final = 10.0


class Promise(msgspec.Struct):
    """A place booked for ``pod`` in ``book`` until ``until_s`` (monotonic)."""

    book: PolicyBook
    pod: PolicyPod
    until_s: float


class InTurn:
    """Iterates over the nodes of a gang's pod in its policy's order: the nodes of the first unit, then those of the next unit added, and so on.

    A next unit is added only if the policy allows it after the gang found no room in the previous ones.
    """

    def __init__(
        self,
        key: str,
        names: list[str],
        masks: list[Mask],
        choice: Callable[[Collection[int]], Choice] | None,
        destined: str,
        *,
        without_group: str = "",
    ) -> None:
        self._key = key
        self._names = names
        self._masks = masks
        self._choice = choice
        self._without_group = without_group
        self._listed = np.zeros(len(names), np.bool_)
        self._failed: set[int] = set()
        if destined in names and choice is not None:
            self._start_at(names.index(destined), choice)

    def __iter__(self) -> Iterator[list[str]]:
        """Growing lists of nodes. Take the next one only if the gang has no room on the last one."""
        while self._choice is not None and (unit := self._choice(self._failed).unit) is not None:
            self._failed.add(unit)
            self._listed |= self._masks[unit]
            yield list(compress(self._names, self._listed.tolist()))

    def rest(self) -> dict[str, str]:
        """By node, the reason why the pod may not have a node that was not listed."""
        if self._choice is None:
            return dict.fromkeys(self._names, self._without_group)
        reasons = self._choice(self._failed).reasons
        return _reasons_by_node(self._key, self._names, self._masks, reasons, but=self._listed)

    def _start_at(self, place: int, choice: Callable[[Collection[int]], Choice]) -> None:
        """Start at the unit of the pod's planned node, if the policy allows it. A search in earlier units would discard the plan."""
        failed: set[int] = set()
        while (unit := choice(failed).unit) is not None:
            if self._masks[unit][place]:
                self._failed = failed
                for number in failed:
                    self._listed |= self._masks[number]
                return
            failed.add(unit)


class Policies:
    """The scheduler's state of ResourcePolicies. ``waiting`` are the pending pods under a policy, by UID.

    ``kept_on``: the node that is nominated for a pod until its victims have ended (``nominations.node_of`` of the ledger).
    """

    def __init__(self, clock: Clock, *, kept_on: Callable[[str], str] = lambda uid: "") -> None:
        self.census = Census()
        self.waiting: dict[str, PodRecord] = {}
        self.promises: dict[str, Promise] = {}
        self.unread: set[str] = set()
        """Namespaces whose pods are not all known yet."""
        self.strays: set[str] = set()
        """Namespaces without policies whose pods may still have a deletion cost that we wrote."""
        self.pod_refused: Event[str] = Event()
        """Called with the UID of a pod that no unit takes now."""
        self.retry_wanted: Event[list[str]] = Event()
        """Called with the UIDs of pods that kube-scheduler should retry soon."""
        self.capacity_freed: Event[[]] = Event()
        """Called when a place in a unit was freed."""
        self._nominated_node = kept_on
        self._clock = clock
        self.since = RefusedSince()
        self._due: dict[str, float] = {}
        # By UID and unit, since when preemption has been tried in the unit before the next one.
        self._tried: OrderedDict[str, dict[int, float]] = OrderedDict()
        # Pods whose policy was deleted: their watch may have stopped, so they are retried once.
        self._orphans: set[str] = set()

    @property
    def in_use(self) -> bool:
        """Whether there is any policy."""
        return bool(self.census.namespaces)

    def governs(self, namespace: str) -> bool:
        """Whether there is a policy in the namespace."""
        return self.in_use and namespace in self.census.namespaces

    # --- informer events --------------------------------------------------------------------------

    def upsert_policy(self, policy: ResourcePolicy) -> None:
        """A policy was added or changed: retry the pods that are pending because of it."""
        new = policy.namespace not in self.census.namespaces
        if self.census.set_policy(policy):
            if new:
                self.unread.add(policy.namespace)
            self._renew_promises(policy.namespace)
            logger.info("ResourcePolicy %s: %d units", policy.key, len(policy.units))
            self.refresh(policy.namespace)

    def remove_policy(self, key: str) -> None:
        """A policy was deleted: it no longer restricts its pods."""
        self.census.remove_policy(key)
        namespace = key.partition("/")[0]
        if namespace not in self.census.namespaces:
            self.unread.discard(namespace)
            self.strays.add(namespace)
        self._renew_promises(namespace)
        self.refresh(namespace)
        logger.info("ResourcePolicy %s is gone", key)

    def upsert_pod(self, pod: PolicyPod) -> None:
        """A pod of a namespace with policies was added or changed."""
        self.census.set_pod(pod)
        if pod.node:
            self._forget(pod.uid)
            self.since.forget(pod.uid)
            self.promises.pop(pod.uid, None)
        elif not self._store_if_waiting(pod):
            self.waiting.pop(pod.uid, None)

    def remove_pod(self, pod: PolicyPod) -> None:
        """A pod has ended or was deleted: its place is free."""
        self.census.remove_pod(pod.uid)
        self._forget(pod.uid)
        self.since.forget(pod.uid)
        self.end_promise(pod.uid)
        if pod.node:
            self.capacity_freed()

    def refresh(self, namespace: str) -> None:
        """The policies of a namespace have changed: retry its pending pods soon."""
        prefix = f"{namespace}/"
        now_s = self._clock.monotonic()
        for uid, record in self.waiting.items():
            if record.pod.startswith(prefix):
                self._due[uid] = now_s
                self._orphans.add(uid)
        for pod in self.census.pods_of(namespace):
            if not pod.node and self._store_if_waiting(pod):
                self._due[pod.uid] = now_s

    def _store_if_waiting(self, pod: PolicyPod) -> bool:
        """Store a pending pod and return true if a policy applies to it and our kube-scheduler places it."""
        if pod.scheduler not in ("", SCHEDULER_NAME):
            return False
        if self.census.book_for(pod.namespace, pod.labels) is None:
            return False
        if pod.uid not in self.waiting:
            created = datetime.fromtimestamp(pod.created, UTC).isoformat() if pod.created else ""
            self.waiting[pod.uid] = PodRecord(pod.uid, pod.key, "", finished=False, created=created)
        self.since.seen(pod, self._now)
        return True

    def kept(self, uid: str) -> PodRecord | None:
        """The record of a pending pod to which a policy applies; ``None`` for any other pod."""
        pod = self.census.pod(uid)
        if pod is None or self.census.book_for(pod.namespace, pod.labels) is None:
            return None
        return self.waiting.get(uid)

    # --- filter -----------------------------------------------------------------------------------

    def in_turn(self, asked: Pod, names: list[str], destined: str = "") -> "InTurn | None":
        """The nodes that the pod may have, unit by unit; ``None`` if no policy applies to it.

        For pods of a gang, before the search for room, so that the plan does not use nodes that the policy excludes. ``destined`` is the
        node of an earlier plan.
        """
        if not self.in_use:
            return None
        book = self.census.book_for(asked.metadata.namespace, asked.metadata.labels or {})
        if book is None:
            return None
        pod = policy_pod_of(asked)
        group = book.group_of(pod)
        if isinstance(group, str):
            return InTurn(book.policy.key, names, [], None, "", without_group=group)
        masks = list(book.masks(pod, self.census.nodes.places(names)))
        standings = book.standings(pod, group, masks)

        def choice(failed: Collection[int]) -> Choice:
            # A unit without room for the gang counts as having no suitable node.
            effective = [
                standing._replace(takes=False) if number in failed else standing
                for number, standing in enumerate(standings)
            ]
            return self._choice(book, pod, asked, effective)

        return InTurn(book.policy.key, names, masks, choice, destined)

    def narrow(self, asked: Pod, verdict: Verdict) -> Verdict:
        """``verdict`` without the nodes that the pod's policy excludes; the same object if no policy applies."""
        if not self.in_use:
            return verdict
        book = self.census.book_for(asked.metadata.namespace, asked.metadata.labels or {})
        if book is None:
            return verdict
        uid, key = asked.metadata.uid, book.policy.key
        everywhere = [*verdict.fits, *verdict.refused, *verdict.hopeless]
        self._due.pop(uid, None)
        if asked.metadata.namespace in self.unread:
            self._due[uid] = self._clock.monotonic() + 1.0
            return _refused(everywhere, f"ResourcePolicy {key}: its pods have not been loaded yet")
        pod = policy_pod_of(asked)
        group = book.group_of(pod)
        if isinstance(group, str):
            return _refused(everywhere, group)
        booking = book.booked.get(uid)
        if booking is not None and booking.node in verdict.fits:
            reason = f"the pod is still being bound to node {booking.node}"
            others = {name: reason for name in everywhere if name != booking.node}
            return Verdict([booking.node], {}, others)
        at = self.census.nodes.places(verdict.fits)
        masks = list(book.masks(pod, at))
        choice = self._choose(book, pod, asked, masks)
        if choice.unit is not None:
            self.promise(book, pod, choice.unit)
            # Reasons of other units are not shown for a pod that has a unit, and thousands of them take time to encode and decode.
            fits = list(compress(verdict.fits, masks[choice.unit].tolist()))
            return Verdict(fits, verdict.refused, verdict.hopeless)
        self.end_promise(uid)
        self.pod_refused(uid)
        self._schedule_retry(uid, choice, len(everywhere))
        if self.since.refused(pod, self._now) and book.policy.try_next is TryNext.TIMEOUT:
            self._due[uid] = self._clock.monotonic()  # the touch writes the time to the pod's annotation
        return self._none_takes_it(book, pod, verdict, masks, choice)

    def _choose(self, book: PolicyBook, pod: PolicyPod, asked: Pod, masks: list[Mask]) -> Choice:
        group = book.group_of(pod)
        assert not isinstance(group, str)
        return self._choice(book, pod, asked, book.standings(pod, group, masks))

    def _choice(self, book: PolicyBook, pod: PolicyPod, asked: Pod, standings: list[Standing]) -> Choice:
        waited_s = self.since.waited_s(pod, self._now)
        # Preemption starts only after the pod was refused, so a unit counts as tried only after ``PREEMPTION_S``.
        over_s = self._clock.monotonic() - PREEMPTION_S
        tried = {number for number, at_s in self._tried.get(pod.uid, {}).items() if at_s <= over_s}
        if asked.spec.preemption_policy == "Never":
            tried = set(range(len(book.policy.units)))
        elif tried and (pod.nominated or self._nominated_node(pod.uid)):
            # Victims are ending: the unit of the last attempt does not count as tried yet.
            tried = tried - {max(tried)}
        return choose(book.policy, standings, waited_s, tried)

    def _none_takes_it(
        self, book: PolicyBook, pod: PolicyPod, verdict: Verdict, masks: list[Mask], choice: Choice
    ) -> Verdict:
        """The verdict for a pod that no unit takes. Only on nodes of ``choice.ending`` may pods be evicted for it."""
        key = book.policy.key
        hopeless = _reasons_by_node(key, verdict.fits, masks, choice.reasons)
        resolvable: dict[str, str] = {}
        if verdict.refused:
            refused = list(verdict.refused)
            refused_masks = list(book.masks(pod, self.census.nodes.places(refused)))
            ending = np.zeros(len(refused), np.bool_)
            for number in choice.ending:
                ending |= refused_masks[number]
            resolvable = dict(compress(verdict.refused.items(), ending.tolist()))
            hopeless |= _reasons_by_node(key, refused, refused_masks, choice.reasons, but=ending)
        return Verdict([], resolvable, verdict.hopeless | hopeless)

    def _schedule_retry(self, uid: str, choice: Choice, offered: int) -> None:
        wait_s = choice.wait_s
        if choice.tries is not None:
            self._tried.setdefault(uid, {}).setdefault(choice.tries, self._clock.monotonic())
            if len(self._tried) > _REMEMBERED:
                self._tried.popitem(last=False)
        if _FEWEST_OFFERED <= offered < len(self.census.nodes):
            wait_s = min(wait_s or LOOK_AGAIN_S, LOOK_AGAIN_S)
        if wait_s is not None:
            self._due[uid] = self._clock.monotonic() + wait_s
        # Entries of pending pods are never dropped, as nothing else retries them at their time.
        if len(self._due) > len(self.waiting) + _REMEMBERED:
            self._due.pop(next(one for one in self._due if one not in self.waiting))

    # --- preempt ----------------------------------------------------------------------------------

    def preemptable(self, asked: Pod, victims: Mapping[str, Victims]) -> dict[str, Victims]:
        """The nodes of ``victims`` on which pods may be evicted for the pod: those of the first unit that has any."""
        victims_by_node = dict(victims)
        book = self.census.book_for(asked.metadata.namespace, asked.metadata.labels or {})
        if book is None:
            return victims_by_node
        pod = policy_pod_of(asked)
        if asked.metadata.namespace in self.unread or isinstance(book.group_of(pod), str):
            return {}
        nowhere = list(book.masks(pod, self.census.nodes.places(())))
        choice = self._choose(book, pod, asked, nowhere)
        self._schedule_retry(asked.metadata.uid, choice, 0)
        nodes = list(victims_by_node)
        masks = list(book.masks(pod, self.census.nodes.places(nodes)))
        for number in sorted(choice.ending):
            if masks[number].any():
                return {name: victims_by_node[name] for name in compress(nodes, masks[number].tolist())}
        return {}

    def by_unit(self, uid: str, nodes: list[str]) -> list[list[str]]:
        """The nodes of ``nodes`` that the pod may have, as a list for each unit that is not full, in the order of units."""
        pod = self.census.pod(uid)
        book = None if pod is None else self.census.book_for(pod.namespace, pod.labels)
        if pod is None or book is None:
            return [nodes]
        group = book.group_of(pod)
        if isinstance(group, str):
            return []
        masks = book.masks(pod, self.census.nodes.places(nodes))
        groups = [list(compress(nodes, mask.tolist())) for mask in masks]
        return [
            group_nodes
            for number, group_nodes in enumerate(groups)
            if group_nodes and not book.full(pod, group, number)
        ]

    # --- promises ---------------------------------------------------------------------------------

    def promise(self, book: PolicyBook, pod: PolicyPod, unit: int, node: str = "") -> None:
        """Promise the pod a place in ``unit``; ``node`` is that of its Binding, which is in flight."""
        self.end_promise(pod.uid)
        book.book(pod, unit, node)
        self.promises[pod.uid] = Promise(book, pod, self._clock.monotonic() + PROMISED_S)

    def _renew_promises(self, namespace: str) -> None:
        """The namespace's policies have changed: move each promise to the book of the policy that applies now.

        The census has moved the bookings of pods that it knows. A pod that is being bound may not be known from the watch yet.
        """
        for uid, promise in self.promises.items():
            if promise.pod.namespace != namespace:
                continue
            book = self.census.book_for(namespace, promise.pod.labels)
            if book is None or book is promise.book:
                continue
            booking = promise.book.booked.get(uid)
            promise.book.unbook(uid)
            promise.book = book
            if booking is not None and booking.node and uid not in book.booked and uid not in book.counted:
                unit = book.unit_for(promise.pod, booking.node)
                if unit is not None:
                    book.book(promise.pod, unit, booking.node)

    def prolong(self, uid: str) -> None:
        """Prolong the pod's promise: the outcome of its Binding is not known yet."""
        promise = self.promises.pop(uid, None)
        if promise is not None:
            promise.until_s = self._clock.monotonic() + PROMISED_S
            self.promises[uid] = promise  # keeps the mapping sorted by end

    def end_promise(self, uid: str) -> None:
        """Remove the pod's promise and its booking."""
        promise = self.promises.pop(uid, None)
        if promise is not None:
            promise.book.unbook(uid)

    def overdue(self) -> list[Promise]:
        """Expired promises of Bindings, at most ``_AT_ONCE``. Expired promises of ``filter`` are removed here."""
        now_s = self._clock.monotonic()
        expired: list[Promise] = []
        for uid, promise in list(self.promises.items()):
            if promise.until_s > now_s or len(expired) == _AT_ONCE:
                break
            booking = promise.book.booked.get(uid)
            if booking is None or not booking.node:
                self.end_promise(uid)
            else:
                expired.append(promise)
        return expired

    # --- retries ----------------------------------------------------------------------------------

    def hurry(self) -> None:
        """Retry pods that are due, and again every ``LOOK_AGAIN_S`` seconds until kube-scheduler filters them."""
        now_s = self._clock.monotonic()
        due: list[str] = []
        for uid, due_s in [(uid, due_s) for uid, due_s in self._due.items() if due_s <= now_s]:
            if uid not in self.waiting:
                if now_s >= due_s + _UNSEEN_S:
                    self._forget(uid)
            elif self.census.pod(uid) is None and uid not in self._orphans:
                self._forget(uid)
            elif len(due) < _AT_ONCE:
                # Moved to the end, so that every pod gets its turn even if others become due again and again.
                del self._due[uid]
                self._due[uid] = now_s + LOOK_AGAIN_S
                self._orphans.discard(uid)
                due.append(uid)
        if due:
            self.retry_wanted(due)

    def _forget(self, uid: str) -> None:
        self.waiting.pop(uid, None)
        self._due.pop(uid, None)
        self._tried.pop(uid, None)
        self._orphans.discard(uid)

    @property
    def _now(self) -> float:
        """Seconds since 1970."""
        return self._clock.time_ns() / 1e9


def _refused(names: Iterable[str], reason: str) -> Verdict:
    # Unresolvable, as evictions could not help.
    return Verdict([], {}, dict.fromkeys(names, reason))


def _reasons_by_node(
    key: str, names: list[str], masks: list[Mask], reasons: tuple[str, ...], but: Mask | None = None
) -> dict[str, str]:
    """By node of ``names`` without those of ``but``, why its unit is not for the pod."""
    reasons_by_node: dict[str, str] = {}
    remaining = np.ones(len(names), np.bool_) if but is None else ~but
    for number, mask in enumerate(masks):
        reasons_by_node |= dict.fromkeys(
            compress(names, (mask & remaining).tolist()),
            f"ResourcePolicy {key}: unit {number + 1}: {reasons[number]}",
        )
        remaining &= ~mask
    reasons_by_node |= dict.fromkeys(
        compress(names, remaining.tolist()), f"ResourcePolicy {key}: the node is in none of its units"
    )
    return reasons_by_node
