"""Elastic quotas at work: the tree that is in force, who is charged, and what that means for pods that wait.

Charges follow the pods that the scheduler knows and the room that the ledger sets aside; nothing of them is stored. Pods
without a GPU of ours (``besides``) are charged where they are bound, and, as the ledger knows nothing of them, by a promise
from when this scheduler binds them until they are seen bound. One tree is in force: the oldest. Where it is changed into one
that contradicts itself the one before stays, also for the next leader, to whom the tree's status tells it.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from gpushare.api import names
from gpushare.api.crd.elastic_quota_tree import QuotaTree, QuotaTreeRecord, counting
from gpushare.api.objects import ObjectReference, Pod
from gpushare.api.request.amounts import Amounts, amounts_of
from gpushare.api.request.request import Request
from gpushare.kube.event_recorder import Recorder
from gpushare.ledger import Held
from gpushare.ledger.quota.accounting import Charge, Over, QuotaBooks
from gpushare.ledger.quota.reclaim import Claim
from gpushare.process.event import Event
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.cycle_state import CycleState
from gpushare.scheduler.framework.interface import NotPermitted, PodToBind

logger = logging.getLogger(__name__)

REASON_REFUSED: Final = "QuotaTreeRefused"
REASON_NOT_IN_FORCE: Final = "QuotaTreeIgnored"
#: What pods ask for that the informer has not shown yet, by UID; the oldest give way.
_OBSERVED: Final = 1024


class Quotas:
    """Which pods the elastic quotas of the cluster admit, and what they hold. Not for several threads."""

    def __init__(self, cache: ClusterCache, events: Recorder) -> None:
        self.books = QuotaBooks()
        self.trees: dict[str, QuotaTreeRecord] = {}
        """Every ElasticQuotaTree by its name."""
        self.changed: Event[[]] = Event()
        """Called when figures or trees changed."""
        self.retry_wanted: Event[Iterable[str]] = Event()
        """Called with the UIDs of waiting pods that another tree may let in."""
        self.followed: frozenset[str] = frozenset()
        """Namespaces in which every pod counts, those without a GPU of ours, too."""
        self.unread: set[str] = set()
        """Those of them of which some pods are not known yet: nobody of theirs is let in."""
        self.namespaces_followed: Event[frozenset[str]] = Event()
        """Called with namespaces that are new among them, before anybody is asked about."""
        self._cache = cache
        self._ledger = cache.ledger
        self._waiting = cache.waiting
        self._bound = cache.bound
        self._waiting_besides = cache.waiting_non_gpu
        self._besides = cache.bound_non_gpu
        self._promised: dict[str, Charge] = {}
        self._kept: set[str] = set()
        self._events = events
        self._observed: dict[str, Charge] = {}
        self._ended: set[str] = set()
        self._in_force: tuple[str, str, QuotaTree] | None = None
        self._told: dict[str, str] = {}
        cache.ledger.allocation_changed.subscribe(self.look)
        cache.pod_stored.subscribe(self._stored)
        cache.pod_forgotten.subscribe(self._forgotten)

    @property
    def in_use(self) -> bool:
        """Whether a tree is in force."""
        return self.books.tree is not None

    # --- trees ------------------------------------------------------------------------------------

    def synced(self) -> None:
        """The first list of trees is complete."""

    def upsert(self, item: QuotaTreeRecord) -> None:
        """A tree was added or changed."""
        self.trees[item.name] = item
        self._choose()

    def remove(self, key: str, last: QuotaTreeRecord) -> None:
        """A tree is gone."""
        self.trees.pop(last.name, None)
        self._told.pop(last.uid, None)
        self._choose()

    def chosen(self) -> QuotaTreeRecord | None:
        """The tree that counts."""
        return counting(self.trees.values())

    @property
    def root_in_force(self) -> str:
        """The ``spec.root`` by which is counted now, as JSON; empty where no tree is in force."""
        return "" if self._in_force is None else self._in_force[1]

    def _choose(self) -> None:
        chosen = self.chosen()
        for record in self.trees.values():
            self._tell(record, chosen)
        if chosen is None:
            self._count_by(None)
        elif chosen.tree is not None:
            self._count_by((chosen.uid, chosen.root, chosen.tree))
        elif self._in_force is None or self._in_force[0] != chosen.uid:
            # Nobody here knows what it was before, but its status may.
            earlier = chosen.earlier
            self._count_by(None if earlier is None else (chosen.uid, chosen.earlier_root, earlier))
        self.changed()

    def _tell(self, record: QuotaTreeRecord, chosen: QuotaTreeRecord | None) -> None:
        note, reason = record.problem, REASON_REFUSED
        if chosen is not None and record is not chosen:
            note = f"not in force: tree {chosen.name} is older, and there is one tree; remove one of the two"
            reason = REASON_NOT_IN_FORCE
        if self._told.get(record.uid, "") == note:
            return
        self._told[record.uid] = note
        if not note:
            return
        logger.warning("ElasticQuotaTree %s: %s", record.name, note)
        subject = ObjectReference(
            names.QUOTA_KIND, record.name, names.QUOTA_NAMESPACE, record.uid, names.QUOTA_GROUP
        )
        self._events.record(
            subject,
            kind="Warning",
            reason=reason,
            action="Counting",
            note=note[:1000],
            telling="standing",
        )

    def _count_by(self, in_force: tuple[str, str, QuotaTree] | None) -> None:
        before, self._in_force = self._in_force, in_force
        tree = None if in_force is None else in_force[2]
        if self.books.tree == tree:
            return
        logger.info("elastic quotas: %s", "none in force" if tree is None else f"{len(tree.quotas)} in force")
        self.books.set_tree(tree)
        self._follow(tree)
        self._promised = {uid: one for uid, one in self._promised.items() if one.namespace in self.followed}
        for uid in (
            *self._waiting,
            *self._bound,
            *self._besides,
            *self._promised,
            *self._kept,
            *self._observed,
        ):
            self.look(uid)
        trees = [one for one in (tree, None if before is None else before[2]) if one is not None]
        self._try_again({namespace for one in trees for namespace in one.leaf_of})

    def _follow(self, tree: QuotaTree | None) -> None:
        followed = frozenset(() if tree is None or not tree.counts_every_pod else tree.leaf_of)
        added, self.followed = followed - self.followed, followed
        self.unread &= followed
        if added:
            self.namespaces_followed(added)

    def are_read(self, namespaces: Collection[str]) -> None:
        """All pods of these namespaces are known."""
        self.unread.difference_update(namespaces)
        self._try_again(namespaces)

    def _try_again(self, namespaces: Collection[str]) -> None:
        self.retry_wanted(
            [
                uid
                for waiting in (self._waiting, self._waiting_besides)
                for uid, record in waiting.items()
                if _namespace(record.pod) in namespaces
            ]
        )

    # --- who is charged ---------------------------------------------------------------------------

    def look(self, uid: str) -> None:
        """Something about the pod changed: what it asks for, holds or has kept, or whether it is there."""
        if self.books.tree is None:
            return
        before = self.books.charged(uid)
        self.books.charge(uid, self._charge(uid))
        if self.books.charged(uid) != before:
            self.changed()

    def _stored(self, record: PodRecord) -> None:
        if record.bystander and record.node:
            self.unreserve(record.uid)
            self.unkeep(record.uid)
        self.look(record.uid)

    def _forgotten(self, record: PodRecord) -> None:
        uid = record.uid
        kept, charge = self.keeps(uid), self.books.charged(uid)
        self.unreserve(uid)
        self.unkeep(uid)
        self.look(uid)
        if charge is not None and charge.bound and not charge.on_gpus:
            self._cache.capacity_freed()
        if kept:
            self._cache.reservation_released()

    def _charge(self, uid: str) -> Charge | None:
        record = self._bound.get(uid)
        held = self._ledger.held(uid)
        if record is not None:
            leaving = record.leaving or uid in self._ended
            return Charge(_namespace(record.pod), _at_least(record.amounts, held), leaving)
        beside = self._besides.get(uid)
        if beside is not None:
            leaving = beside.leaving or uid in self._ended
            return Charge(_namespace(beside.pod), beside.amounts, leaving, on_gpus=False)
        self._ended.discard(uid)
        promised = self._promised.get(uid)
        if promised is not None:
            return promised
        if uid in self._kept and (beside := self._waiting_besides.get(uid)) is not None:
            return Charge(_namespace(beside.pod), beside.amounts, bound=False, on_gpus=False)
        if held is None and not self._ledger.nominations.node_of(uid):
            return None
        waits = self._waiting.get(uid)
        if waits is not None:
            return Charge(_namespace(waits.pod), _at_least(waits.amounts, held), bound=False)
        observed = self._observed.get(uid)
        return None if observed is None else observed._replace(amounts=_at_least(observed.amounts, held))

    def observe(self, uid: str, pod: str, amounts: Amounts) -> None:
        """kube-scheduler asks about a pod (``namespace/name``), perhaps before the informer has shown it."""
        if uid in self._waiting or uid in self._waiting_besides:
            return
        self._observed.pop(uid, None)
        self._observed[uid] = Charge(_namespace(pod), amounts, bound=False)
        if len(self._observed) > _OBSERVED:
            del self._observed[next(iter(self._observed))]

    def ended(self, uid: str) -> None:
        """The pod's end was asked for by us; the informer will say so."""
        if uid in self._bound or uid in self._besides:
            self._ended.add(uid)
            self.look(uid)

    # --- extension points: scheduling and binding a pod -----------------------------------------------

    def pre_filter(self, state: CycleState) -> str:
        """Why the pod may have no node now."""
        pod, request = state.pod, state.request
        if not self.in_use or (request is None and pod.metadata.namespace not in self.followed):
            return ""
        self.observe(pod.metadata.uid, pod.key, amounts_of(pod))
        return self.refusal(pod.metadata.uid)

    def filter_fits(self, state: CycleState, nodes: list[str]) -> Mapping[str, str]:
        """Nodes whose whole GPUs count more than the pod's quotas have left."""
        request = state.request
        if not self.in_use or request is None or not request.whole_device:
            return {}
        return self.whole_refusals(state.pod.metadata.uid, request, nodes)

    async def permit(self, pod: PodToBind) -> None:
        """Raises ``NotPermitted`` where another has taken the pod's part since ``pre_filter``."""
        self.observe(pod.uid, pod.key, pod.amounts)
        if refusal := self.refusal(pod.uid):
            raise NotPermitted(refusal)

    def reserve(self, pod: PodToBind) -> str:
        """Charge the pod until it is seen bound or ``unreserve``; one with a share is charged by that, which may be more than it requests."""
        if pod.request is not None:
            return self.passed(pod.uid)
        namespace = _namespace(pod.key)
        if namespace not in self.followed:
            return ""
        self.observe(pod.uid, pod.key, pod.amounts)
        refusal = self.refusal(pod.uid)
        if not refusal and pod.uid not in self._besides:
            self._promised[pod.uid] = Charge(namespace, pod.amounts, bound=False, on_gpus=False)
            self.look(pod.uid)
        return refusal

    def is_reserved(self, uid: str) -> bool:
        """Whether a pod without a GPU is charged that was not seen bound yet."""
        return uid in self._promised

    def unreserve(self, uid: str) -> None:
        """The pod was seen bound, will not be bound, or is gone."""
        if self._promised.pop(uid, None) is not None:
            self.look(uid)

    def keep(self, uid: str) -> None:
        """Charge a pod without a GPU that waits, for others end for it; it is let in once they have."""
        self._kept.add(uid)
        self.look(uid)

    def keeps(self, uid: str) -> bool:
        """Whether it is charged so."""
        return uid in self._kept

    def unkeep(self, uid: str) -> None:
        """It was bound, is gone, or does not come."""
        if uid in self._kept:
            self._kept.remove(uid)
            self.look(uid)

    # --- what follows for pods that wait ------------------------------------------------------------

    def refusal(self, uid: str) -> str:
        """Why a pending pod may not have what it requests now; empty where it may.

        One that holds its share already, or is being bound, was admitted.
        """
        if self.books.tree is None or self._ledger.held(uid) is not None or uid in self._promised:
            return ""
        asked = self._asked(uid)
        if asked is None:
            return ""
        if asked.namespace in self.unread:
            leaf = self.books.leaf(asked.namespace)
            assert leaf is not None, "whose pods are followed has a quota"
            return f"elastic quota {self.books.name_of(leaf)}: its pods are not read yet"
        return self.books.refusal(uid, asked.namespace, asked.amounts)

    def over(self, uid: str, whole_units: int = 0) -> list[Over]:
        """Every quota whose max a pod that waits would pass, its own first; none where it may have what it asks for.

        ``whole_units``: what the GPUs count that it would be given whole, where it is asked about these.
        """
        asked = self._asked(uid)
        if asked is None or not (whole_units or self.refusal(uid)):
            return []
        amounts = asked.amounts
        if whole_units:
            amounts = {**amounts, names.GPU_MEM: 1000 * whole_units}
        return self.books.over(uid, asked.namespace, amounts)

    def least_asking(self, uids: Iterable[str]) -> list[str]:
        """These pods that wait, those that ask for the least GPU memory first."""
        return sorted(uids, key=lambda uid: self._waiting[uid].amounts.get(names.GPU_MEM, 0))

    def over_together(
        self, asking: Iterable[tuple[str, int]], among: Collection[str]
    ) -> tuple[list[Over], bool]:
        """Every quota whose max pods that wait would pass together; and whether what they ask for is more than one of these by itself.

        Of each the UID, and how many units it would be given, where these may be more than it asks for. What those of ``among`` hold
        counts beside it.
        """
        waiting = [
            (record, units)
            for uid, units in asking
            if (record := self._waiting.get(uid)) is not None and self._ledger.held(uid) is None
        ]
        if not waiting:
            return [], False
        there = [one.amounts for uid in among if (one := self.books.charged(uid)) is not None]
        asked = _summed(_or_given(one.amounts, units) for one, units in waiting)
        namespace = _namespace(waiting[0][0].pod)
        over = self.books.over("", namespace, asked)
        of_all = self.books.over("", namespace, _summed([asked, *there]))
        named = {one.quota for one in over}
        return over, any(one.alone for one in of_all if one.quota in named)

    def _asked(self, uid: str) -> Charge | None:
        """What a pending pod would be charged."""
        waits = self._waiting.get(uid) or self._waiting_besides.get(uid)
        if waits is None:
            return self._observed.get(uid)
        return Charge(_namespace(waits.pod), waits.amounts, bound=False)

    def again(self, record: PodRecord) -> str:
        """Why a pod like the bound one would not be let in, once that has ended; empty where it would."""
        return self.books.refusal(record.uid, _namespace(record.pod), record.amounts)

    def passed(self, uid: str) -> str:
        """Which max is passed with what the pod has been given just now, for people; empty where none is.

        Who asks for a whole GPU may be given more units than it named.
        """
        charge = self.books.charged(uid)
        return "" if charge is None else self.books.refusal(uid, charge.namespace, charge.amounts)

    def whole_refusals(self, uid: str, request: Request, nodes: list[str]) -> dict[str, str]:
        """Which of ``nodes`` a pod may not have, for the units of the GPUs that it would be given whole, and why."""
        asked = self._asked(uid)
        if asked is None or not asked.amounts.get(names.GPU_MEM) or self._ledger.held(uid) is not None:
            return {}
        units = self._ledger.largest_units(nodes)
        reasons = {
            one: self.books.refusal(
                uid, asked.namespace, {**asked.amounts, names.GPU_MEM: 1000 * one * request.gpu_count}
            )
            for one in set(units)
        }
        if not any(reasons.values()):
            return {}
        return {
            node: f"{reasons[one]} by GPUs of {one} that are given whole"
            for node, one in zip(nodes, units, strict=True)
            if reasons[one]
        }

    def by_charge(
        self, amounts: Amounts, request: Request, nodes: list[str]
    ) -> list[tuple[Amounts, list[str]]]:
        """What a pod would be charged, and on which of ``nodes``, the least first: whole GPUs count with all of their units."""
        if self.books.tree is None or not request.whole_device or not amounts.get(names.GPU_MEM):
            return [(amounts, nodes)]
        found: dict[int, list[str]] = {}
        for node, units in zip(nodes, self._ledger.largest_units(nodes), strict=True):
            found.setdefault(1000 * units * request.gpu_count, []).append(node)
        asked = amounts[names.GPU_MEM]
        return [({**amounts, names.GPU_MEM: max(asked, units)}, found[units]) for units in sorted(found)]

    def whole_is_let_in(self, pod: Pod, request: Request, node: str, gone: Collection[str]) -> bool:
        """Whether a pod may have whole GPUs of the node, with all of their units, once ``gone`` (UIDs) have ended for it."""
        ((amounts, _),) = self.by_charge(amounts_of(pod), request, [node])
        claim = self.claim(pod.metadata.uid, pod.key, amounts)
        if claim is None:
            return True
        priority = pod.spec.priority or 0
        lesser = {uid: (record := self._bound.get(uid)) is None or record.priority < priority for uid in gone}
        return claim.enough(gone) and all(claim.may_end(uid, lesser=less) for uid, less in lesser.items())

    def claim(self, uid: str, pod: str, amounts: Amounts) -> Claim | None:
        """Whom the pod may have ended; ``None`` where no tree is in force."""
        return None if self.books.tree is None else Claim(self.books, uid, _namespace(pod), amounts)


def _at_least(amounts: Amounts, held: Held | None) -> Amounts:
    """What is asked for, or what is held where that is more GPU memory: a whole GPU counts with all of its units."""
    return amounts if held is None else _or_given(amounts, sum(share.units for share in held.allocation.gpus))


def _or_given(amounts: Amounts, units: int) -> Amounts:
    asked = amounts.get(names.GPU_MEM)
    return amounts if not asked or 1000 * units <= asked else {**amounts, names.GPU_MEM: 1000 * units}


def _summed(amounts: Iterable[Amounts]) -> Amounts:
    found: Counter[str] = Counter()
    for one in amounts:
        found.update(one)
    return found


def _namespace(pod: str) -> str:
    return pod.partition("/")[0]
