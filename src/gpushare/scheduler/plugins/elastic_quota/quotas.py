"""Elastic quotas: the tree in force, the charges of pods, and the admission of pending pods.

Charges are derived from the pods that the scheduler knows and from the ledger's reservations; they are not persisted. Pods without a
shared GPU are charged while they are bound. As the ledger does not know them, they are also charged by a promise, from the time this
scheduler binds them until the watch shows them bound. Only the oldest tree is in force. If it is changed to an inconsistent one, the
previous version stays in force, also after a change of leader: the next leader reads it from the tree's status.
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
#: Maximum number of remembered pods that the informer has not shown yet; the oldest are dropped.
_MOST_OBSERVED: Final = 1024


class Quotas:
    """Admission by the cluster's elastic quotas, and their charges. Not thread-safe."""

    def __init__(self, cache: ClusterCache, events: Recorder) -> None:
        self.books = QuotaBooks()
        self.trees: dict[str, QuotaTreeRecord] = {}
        """Every ElasticQuotaTree by name."""
        self.changed: Event[[]] = Event()
        """Called after charges or trees changed."""
        self.retry_wanted: Event[Iterable[str]] = Event()
        """Called with the UIDs of pending pods that may be admitted now, as the tree or the known pods changed."""
        self.followed: frozenset[str] = frozenset()
        """Namespaces in which every pod is charged, pods without a shared GPU included."""
        self.unread: set[str] = set()
        """Those of ``followed`` whose pods are not all known yet: none of their pods is admitted."""
        self.namespaces_followed: Event[frozenset[str]] = Event()
        """Called with the namespaces that are new in ``followed``, before the next request is answered."""
        self._cache = cache
        self._ledger = cache.ledger
        self._waiting = cache.waiting
        self._bound = cache.bound
        self._waiting_non_gpu = cache.waiting_non_gpu
        self._bound_non_gpu = cache.bound_non_gpu
        self._promised: dict[str, Charge] = {}
        self._kept: set[str] = set()
        self._events = events
        self._observed: dict[str, Charge] = {}
        self._ended: set[str] = set()
        self._in_force: tuple[str, str, QuotaTree] | None = None
        self._reported: dict[str, str] = {}
        cache.ledger.allocation_changed.subscribe(self.update_charge)
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
        """A tree was deleted."""
        self.trees.pop(last.name, None)
        self._reported.pop(last.uid, None)
        self._choose()

    def chosen(self) -> QuotaTreeRecord | None:
        """The tree that should be in force: the oldest."""
        return counting(self.trees.values())

    @property
    def root_in_force(self) -> str:
        """The ``spec.root`` in force, as JSON; empty if no tree is in force."""
        return "" if self._in_force is None else self._in_force[1]

    def _choose(self) -> None:
        chosen = self.chosen()
        for record in self.trees.values():
            self._report_problem(record, chosen)
        if chosen is None:
            self._count_by(None)
        elif chosen.tree is not None:
            self._count_by((chosen.uid, chosen.root, chosen.tree))
        elif self._in_force is None or self._in_force[0] != chosen.uid:
            # This process does not know the tree's previous version, but its status may contain it.
            earlier = chosen.earlier
            self._count_by(None if earlier is None else (chosen.uid, chosen.earlier_root, earlier))
        self.changed()

    def _report_problem(self, record: QuotaTreeRecord, chosen: QuotaTreeRecord | None) -> None:
        note, reason = record.problem, REASON_REFUSED
        if chosen is not None and record is not chosen:
            note = f"not in force: tree {chosen.name} is older, and there is one tree; remove one of the two"
            reason = REASON_NOT_IN_FORCE
        if self._reported.get(record.uid, "") == note:
            return
        self._reported[record.uid] = note
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
            occurrence="lasting",
        )

    def _count_by(self, in_force: tuple[str, str, QuotaTree] | None) -> None:
        previous, self._in_force = self._in_force, in_force
        tree = None if in_force is None else in_force[2]
        if self.books.tree == tree:
            return
        logger.info("elastic quotas: %s", "none in force" if tree is None else f"{len(tree.quotas)} in force")
        self.books.set_tree(tree)
        self._follow(tree)
        self._promised = {
            uid: charge for uid, charge in self._promised.items() if charge.namespace in self.followed
        }
        for uid in (
            *self._waiting,
            *self._bound,
            *self._bound_non_gpu,
            *self._promised,
            *self._kept,
            *self._observed,
        ):
            self.update_charge(uid)
        trees = [charge for charge in (tree, None if previous is None else previous[2]) if charge is not None]
        self._try_again({namespace for charge in trees for namespace in charge.leaf_of})

    def _follow(self, tree: QuotaTree | None) -> None:
        followed = frozenset(() if tree is None or not tree.counts_every_pod else tree.leaf_of)
        added, self.followed = followed - self.followed, followed
        self.unread &= followed
        if added:
            self.namespaces_followed(added)

    def are_read(self, namespaces: Collection[str]) -> None:
        """All pods of these namespaces are known now."""
        self.unread.difference_update(namespaces)
        self._try_again(namespaces)

    def _try_again(self, namespaces: Collection[str]) -> None:
        self.retry_wanted(
            [
                uid
                for waiting in (self._waiting, self._waiting_non_gpu)
                for uid, record in waiting.items()
                if _namespace(record.pod) in namespaces
            ]
        )

    # --- charges ----------------------------------------------------------------------------------

    def update_charge(self, uid: str) -> None:
        """Recompute the charge of a pod whose request, allocation, reservation or existence may have changed."""
        if self.books.tree is None:
            return
        previous = self.books.charged(uid)
        self.books.charge(uid, self._charge(uid))
        if self.books.charged(uid) != previous:
            self.changed()

    def _stored(self, record: PodRecord) -> None:
        if record.bystander and record.node:
            self.unreserve(record.uid)
            self.unkeep(record.uid)
        self.update_charge(record.uid)

    def _forgotten(self, record: PodRecord) -> None:
        uid = record.uid
        was_kept, charge = self.keeps(uid), self.books.charged(uid)
        self.unreserve(uid)
        self.unkeep(uid)
        self._ended.discard(uid)
        self.update_charge(uid)
        if charge is not None and charge.bound and not charge.on_gpus:
            self._cache.capacity_freed()
        if was_kept:
            self._cache.reservation_released()

    def _charge(self, uid: str) -> Charge | None:
        record = self._bound.get(uid)
        held = self._ledger.held(uid)
        if record is not None:
            leaving = self._leaves_soon(record)
            return Charge(_namespace(record.pod), _at_least(record.amounts, held), leaving)
        non_gpu = self._bound_non_gpu.get(uid)
        if non_gpu is not None:
            leaving = self._leaves_soon(non_gpu)
            return Charge(_namespace(non_gpu.pod), non_gpu.amounts, leaving, on_gpus=False)
        self._ended.discard(uid)
        promised = self._promised.get(uid)
        if promised is not None:
            return promised
        if uid in self._kept and (non_gpu := self._waiting_non_gpu.get(uid)) is not None:
            return Charge(_namespace(non_gpu.pod), non_gpu.amounts, bound=False, on_gpus=False)
        if held is None and not self._ledger.nominations.node_of(uid):
            return None
        pending = self._waiting.get(uid)
        if pending is not None:
            return Charge(_namespace(pending.pod), _at_least(pending.amounts, held), bound=False)
        observed = self._observed.get(uid)
        return None if observed is None else observed._replace(amounts=_at_least(observed.amounts, held))

    def _leaves_soon(self, record: PodRecord) -> bool:
        return self._cache.leaves_soon(record.uid) if record.leaving else record.uid in self._ended

    def observe(self, uid: str, pod: str, amounts: Amounts) -> None:
        """Remember the request of a pod (``namespace/name``) that the informer may not have shown yet."""
        if uid in self._waiting or uid in self._waiting_non_gpu:
            return
        self._observed.pop(uid, None)
        self._observed[uid] = Charge(_namespace(pod), amounts, bound=False)
        if len(self._observed) > _MOST_OBSERVED:
            del self._observed[next(iter(self._observed))]

    def ended(self, uid: str) -> None:
        """This scheduler has evicted the pod, which the informer has not shown yet."""
        if uid in self._bound or uid in self._bound_non_gpu:
            self._ended.add(uid)
            self.update_charge(uid)

    # --- extension points: scheduling and binding a pod -----------------------------------------------

    def pre_filter(self, state: CycleState) -> str:
        """Why the quotas do not admit the pod now; empty if they do."""
        pod, request = state.pod, state.request
        if not self.in_use or (request is None and pod.metadata.namespace not in self.followed):
            return ""
        self.observe(pod.metadata.uid, pod.key, amounts_of(pod))
        return self.refusal(pod.metadata.uid)

    def filter_fits(self, state: CycleState, nodes: list[str]) -> Mapping[str, str]:
        """The nodes whose whole GPUs would exceed the pod's quotas, with reasons."""
        request = state.request
        if not self.in_use or request is None or not request.whole_device:
            return {}
        return self.whole_refusals(state.pod.metadata.uid, request, nodes)

    async def permit(self, pod: PodToBind) -> None:
        """Raises ``NotPermitted`` if other pods have used up the quota since ``pre_filter``."""
        self.observe(pod.uid, pod.key, pod.amounts)
        if refusal := self.refusal(pod.uid):
            raise NotPermitted(refusal)

    def reserve(self, pod: PodToBind) -> str:
        """Charge a pod without a GPU until it is seen bound, or ``unreserve``. A pod with a share is charged through the ledger."""
        if pod.request is not None:
            return self.passed(pod.uid)
        namespace = _namespace(pod.key)
        if namespace not in self.followed:
            return ""
        self.observe(pod.uid, pod.key, pod.amounts)
        refusal = self.refusal(pod.uid)
        if not refusal and pod.uid not in self._bound_non_gpu:
            self._promised[pod.uid] = Charge(namespace, pod.amounts, bound=False, on_gpus=False)
            self.update_charge(pod.uid)
        return refusal

    def is_reserved(self, uid: str) -> bool:
        """Whether the pod is charged by ``reserve``."""
        return uid in self._promised

    def unreserve(self, uid: str) -> None:
        """The pod was seen bound, will not be bound, or was deleted."""
        if self._promised.pop(uid, None) is not None:
            self.update_charge(uid)

    def keep(self, uid: str) -> None:
        """Charge a pending pod without a GPU for which other pods are evicted, so that it is admitted after they have ended."""
        self._kept.add(uid)
        self.update_charge(uid)

    def keeps(self, uid: str) -> bool:
        """Whether ``keep`` charges the pod."""
        return uid in self._kept

    def unkeep(self, uid: str) -> None:
        """Undo ``keep``: the pod was bound, was deleted, or will not be bound."""
        if uid in self._kept:
            self._kept.remove(uid)
            self.update_charge(uid)

    # --- admission of pending pods ------------------------------------------------------------------

    def refusal(self, uid: str) -> str:
        """Why the quotas do not admit a pending pod now; empty if they do.

        A pod that already holds a share, or is being bound, was admitted earlier.
        """
        if self.books.tree is None or self._ledger.held(uid) is not None or uid in self._promised:
            return ""
        charge = self._pending_charge(uid)
        if charge is None:
            return ""
        if charge.namespace in self.unread:
            leaf = self.books.leaf(charge.namespace)
            assert leaf is not None, "whose pods are followed has a quota"
            return f"elastic quota {self.books.name_of(leaf)}: its pods have not been loaded yet"
        return self.books.refusal(uid, charge.namespace, charge.amounts)

    def over(self, uid: str, whole_units: int = 0) -> list[Over]:
        """Every quota whose max a pending pod would exceed, its own first; empty if it is admitted.

        ``whole_units``: the units of the whole GPUs that it would get, if the caller asks about these.
        """
        charge = self._pending_charge(uid)
        if charge is None or not (whole_units or self.refusal(uid)):
            return []
        amounts = charge.amounts
        if whole_units:
            amounts = {**amounts, names.GPU_MEM: 1000 * whole_units}
        return self.books.over(uid, charge.namespace, amounts)

    def least_asking(self, uids: Iterable[str]) -> list[str]:
        """The pending pods ``uids``, sorted by requested GPU memory, the smallest first."""
        return sorted(uids, key=lambda uid: self._waiting[uid].amounts.get(names.GPU_MEM, 0))

    def over_together(
        self, asking: Iterable[tuple[str, int]], among: Collection[str]
    ) -> tuple[list[Over], bool]:
        """Every quota whose max pending pods would exceed together, and whether their requests alone exceed one of these.

        ``asking``: UIDs, and the units that each pod would get, which may be more than it requests. What the pods ``among`` hold is counted
        as well.
        """
        waiting = [
            (record, units)
            for uid, units in asking
            if (record := self._waiting.get(uid)) is not None and self._ledger.held(uid) is None
        ]
        if not waiting:
            return [], False
        held = [one.amounts for uid in among if (one := self.books.charged(uid)) is not None]
        requested = _summed(_with_units(one.amounts, units) for one, units in waiting)
        namespace = _namespace(waiting[0][0].pod)
        over = self.books.over("", namespace, requested)
        over_with_others = self.books.over("", namespace, _summed([requested, *held]))
        quotas = {one.quota for one in over}
        return over, any(one.alone for one in over_with_others if one.quota in quotas)

    def _pending_charge(self, uid: str) -> Charge | None:
        """What a pending pod would be charged."""
        record = self._waiting.get(uid) or self._waiting_non_gpu.get(uid)
        if record is None:
            return self._observed.get(uid)
        return Charge(_namespace(record.pod), record.amounts, bound=False)

    def again(self, record: PodRecord) -> str:
        """Why a replacement of the bound pod would not be admitted after it has ended; empty if it would."""
        return self.books.refusal(record.uid, _namespace(record.pod), record.amounts)

    def passed(self, uid: str) -> str:
        """Which max is exceeded by the pod's new allocation, in words; empty if none is.

        A pod that requests a whole GPU may get more units than it requests.
        """
        charge = self.books.charged(uid)
        return "" if charge is None else self.books.refusal(uid, charge.namespace, charge.amounts)

    def whole_refusals(self, uid: str, request: Request, nodes: list[str]) -> dict[str, str]:
        """The nodes of ``nodes`` whose whole GPUs have more units than the quotas admit, with reasons."""
        charge = self._pending_charge(uid)
        if charge is None or not charge.amounts.get(names.GPU_MEM) or self._ledger.held(uid) is not None:
            return {}
        units = self._ledger.largest_units(nodes)
        reasons = {
            units_of_gpu: self.books.refusal(
                uid,
                charge.namespace,
                {**charge.amounts, names.GPU_MEM: 1000 * units_of_gpu * request.gpu_count},
            )
            for units_of_gpu in set(units)
        }
        if not any(reasons.values()):
            return {}
        return {
            node: f"{reasons[units_of_gpu]} by GPUs of {units_of_gpu} that are allocated whole"
            for node, units_of_gpu in zip(nodes, units, strict=True)
            if reasons[units_of_gpu]
        }

    def by_charge(
        self, amounts: Amounts, request: Request, nodes: list[str]
    ) -> list[tuple[Amounts, list[str]]]:
        """``nodes`` grouped by what the pod would be charged there, the smallest first: whole GPUs are charged with all of their units."""
        if self.books.tree is None or not request.whole_device or not amounts.get(names.GPU_MEM):
            return [(amounts, nodes)]
        nodes_by_units: dict[int, list[str]] = {}
        for node, units in zip(nodes, self._ledger.largest_units(nodes), strict=True):
            nodes_by_units.setdefault(1000 * units * request.gpu_count, []).append(node)
        requested = amounts[names.GPU_MEM]
        return [
            ({**amounts, names.GPU_MEM: max(requested, units)}, nodes_by_units[units])
            for units in sorted(nodes_by_units)
        ]

    def whole_is_let_in(self, pod: Pod, request: Request, node: str, gone: Collection[str]) -> bool:
        """Whether the quotas admit the pod with all units of the node's whole GPUs after the eviction of the pods ``gone`` (UIDs)."""
        ((amounts, _),) = self.by_charge(amounts_of(pod), request, [node])
        claim = self.claim(pod.metadata.uid, pod.key, amounts)
        if claim is None:
            return True
        priority = pod.spec.priority or 0
        has_lower_priority = {
            uid: (record := self._bound.get(uid)) is None or record.priority < priority for uid in gone
        }
        return claim.enough(gone) and all(
            claim.may_evict(uid, lesser=lower) for uid, lower in has_lower_priority.items()
        )

    def claim(self, uid: str, pod: str, amounts: Amounts) -> Claim | None:
        """Which pods may be evicted for the pod; ``None`` if no tree is in force."""
        return None if self.books.tree is None else Claim(self.books, uid, _namespace(pod), amounts)


def _at_least(amounts: Amounts, held: Held | None) -> Amounts:
    """The request, with the allocated GPU memory if that is more: a whole GPU is charged with all of its units."""
    return (
        amounts if held is None else _with_units(amounts, sum(share.units for share in held.allocation.gpus))
    )


def _with_units(amounts: Amounts, units: int) -> Amounts:
    requested = amounts.get(names.GPU_MEM)
    return amounts if not requested or 1000 * units <= requested else {**amounts, names.GPU_MEM: 1000 * units}


def _summed(amounts: Iterable[Amounts]) -> Amounts:
    total: Counter[str] = Counter()
    for one in amounts:
        total.update(one)
    return total


def _namespace(pod: str) -> str:
    return pod.partition("/")[0]
