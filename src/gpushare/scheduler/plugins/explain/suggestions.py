"""What would let a waiting pod in, in words: read from the ledger, gangs and quotas at the moment at which somebody asks.

What other rules say of a node (taints, selectors, processors) is kube-scheduler's, and not known here.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from gpushare.api.request.request import Request
from gpushare.reasons import kube_scheduler
from gpushare.reasons.categories import Category, category_of, nearest
from gpushare.reasons.suggestions import capacity
from gpushare.reasons.suggestions import quotas as quota_suggestions
from gpushare.reasons.suggestions.nodes import GENERAL, of_nodes
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.services import NO_GANGS, NO_QUOTAS, Gangs, PodQuotas, Standing
from gpushare.scheduler.plugins.explain.gang_suggestions import BY_ITSELF, GangSuggestions
from gpushare.scheduler.plugins.explain.label_suggestions import LabelSuggestions

#: What the ledger says of nodes, and a policy of nodes that the ledger lets a pod have: of these it is looked what is so now.
_OF_NODES: Final = frozenset(
    {
        Category.MEMORY,
        Category.COMPUTE,
        Category.PODS,
        Category.KINDS,
        Category.HEALTH,
        Category.SIZE,
        Category.NODE,
    }
)
#: A node that refuses so would take the pod at some time, if its quotas let it have GPUs there.
_SOME_TIME: Final = frozenset(
    {Category.MEMORY, Category.COMPUTE, Category.PODS, Category.KINDS, Category.HEALTH}
)
_NO_ROOM: Final = "; and room, which none of these nodes has now"
#: Nodes of which it is looked why they do not take a pod, of all that ask for different things together, while one list is made; and for each of
#: those for which that is not enough: those with the most free.
_MOST_REASONS: Final = 20_000
_FEW_REASONS: Final = 128


class Look(NamedTuple):
    """What is so now of the nodes that a pod may have, by its own rules (``asked``; ``None``: all) and by its ResourcePolicy.

    ``fits`` is one with room, empty for none; ``texts`` say why each of the others has none. ``elsewhere`` has room, but is not asked about.
    ``roomy`` are those with room on their GPUs, whatever quotas say of these. Of so many as ``left_out`` it was not looked why they have none.
    """

    asked: frozenset[str] | None
    fits: str
    texts: Mapping[str, str]
    elsewhere: str
    roomy: frozenset[str]
    left_out: int
    kinds: frozenset[Category]
    """Of ``texts``."""


class Suggestions:
    """Words for many pods of one moment: what was worked out for one holds for the next that asks the same.

    ``in_turn`` gives those nodes of a list that the policy of a pod (UID) lets it have now, unit by unit (``Policies.by_unit``).
    """

    def __init__(
        self,
        view: ClusterCache,
        asked_by: Collection[str] = (),
        in_turn: Callable[[str, list[str]], list[list[str]]] = lambda uid, nodes: [nodes],
        gangs: Gangs = NO_GANGS,
        quotas: PodQuotas = NO_QUOTAS,
    ) -> None:
        self._view = view
        self._asked_by = asked_by
        self._in_turn = in_turn
        self._gangs = gangs
        self._quotas = quotas
        self._of_gangs = GangSuggestions(view, quotas)
        self._labels = LabelSuggestions(view, quotas, lambda: self._nodes_of(None)[0], self._let, self._fits)
        self._reasons_left = _MOST_REASONS
        self._all: list[str] | None = None
        self._nodes: dict[frozenset[str] | None, tuple[list[str], list[str]]] = {}
        self._looks: dict[tuple[Request, frozenset[str] | None, frozenset[str] | None, str], Look] = {}
        self._told: dict[tuple[int, Request, Category, bool], str] = {}
        """By the identity of a look, all of which are kept."""
        self._cordoned: dict[str, list[str]] = {}
        """Nodes that are cordoned, by the selectors that they meet."""
        self._uncordon: dict[tuple[object, ...], str] = {}
        """One of them that has room, by what is asked and by whom, and by those that it may have."""
        self._sets: dict[int, tuple[Sequence[str], frozenset[str] | None]] = {}
        """By the identity of a list that many pods share: that list, which is kept so that no other has its identity, and its nodes."""
        self._special: Mapping[Category, Callable[[PodRecord], str]] = {
            Category.RULES: self._for_rules,
            Category.GATES: self._for_gates,
            Category.UNSERVED: self._for_unserved,
        }

    def of(
        self,
        record: PodRecord,
        category: Category,
        asked: Sequence[str] | None = None,
    ) -> str:
        """For the pod of ``record``, which waits for a reason of that category.

        ``asked`` are the nodes that kube-scheduler last asked about for it: all that its own rules leave. ``None``: not known.
        """
        node = self._view.ledger.nominations.node_of(record.uid)
        if node:
            return f"room is being made for it on node {node}: it waits for pods that end there"
        if category in _OF_NODES or category in (Category.POLICY, Category.QUOTA, Category.GANG):
            standing = self._gangs.standing(record.uid)
            if standing is not None and standing.need > 0:
                return self._for_gang(record, standing, asked)
            if category is Category.GANG:
                # Enough of it run by now: what it needs itself, if anything, is looked up.
                category = Category.MEMORY if record.request is not None else Category.SCHEDULER
            refusal = self._quotas.refusal(record.uid)
            if refusal:
                return self._for_quota(record, refusal, asked)
        if record.request is not None and (category in _OF_NODES or category is Category.QUOTA):
            return self._for_nodes(record, category, asked)
        if category is Category.POLICY:
            return self._for_policy(record, asked)
        special = self._special.get(category)
        return _GENERAL[category] if special is None else special(record)

    # --- what the ledger says ---------------------------------------------------------------------

    def _for_nodes(self, record: PodRecord, category: Category, asked: Sequence[str] | None) -> str:
        request = record.request
        assert request is not None
        look = self._look(record.uid, request, asked)
        if look.fits in self._view.cordoned:
            return f"`kubectl uncordon {look.fits}`: it has room, and is cordoned"
        if look.fits:
            return f"there is room by now, on node {look.fits}: kube-scheduler asks again by itself"
        return self._with_room_alone(record, category, asked, look) + self._uncordoned(record)

    def _uncordoned(self, record: PodRecord) -> str:
        """A node that would take it were it not cordoned: kube-scheduler does not ask about it. Empty for none."""
        cordoned, request = self._view.cordoned, record.request
        assert request is not None
        if not cordoned:
            return ""
        selector = record.unplaced.selector
        nodes = [node for node in self._selected(selector, cordoned) if self._tolerates(record, node)]
        nodes = self._let(record.uid, nodes)
        its_own = record.uid if request.whole_device and self._quotas.in_use else ""
        key = (request, its_own, *nodes)
        if key not in self._uncordon:
            self._uncordon[key] = self._fits(record.uid, request, nodes)[0] if nodes else ""
        node = self._uncordon[key]
        if not node:
            return ""
        if_so = ", if the pod's node affinity lets it go there" if record.unplaced.affine else ""
        return f"; or `kubectl uncordon {node}`: it has room, and is cordoned{if_so}"

    def _tolerates(self, record: PodRecord, node: str) -> bool:
        """Whether no taint of a node that is cordoned, other than that of its cordon, keeps the pod off."""
        return all(
            any(one.covers(taint) for one in record.unplaced.tolerations)
            for taint in self._view.tainted.get(node, ())
        )

    def _selected(self, selector: str, cordoned: Mapping[str, Mapping[str, str]]) -> list[str]:
        """The nodes that are cordoned and have the labels that ``selector`` wants; the same list each time."""
        found = self._cordoned.get(selector)
        if found is None:
            wanted = [one.partition("=")[::2] for one in selector.split()]
            found = self._cordoned[selector] = [
                node
                for node in sorted(cordoned)
                if all(cordoned[node].get(key) == value for key, value in wanted)
            ]
        return found

    def _with_room_alone(
        self, record: PodRecord, category: Category, asked: Sequence[str] | None, look: Look
    ) -> str:
        """Of the nodes that it may have now, none of which has room."""
        request = record.request
        assert request is not None
        now = look.kinds
        if not now:
            return self._for_policy(record, asked)  # it leaves no node
        if category not in now:
            category = nearest(now)
        if category is Category.QUOTA:
            return self._for_whole(record, look)
        key = (id(look), request, category, asked is not None)
        found = self._told.get(key)
        if found is None:
            found = self._for_look(record.uid, request, category, look, known=asked is not None)
            found = self._told[key] = found + self._kept_for(request, look) + _left_out(look)
        return found

    def _kept_for(self, request: Request, look: Look) -> str:
        """Whose room it would have, were it not kept for that one; empty where that is not in the way."""
        found = capacity.blocking_nomination(self._view.ledger, request, look.texts)
        if found is None:
            return self._kept_by_gangs(request, look.texts)
        node, uid = found
        record = self._view.waiting.get(uid)
        return f"; node {node} has room, but keeps it for {'another pod' if record is None else f'pod {record.pod}'}"

    def _kept_by_gangs(self, request: Request, nodes: Collection[str]) -> str:
        """The same of gangs."""
        keepers = self._gangs.keepers(request, nodes)
        return next((f"; node {one} has room, but keeps it for {keepers[one]}" for one in keepers), "")

    def _for_look(self, uid: str, request: Request, category: Category, look: Look, *, known: bool) -> str:
        return of_nodes(
            self._view.ledger,
            request,
            category,
            look.texts,
            known=known,
            of=None if look.asked is None else len(look.asked),
            elsewhere=look.elsewhere,
            lets=lambda request, node: not self._whole(uid, request, [node]),
            isolated_cap=self._view.isolated_cap,
        )

    def _look(self, uid: str, request: Request, asked: Sequence[str] | None) -> Look:
        within = None if asked is None else self._set_of(asked)
        nodes, others = self._nodes_of(within)
        left = self._let(uid, nodes)
        # Quotas are of namespaces, and count for a pod what it asks for besides.
        its_own = uid if request.whole_device and self._quotas.in_use else ""
        key = (request, within, None if left is nodes else frozenset(left), its_own)
        found = self._looks.get(key)
        if found is None:
            fits, roomy = self._fits(uid, request, left)
            texts, left_out = self._texts(uid, request, left, roomy)
            elsewhere = ""
            if not fits and others:
                elsewhere, _ = self._fits(uid, request, self._let(uid, others))
            kinds = frozenset(map(category_of, set(texts.values())))
            found = Look(within, fits, texts, elsewhere, frozenset(roomy), left_out, kinds)
            self._looks[key] = found
        return found

    def _fits(self, uid: str, request: Request, nodes: list[str]) -> tuple[str, list[str]]:
        """The first of ``nodes`` that takes the pod, and those that have room on their GPUs."""
        roomy = self._view.ledger.fitting(request, nodes)
        if roomy and self._view.offers.any_short:
            short = self._view.offers.refusals(request, roomy)
            roomy = [node for node in roomy if node not in short]
        whole = self._whole(uid, request, roomy)
        # One that is cordoned is of use once it is not.
        fitting = sorted((node for node in roomy if node not in whole), key=self._view.cordoned.__contains__)
        return next(iter(fitting), ""), roomy

    def _texts(
        self, uid: str, request: Request, nodes: list[str], roomy: list[str]
    ) -> tuple[Mapping[str, str], int]:
        """Why ``nodes`` do not take the pod, each of those that do not, or some; and how many are left out."""
        some = nodes
        if len(nodes) > max(self._reasons_left, _FEW_REASONS):
            some = list(dict.fromkeys((*roomy[:_FEW_REASONS], *nodes[:_FEW_REASONS])))
        self._reasons_left -= len(some)
        verdict = self._view.ledger.filter(request, some)
        texts = {**verdict.refused, **verdict.hopeless}
        if self._view.offers.any_short:
            texts |= self._view.offers.refusals(request, [*verdict.fits, *verdict.refused])
        for node, text in self._whole(uid, request, some).items():
            if node not in texts or category_of(texts[node]) in _SOME_TIME:
                texts[node] = text
        return texts, len(nodes) - len(some)

    def _whole(self, uid: str, request: Request, nodes: list[str]) -> Mapping[str, str]:
        """Those of ``nodes`` of which the pod's quotas do not let it have GPUs, for the units that these count with when given whole, and why."""
        if not request.whole_device or not self._quotas.in_use:
            return {}
        return self._quotas.whole_refusals(uid, request, nodes)

    def _let(self, uid: str, nodes: list[str]) -> list[str]:
        """Those of ``nodes`` that the pod's policy lets it have; the same list where it has none."""
        units = self._in_turn(uid, nodes)
        if len(units) == 1 and units[0] is nodes:
            return nodes
        let = {node for some in units for node in some}
        return [node for node in nodes if node in let]

    def _nodes_of(self, within: frozenset[str] | None) -> tuple[list[str], list[str]]:
        """Those of ``within``, and others that are not cordoned; those with the most free first."""
        found = self._nodes.get(within)
        if found is None:
            ledger = self._view.ledger
            if self._all is None:
                # Nodes that give GPUs by number are not among the roomiest.
                self._all = list(dict.fromkeys((*ledger.evictions.roomiest(), *ledger.node_names())))
            if within is None:
                found = self._all, []
            else:
                there = [node for node in self._all if node in within]
                cordoned = self._view.cordoned
                others = [node for node in self._all if node not in within and node not in cordoned]
                found = there or sorted(within), others
            self._nodes[within] = found
        return found

    def _set_of(self, asked: Sequence[str]) -> frozenset[str] | None:
        """``None`` where all nodes were asked about."""
        known = self._sets.get(id(asked))
        if known is None:
            nodes = frozenset(asked)
            within = None if nodes.issuperset(self._view.ledger.node_names()) else nodes
            known = self._sets[id(asked)] = asked, within
        return known[1]

    # --- what others say ----------------------------------------------------------------------------

    def _for_policy(self, record: PodRecord, asked: Sequence[str] | None) -> str:
        told = _GENERAL[Category.POLICY]
        if record.request is None:
            return told
        nodes, _ = self._nodes_of(None if asked is None else self._set_of(asked))
        fits, _ = self._fits(record.uid, record.request, nodes)
        return told if fits or not nodes else told + _NO_ROOM

    def _for_gang(self, record: PodRecord, standing: Standing, asked: Sequence[str] | None) -> str:
        """For a pod of a gang of which too few run."""
        gang, request = record.gang, record.request
        assert gang is not None
        assert request is not None

        def nodes() -> list[str]:
            found = self._view.ledger.node_names() if asked is None else asked
            found = [node for node in found if node not in self._view.cordoned]
            if self._view.offers.any_short:
                short = self._view.offers.refusals(request, found)
                found = [node for node in found if node not in short]
            return self._let(record.uid, found)

        def alone() -> str:
            # By a quota a whole GPU may be too much on the node that a plan takes, and not on a smaller one's.
            fits = self._look(record.uid, request, asked).fits
            if fits and fits not in self._view.cordoned:
                return ""
            # Of which kind its own reasons are is looked up.
            return self._for_nodes(record, Category.GANG, asked)

        def kept() -> str:
            return self._kept_by_gangs(request, self._look(record.uid, request, asked).texts)

        return self._of_gangs.of(record, gang, standing, nodes, alone, kept)

    def _for_quota(self, record: PodRecord, refusal: str, asked: Sequence[str] | None) -> str:
        over = self._quotas.over(record.uid)
        if not over:  # its pods are not read yet
            return _GENERAL[Category.BINDING]
        told = quota_suggestions.would_help(over)
        if record.request is None:
            return told
        look = self._look(record.uid, record.request, asked)
        if Category.QUOTA in look.kinds:
            return self._for_whole(record, look)
        return told if look.roomy else told + _NO_ROOM

    def _for_whole(self, record: PodRecord, look: Look) -> str:
        """By what the GPUs count that it would be given whole: of the nodes with room, or of all, those that count least."""
        quotas, request = self._quotas, record.request
        assert request is not None
        refusing = [node for node, text in look.texts.items() if category_of(text) is Category.QUOTA]
        nodes = [node for node in refusing if node in look.roomy] or refusing
        units, node = min(zip(self._view.ledger.largest_units(nodes), nodes, strict=True))
        whole = quota_suggestions.Whole(node, units * request.gpu_count)
        told = quota_suggestions.would_help(
            quotas.over(record.uid, whole.units),
            alone=any(one.alone for one in quotas.over(record.uid)),
            whole=whole,
        )
        return told if node in look.roomy else told + _NO_ROOM

    def _for_rules(self, record: PodRecord) -> str:
        told = kube_scheduler.would_help(record.unplaced, self._asked_by)
        if kube_scheduler.OTHER_LABELS not in told:
            return told
        return told.replace(kube_scheduler.OTHER_LABELS, self._labels.of(record))

    def _for_gates(self, record: PodRecord) -> str:
        return kube_scheduler.GATES_HELP

    def _for_unserved(self, record: PodRecord) -> str:
        return kube_scheduler.unserved_help(record.unplaced, self._asked_by)


_GENERAL: Final = {**GENERAL, Category.BINDING: BY_ITSELF, Category.QUOTA: BY_ITSELF}


def _left_out(look: Look) -> str:
    if not look.left_out:
        return ""
    there = len(look.texts) + look.left_out
    return f"; of {there} nodes those {len(look.texts)} with the most free were looked at"
