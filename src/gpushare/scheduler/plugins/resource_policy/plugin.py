"""ResourcePolicies in the verbs of the extender: which nodes a pod may have now, and what becomes of its place.

``filter`` leaves the nodes of one unit and promises the pod a place in it, so that the next pod is not sent to a unit that
is taken though no Binding was seen yet. A promise ends when the pod is seen bound, is asked about again, or after some
seconds. Nothing of this is stored: how long a pod waits is told by its own condition, or a note on it (``refused_since``), what a
unit holds by its pods.
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

#: Seconds that a promise lasts that nobody has acted on.
PROMISED_S: Final = 15.0
#: Seconds after which a pod is asked about again where kube-scheduler may have shown us a part of the nodes only.
LOOK_AGAIN_S: Final = 15.0
#: kube-scheduler never stops looking for nodes before it has so many.
_FEWEST_OFFERED: Final = 100
_REMEMBERED: Final = 4096
_AT_ONCE: Final = 64
#: Seconds for which a pod is remembered of which its namespace's watch has not told yet: kube-scheduler's may be ahead of it.
_UNSEEN_S: Final = 10.0


class Promise(msgspec.Struct):
    """A place that ``pod`` has in ``book``, until ``until_s`` (monotonic)."""

    book: PolicyBook
    pod: PolicyPod
    until_s: float


class InTurn:
    """Goes through nodes as a pod's policy does: those of the first unit with room, and each next unit's besides.

    The next is gone to only where the policy lets the pod go on from those before, which took its gang in vain.
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
        self._there = np.zeros(len(names), np.bool_)
        self._vain: set[int] = set()
        if destined in names and choice is not None:
            self._go_to(names.index(destined), choice)

    def __iter__(self) -> Iterator[list[str]]:
        """Ask for more only where what was given last took the gang in vain."""
        while self._choice is not None and (unit := self._choice(self._vain).unit) is not None:
            self._vain.add(unit)
            self._there |= self._masks[unit]
            yield list(compress(self._names, self._there.tolist()))

    def rest(self) -> dict[str, str]:
        """Why the pod may have none of the nodes that were not given, by node."""
        if self._choice is None:
            return dict.fromkeys(self._names, self._without_group)
        reasons = self._choice(self._vain).reasons
        return _told(self._key, self._names, self._masks, reasons, but=self._there)

    def _go_to(self, place: int, choice: Callable[[Collection[int]], Choice]) -> None:
        """Begin where a plan is kept for the pod, if it may go on to there: to ask in units before would be the plan's end."""
        vain: set[int] = set()
        while (unit := choice(vain).unit) is not None:
            if self._masks[unit][place]:
                self._vain = vain
                for number in vain:
                    self._there |= self._masks[number]
                return
            vain.add(unit)


class Policies:
    """All that the scheduler knows of ResourcePolicies. ``waiting`` are the pods without a node that they govern, by UID.

    ``kept_on``: on which node capacity is nominated for a pod until others have ended (``Ledger.kept_on``).
    """

    def __init__(self, clock: Clock, *, kept_on: Callable[[str], str] = lambda uid: "") -> None:
        self.census = Census()
        self.waiting: dict[str, PodRecord] = {}
        self.promises: dict[str, Promise] = {}
        self.unread: set[str] = set()
        """Namespaces whose pods were not all read yet."""
        self.strays: set[str] = set()
        """Namespaces without policies in which pods may have a deletion cost of ours."""
        self.pod_refused: Event[str] = Event()
        """Called with the UID of a pod that no unit takes now."""
        self.retry_wanted: Event[list[str]] = Event()
        """Called with the UIDs of pods that kube-scheduler should ask about soon."""
        self.capacity_freed: Event[[]] = Event()
        """Called when a place in a unit came free."""
        self._kept_on = kept_on
        self._clock = clock
        self.since = RefusedSince()
        self._due: dict[str, float] = {}
        # Since when others may be ended for a pod in a unit, before the next is tried.
        self._tried: OrderedDict[str, dict[int, float]] = OrderedDict()
        # Pods whose policy is gone: nobody tells of them any more, they are tried again once.
        self._orphans: set[str] = set()

    @property
    def in_use(self) -> bool:
        """Whether there is any policy."""
        return bool(self.census.namespaces)

    def governs(self, namespace: str) -> bool:
        """Whether there is a policy in the namespace."""
        return self.in_use and namespace in self.census.namespaces

    # --- what the informers tell ------------------------------------------------------------------

    def upsert_policy(self, policy: ResourcePolicy) -> None:
        """A policy is new or changed: pods that wait because of it are tried again."""
        new = policy.namespace not in self.census.namespaces
        if self.census.set_policy(policy):
            if new:
                self.unread.add(policy.namespace)
            self._renew_promises(policy.namespace)
            logger.info("ResourcePolicy %s: %d units", policy.key, len(policy.units))
            self.refresh(policy.namespace)

    def remove_policy(self, key: str) -> None:
        """A policy is gone: its pods go anywhere."""
        self.census.remove_policy(key)
        namespace = key.partition("/")[0]
        if namespace not in self.census.namespaces:
            self.unread.discard(namespace)
            self.strays.add(namespace)
        self._renew_promises(namespace)
        self.refresh(namespace)
        logger.info("ResourcePolicy %s is gone", key)

    def upsert_pod(self, pod: PolicyPod) -> None:
        """A pod of a namespace with policies is new or changed."""
        self.census.set_pod(pod)
        if pod.node:
            self._forget(pod.uid)
            self.since.forget(pod.uid)
            self.promises.pop(pod.uid, None)
        elif not self._note_waiting(pod):
            self.waiting.pop(pod.uid, None)

    def remove_pod(self, pod: PolicyPod) -> None:
        """A pod has ended or is gone: others may have its place."""
        self.census.remove_pod(pod.uid)
        self._forget(pod.uid)
        self.since.forget(pod.uid)
        self.end_promise(pod.uid)
        if pod.node:
            self.capacity_freed()

    def refresh(self, namespace: str) -> None:
        """What a namespace's pods wait for has changed: ask about them again soon."""
        prefix = f"{namespace}/"
        now_s = self._clock.monotonic()
        for uid, record in self.waiting.items():
            if record.pod.startswith(prefix):
                self._due[uid] = now_s
                self._orphans.add(uid)
        for pod in self.census.pods_of(namespace):
            if not pod.node and self._note_waiting(pod):
                self._due[pod.uid] = now_s

    def _note_waiting(self, pod: PolicyPod) -> bool:
        """Whether a pod without a node waits for a unit: one has it, and it is our kube-scheduler's."""
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
        """The pod that waits for a unit of a policy that is there; ``None`` where there is no such."""
        pod = self.census.pod(uid)
        if pod is None or self.census.book_for(pod.namespace, pod.labels) is None:
            return None
        return self.waiting.get(uid)

    # --- filter -----------------------------------------------------------------------------------

    def in_turn(self, asked: Pod, names: list[str], destined: str = "") -> "InTurn | None":
        """The nodes that the pod may have, unit by unit; ``None`` where no policy decides for it.

        For pods that are planned with others, before anything else is asked: the plan must not be in vain. ``destined`` is the
        node to which it goes already, by an earlier plan.
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

        def choice(vain: Collection[int]) -> Choice:
            # What did not take its gang is as if it had no node.
            left = [
                one._replace(takes=False) if number in vain else one for number, one in enumerate(standings)
            ]
            return self._choice(book, pod, asked, left)

        return InTurn(book.policy.key, names, masks, choice, destined)

    def narrow(self, asked: Pod, verdict: Verdict) -> Verdict:
        """What is left of the nodes that take the pod, for its policy's sake; ``verdict`` itself where it has none."""
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
            return _refused(everywhere, f"ResourcePolicy {key}: its pods are not read yet")
        pod = policy_pod_of(asked)
        group = book.group_of(pod)
        if isinstance(group, str):
            return _refused(everywhere, group)
        booking = book.booked.get(uid)
        if booking is not None and booking.node in verdict.fits:
            reason = f"the pod's binding to node {booking.node} is still under way"
            others = {name: reason for name in everywhere if name != booking.node}
            return Verdict([booking.node], {}, others)
        at = self.census.nodes.places(verdict.fits)
        masks = list(book.masks(pod, at))
        choice = self._choose(book, pod, asked, masks)
        if choice.unit is not None:
            self._promise(book, pod, choice.unit)
            # Nobody hears why other units are not the one, and thousands of reasons take time to write and to read.
            fits = list(compress(verdict.fits, masks[choice.unit].tolist()))
            return Verdict(fits, verdict.refused, verdict.hopeless)
        self.end_promise(uid)
        self.pod_refused(uid)
        self._wait(uid, choice, len(everywhere))
        if self.since.refused(pod, self._now) and book.policy.try_next is TryNext.TIMEOUT:
            self._due[uid] = self._clock.monotonic()  # the touch notes it on the pod
        return self._none(book, pod, verdict, masks, choice)

    def _choose(self, book: PolicyBook, pod: PolicyPod, asked: Pod, masks: list[Mask]) -> Choice:
        group = book.group_of(pod)
        assert not isinstance(group, str)
        return self._choice(book, pod, asked, book.standings(pod, group, masks))

    def _choice(self, book: PolicyBook, pod: PolicyPod, asked: Pod, standings: list[Standing]) -> Choice:
        waited_s = self.since.waited_s(pod, self._now)
        # kube-scheduler asks whom it may end after it was refused: until the time is over a unit is still being tried.
        over_s = self._clock.monotonic() - PREEMPTION_S
        tried = {number for number, at_s in self._tried.get(pod.uid, {}).items() if at_s <= over_s}
        if asked.spec.preemption_policy == "Never":
            tried = set(range(len(book.policy.units)))
        elif tried and (pod.nominated or self._kept_on(pod.uid)):
            # Room is being made: the unit in which that was tried last is not given up yet.
            tried = tried - {max(tried)}
        return choose(book.policy, standings, waited_s, tried)

    def _none(
        self, book: PolicyBook, pod: PolicyPod, verdict: Verdict, masks: list[Mask], choice: Choice
    ) -> Verdict:
        """No unit takes the pod. Others may be ended for it on the nodes of some of them."""
        key = book.policy.key
        told = _told(key, verdict.fits, masks, choice.reasons)
        kept: dict[str, str] = {}
        if verdict.refused:
            refused = list(verdict.refused)
            there = list(book.masks(pod, self.census.nodes.places(refused)))
            ending = np.zeros(len(refused), np.bool_)
            for number in choice.ending:
                ending |= there[number]
            kept = dict(compress(verdict.refused.items(), ending.tolist()))
            told |= _told(key, refused, there, choice.reasons, but=ending)
        return Verdict([], kept, verdict.hopeless | told)

    def _wait(self, uid: str, choice: Choice, offered: int) -> None:
        wait_s = choice.wait_s
        if choice.tries is not None:
            self._tried.setdefault(uid, {}).setdefault(choice.tries, self._clock.monotonic())
            if len(self._tried) > _REMEMBERED:
                self._tried.popitem(last=False)
        if _FEWEST_OFFERED <= offered < len(self.census.nodes):
            wait_s = min(wait_s or LOOK_AGAIN_S, LOOK_AGAIN_S)
        if wait_s is not None:
            self._due[uid] = self._clock.monotonic() + wait_s
        # None that waits is forgotten: nobody else has it tried when its time has come.
        if len(self._due) > len(self.waiting) + _REMEMBERED:
            self._due.pop(next(one for one in self._due if one not in self.waiting))

    # --- preempt ----------------------------------------------------------------------------------

    def preemptable(self, asked: Pod, victims: Mapping[str, Victims]) -> dict[str, Victims]:
        """Those nodes of ``victims`` on which others may be ended for the pod, of the first unit that has any."""
        found = dict(victims)
        book = self.census.book_for(asked.metadata.namespace, asked.metadata.labels or {})
        if book is None:
            return found
        pod = policy_pod_of(asked)
        if asked.metadata.namespace in self.unread or isinstance(book.group_of(pod), str):
            return {}
        nowhere = list(book.masks(pod, self.census.nodes.places(())))
        choice = self._choose(book, pod, asked, nowhere)
        self._wait(asked.metadata.uid, choice, 0)
        nodes = list(found)
        masks = list(book.masks(pod, self.census.nodes.places(nodes)))
        for number in sorted(choice.ending):
            if masks[number].any():
                return {name: found[name] for name in compress(nodes, masks[number].tolist())}
        return {}

    def by_unit(self, uid: str, nodes: list[str]) -> list[list[str]]:
        """Those of ``nodes`` that the pod may have, a list for each unit that is not full, in their order."""
        pod = self.census.pod(uid)
        book = None if pod is None else self.census.book_for(pod.namespace, pod.labels)
        if pod is None or book is None:
            return [nodes]
        group = book.group_of(pod)
        if isinstance(group, str):
            return []
        masks = book.masks(pod, self.census.nodes.places(nodes))
        found = [list(compress(nodes, mask.tolist())) for mask in masks]
        return [some for number, some in enumerate(found) if some and not book.full(pod, group, number)]

    # --- promises ---------------------------------------------------------------------------------

    def _promise(self, book: PolicyBook, pod: PolicyPod, unit: int) -> None:
        self.end_promise(pod.uid)
        book.book(pod, unit)
        self.promises[pod.uid] = Promise(book, pod, self._clock.monotonic() + PROMISED_S)

    def promise_on(self, book: PolicyBook, pod: PolicyPod, unit: int, node: str) -> None:
        """The pod's Binding to ``node`` is under way."""
        self.end_promise(pod.uid)
        book.book(pod, unit, node)
        self.promises[pod.uid] = Promise(book, pod, self._clock.monotonic() + PROMISED_S)

    def _renew_promises(self, namespace: str) -> None:
        """Other policies decide: what is being bound counts in the book that it is in now, and the promise ends there.

        The census has carried over what it knows of; the watch of these pods may not have told of one that is being bound already.
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
        """What became of the pod is not known yet."""
        promise = self.promises.pop(uid, None)
        if promise is not None:
            promise.until_s = self._clock.monotonic() + PROMISED_S
            self.promises[uid] = promise  # the order is that of the ends

    def end_promise(self, uid: str) -> None:
        """The pod has no place any more, or one that was seen."""
        promise = self.promises.pop(uid, None)
        if promise is not None:
            promise.book.unbook(uid)

    def overdue(self) -> list[Promise]:
        """Promises on nodes whose time is over, a handful; those of ``filter`` alone are ended here."""
        now_s = self._clock.monotonic()
        found: list[Promise] = []
        for uid, promise in list(self.promises.items()):
            if promise.until_s > now_s or len(found) == _AT_ONCE:
                break
            booking = promise.book.booked.get(uid)
            if booking is None or not booking.node:
                self.end_promise(uid)
            else:
                found.append(promise)
        return found

    # --- trying again -----------------------------------------------------------------------------

    def hurry(self) -> None:
        """Have pods tried again whose time has come; until they are asked about, every so often."""
        now_s = self._clock.monotonic()
        due: list[str] = []
        for uid, at_s in [(uid, at_s) for uid, at_s in self._due.items() if at_s <= now_s]:
            if uid not in self.waiting:
                if now_s >= at_s + _UNSEEN_S:
                    self._forget(uid)
            elif self.census.pod(uid) is None and uid not in self._orphans:
                self._forget(uid)
            elif len(due) < _AT_ONCE:
                # Behind the others: where some are told of again and again these have their turn.
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
    # Not where others could be ended for it: that would be in vain.
    return Verdict([], {}, dict.fromkeys(names, reason))


def _told(
    key: str, names: list[str], masks: list[Mask], reasons: tuple[str, ...], but: Mask | None = None
) -> dict[str, str]:
    """Why each of ``names`` (but those of ``but``) is not for the pod, by the unit that it is in."""
    found: dict[str, str] = {}
    rest = np.ones(len(names), np.bool_) if but is None else ~but
    for number, mask in enumerate(masks):
        found |= dict.fromkeys(
            compress(names, (mask & rest).tolist()),
            f"ResourcePolicy {key}: unit {number + 1}: {reasons[number]}",
        )
        rest &= ~mask
    found |= dict.fromkeys(
        compress(names, rest.tolist()), f"ResourcePolicy {key}: the node is in none of its units"
    )
    return found
