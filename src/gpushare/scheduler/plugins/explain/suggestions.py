"""Suggestions in words: what would make a pending pod fit. Computed on demand from the ledger, gangs and quotas.

Other rules about nodes (taints, selectors, CPU) belong to kube-scheduler and are not known here.
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
from gpushare.scheduler.plugins.explain.rollout_suggestions import RolloutSuggestions

#: Refusals by the ledger, and by a policy for nodes that the ledger allows. Their suggestions come from a fresh look at the nodes.
_NODE_CATEGORIES: Final = frozenset(
    {
        Category.MEMORY,
        Category.COMPUTE,
        Category.PODS,
        Category.KINDS,
        Category.HEALTH,
        Category.SELECTION,
        Category.SIZE,
        Category.NODE,
    }
)
#: Refusals that may pass: the node would take the pod at some time if its quotas admitted it there.
_MAY_PASS: Final = frozenset(
    {Category.MEMORY, Category.COMPUTE, Category.PODS, Category.KINDS, Category.HEALTH}
)
_NO_ROOM: Final = "; none of these nodes has enough capacity at the moment"
#: Most nodes whose reasons are computed while one list is made, over all different requests. Once they are used up, the reasons of
#: ``_FEW_REASONS`` nodes, those with the most free memory, are computed for each further request.
_MOST_REASONS: Final = 20_000
_FEW_REASONS: Final = 128


class Look(NamedTuple):
    """Current state of the nodes that kube-scheduler's rules (``asked``; ``None``: all nodes) and the pod's ResourcePolicy allow.

    ``fits``: a node with room, empty for none. ``texts``: why each other node has none. ``elsewhere``: a node with room that
    kube-scheduler does not ask about. ``roomy``: nodes with room on their GPUs, regardless of quotas. ``left_out``: number of
    nodes whose reason was not computed.
    """

    asked: frozenset[str] | None
    fits: str
    texts: Mapping[str, str]
    elsewhere: str
    roomy: frozenset[str]
    left_out: int
    kinds: frozenset[Category]
    """The categories of ``texts``."""


class Suggestions:
    """Suggestions for many pods at one moment, cached for pods with the same request.

    ``in_turn`` returns the nodes of a list that the ResourcePolicy of a pod (UID) allows now, unit by unit (``Policies.by_unit``).
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
        self._gang_suggestions = GangSuggestions(view, quotas)
        self._rollout_suggestions = RolloutSuggestions(view)
        self._label_suggestions = LabelSuggestions(
            view, quotas, lambda: self._nodes_of(None)[0], self._allowed_nodes, self._fits
        )
        self._reasons_left = _MOST_REASONS
        self._all_nodes: list[str] | None = None
        self._nodes: dict[frozenset[str] | None, tuple[list[str], list[str]]] = {}
        self._looks: dict[tuple[Request, frozenset[str] | None, frozenset[str] | None, str], Look] = {}
        self._texts_by_look: dict[tuple[int, Request, Category, bool], str] = {}
        """By the identity of a ``Look``. ``_looks`` holds them all, so no identity is reused."""
        self._cordoned_nodes: dict[str, list[str]] = {}
        """Cordoned nodes by the selector that they match."""
        self._uncordon_nodes: dict[tuple[object, ...], str] = {}
        """A cordoned node with room, by request, pod (where its quotas matter) and allowed nodes."""
        self._asked_sets: dict[int, tuple[Sequence[str], frozenset[str] | None]] = {}
        """By the identity of a list that many pods share: the list, held so that its identity is not reused, and its nodes as a set."""

    def of(
        self,
        record: PodRecord,
        category: Category,
        asked: Sequence[str] | None = None,
    ) -> str:
        """Suggestion for the pod of ``record``, which is pending for a reason of that category.

        ``asked``: the nodes that kube-scheduler last asked about, which are all that its own rules leave. ``None``: not known.
        """
        node = self._view.ledger.nominations.node_of(record.uid)
        if node:
            return f"capacity is being freed on node {node}: waiting for pods there to terminate"
        if category in _NODE_CATEGORIES or category in (Category.POLICY, Category.QUOTA, Category.GANG):
            standing = self._gangs.standing(record.uid)
            if standing is not None and standing.need > 0:
                return self._for_gang(record, standing, asked)
            if category is Category.GANG:
                # Enough pods of the gang run by now, so only the pod's own needs count.
                category = Category.MEMORY if record.request is not None else Category.SCHEDULER
            refusal = self._quotas.refusal(record.uid)
            if refusal:
                return self._for_quota(record, refusal, asked)
        if record.request is not None and (category in _NODE_CATEGORIES or category is Category.QUOTA):
            return self._for_nodes(record, category, asked)
        if category is Category.POLICY:
            return self._for_policy(record, asked)
        if category is Category.RULES:
            return self._for_rules(record)
        if category is Category.UNSERVED:
            return kube_scheduler.unserved_help(record.unplaced, self._asked_by)
        return _GENERAL[category]

    # --- by the ledger ----------------------------------------------------------------------------

    def _for_nodes(self, record: PodRecord, category: Category, asked: Sequence[str] | None) -> str:
        request = record.request
        assert request is not None
        look = self._look(record.uid, request, asked)
        if look.fits in self._view.cordoned:
            return f"`kubectl uncordon {look.fits}`: the node has enough capacity but is cordoned"
        if look.fits:
            return f"node {look.fits} has enough capacity now; kube-scheduler retries automatically"
        text = self._without_room(record, category, asked, look)
        text += self._rollout_suggestions.of(record, request, look.texts)
        return text + self._uncordon_suggestion(record)

    def _uncordon_suggestion(self, record: PodRecord) -> str:
        """Suggests a node that would take the pod if it were not cordoned, which kube-scheduler does not ask about; empty for none."""
        cordoned, request = self._view.cordoned, record.request
        assert request is not None
        if not cordoned:
            return ""
        selector = record.unplaced.selector
        nodes = [node for node in self._selected(selector, cordoned) if self._tolerates(record, node)]
        nodes = self._allowed_nodes(record.uid, nodes)
        quota_key = record.uid if request.whole_device and self._quotas.in_use else ""
        key = (request, quota_key, *nodes)
        if key not in self._uncordon_nodes:
            self._uncordon_nodes[key] = self._fits(record.uid, request, nodes)[0] if nodes else ""
        node = self._uncordon_nodes[key]
        if not node:
            return ""
        condition = (
            ", provided that the pod's node affinity allows that node" if record.unplaced.affine else ""
        )
        return f"; or `kubectl uncordon {node}`: the node has enough capacity but is cordoned{condition}"

    def _tolerates(self, record: PodRecord, node: str) -> bool:
        """Whether the pod tolerates all taints of a cordoned node, except that of the cordon itself."""
        return all(
            any(toleration.covers(taint) for toleration in record.unplaced.tolerations)
            for taint in self._view.tainted.get(node, ())
        )

    def _selected(self, selector: str, cordoned: Mapping[str, Mapping[str, str]]) -> list[str]:
        """The cordoned nodes whose labels match ``selector``; the same list each time."""
        matching = self._cordoned_nodes.get(selector)
        if matching is None:
            labels = [term.partition("=")[::2] for term in selector.split()]
            matching = self._cordoned_nodes[selector] = [
                node
                for node in sorted(cordoned)
                if all(cordoned[node].get(key) == value for key, value in labels)
            ]
        return matching

    def _without_room(
        self, record: PodRecord, category: Category, asked: Sequence[str] | None, look: Look
    ) -> str:
        """Suggestion where none of the nodes that the pod may have now has room."""
        request = record.request
        assert request is not None
        current = look.kinds
        if not current:
            return self._for_policy(record, asked)  # the policy allows no node
        if category not in current:
            category = nearest(current)
        if category is Category.QUOTA:
            return self._for_whole(record, look)
        key = (id(look), request, category, asked is not None)
        text = self._texts_by_look.get(key)
        if text is None:
            text = self._for_look(record.uid, request, category, look, known=asked is not None)
            text = self._texts_by_look[key] = text + self._reserved_text(request, look) + _left_out_text(look)
        return text

    def _reserved_text(self, request: Request, look: Look) -> str:
        """Names the pod or gang whose reserved room is in the way; empty for none."""
        holder = capacity.blocking_nomination(self._view.ledger, request, look.texts)
        if holder is None:
            return self._reserved_for_gang(request, look.texts)
        node, uid = holder
        pending = self._view.waiting.get(uid)
        return f"; node {node} has enough capacity, but it is reserved for {'another pod' if pending is None else f'pod {pending.pod}'}"

    def _reserved_for_gang(self, request: Request, nodes: Collection[str]) -> str:
        """Names a gang whose reserved room is in the way; empty for none."""
        gangs = self._gangs.keepers(request, nodes)
        return next(
            (f"; node {node} has enough capacity, but it is reserved for {gangs[node]}" for node in gangs), ""
        )

    def _for_look(self, uid: str, request: Request, category: Category, look: Look, *, known: bool) -> str:
        return of_nodes(
            self._view.ledger,
            request,
            category,
            look.texts,
            known=known,
            of=None if look.asked is None else len(look.asked),
            elsewhere=look.elsewhere,
            lets=lambda request, node: not self._whole_refusals(uid, request, [node]),
            isolated_cap=self._view.isolated_cap,
        )

    def _look(self, uid: str, request: Request, asked: Sequence[str] | None) -> Look:
        asked_nodes = None if asked is None else self._asked_set(asked)
        nodes, others = self._nodes_of(asked_nodes)
        allowed = self._allowed_nodes(uid, nodes)
        # Quotas depend on the namespace and on the other resources that the pod requests, so results are per pod.
        quota_key = uid if request.whole_device and self._quotas.in_use else ""
        key = (request, asked_nodes, None if allowed is nodes else frozenset(allowed), quota_key)
        look = self._looks.get(key)
        if look is None:
            fits, roomy = self._fits(uid, request, allowed)
            texts, left_out = self._refusal_texts(uid, request, allowed, roomy)
            elsewhere = ""
            if not fits and others:
                elsewhere, _ = self._fits(uid, request, self._allowed_nodes(uid, others))
            kinds = frozenset(map(category_of, set(texts.values())))
            look = Look(asked_nodes, fits, texts, elsewhere, frozenset(roomy), left_out, kinds)
            self._looks[key] = look
        return look

    def _fits(self, uid: str, request: Request, nodes: list[str]) -> tuple[str, list[str]]:
        """The first of ``nodes`` that takes the pod (empty: none), and those that have room on their GPUs."""
        roomy = self._view.ledger.fitting(request, nodes)
        if roomy and self._view.offers.any_short:
            over_capacity = self._view.offers.refusals(request, roomy)
            roomy = [node for node in roomy if node not in over_capacity]
        quota_refusals = self._whole_refusals(uid, request, roomy)
        # Cordoned nodes come last: they help only once they are uncordoned.
        fitting = sorted(
            (node for node in roomy if node not in quota_refusals), key=self._view.cordoned.__contains__
        )
        return next(iter(fitting), ""), roomy

    def _refusal_texts(
        self, uid: str, request: Request, nodes: list[str], roomy: list[str]
    ) -> tuple[Mapping[str, str], int]:
        """Why ``nodes`` do not take the pod, by node, and for how many of them that was not computed."""
        examined = nodes
        if len(nodes) > max(self._reasons_left, _FEW_REASONS):
            examined = list(dict.fromkeys((*roomy[:_FEW_REASONS], *nodes[:_FEW_REASONS])))
        self._reasons_left -= len(examined)
        verdict = self._view.ledger.filter(request, examined)
        texts = {**verdict.refused, **verdict.hopeless}
        if self._view.offers.any_short:
            texts |= self._view.offers.refusals(request, [*verdict.fits, *verdict.refused])
        for node, text in self._whole_refusals(uid, request, examined).items():
            if node not in texts or category_of(texts[node]) in _MAY_PASS:
                texts[node] = text
        return texts, len(nodes) - len(examined)

    def _whole_refusals(self, uid: str, request: Request, nodes: list[str]) -> Mapping[str, str]:
        """Those of ``nodes`` on which quotas refuse the pod whole GPUs, because of the units that these count, and why."""
        if not request.whole_device or not self._quotas.in_use:
            return {}
        return self._quotas.whole_refusals(uid, request, nodes)

    def _allowed_nodes(self, uid: str, nodes: list[str]) -> list[str]:
        """Those of ``nodes`` that the pod's ResourcePolicy allows; the same list object if it has no policy."""
        units = self._in_turn(uid, nodes)
        if len(units) == 1 and units[0] is nodes:
            return nodes
        allowed = {node for unit in units for node in unit}
        return [node for node in nodes if node in allowed]

    def _nodes_of(self, asked_nodes: frozenset[str] | None) -> tuple[list[str], list[str]]:
        """The nodes of ``asked_nodes``, and other nodes that are not cordoned; those with the most free memory first."""
        split = self._nodes.get(asked_nodes)
        if split is None:
            ledger = self._view.ledger
            if self._all_nodes is None:
                # ``roomiest`` leaves out nodes that serve GPUs by count.
                self._all_nodes = list(dict.fromkeys((*ledger.evictions.roomiest(), *ledger.node_names())))
            if asked_nodes is None:
                split = self._all_nodes, []
            else:
                asked = [node for node in self._all_nodes if node in asked_nodes]
                cordoned = self._view.cordoned
                others = [
                    node for node in self._all_nodes if node not in asked_nodes and node not in cordoned
                ]
                split = asked or sorted(asked_nodes), others
            self._nodes[asked_nodes] = split
        return split

    def _asked_set(self, asked: Sequence[str]) -> frozenset[str] | None:
        """The nodes of ``asked`` as a set; ``None`` if kube-scheduler asked about all nodes."""
        cached = self._asked_sets.get(id(asked))
        if cached is None:
            nodes = frozenset(asked)
            asked_nodes = None if nodes.issuperset(self._view.ledger.node_names()) else nodes
            cached = self._asked_sets[id(asked)] = asked, asked_nodes
        return cached[1]

    # --- by other rules -----------------------------------------------------------------------------

    def _for_policy(self, record: PodRecord, asked: Sequence[str] | None) -> str:
        text = _GENERAL[Category.POLICY]
        if record.request is None:
            return text
        nodes, _ = self._nodes_of(None if asked is None else self._asked_set(asked))
        fitting_node, _ = self._fits(record.uid, record.request, nodes)
        return text if fitting_node or not nodes else text + _NO_ROOM

    def _for_gang(self, record: PodRecord, standing: Standing, asked: Sequence[str] | None) -> str:
        """Suggestion for a pod of a gang of which too few pods run."""
        gang, request = record.gang, record.request
        assert gang is not None
        assert request is not None

        def nodes() -> list[str]:
            names = self._view.ledger.node_names() if asked is None else asked
            names = [node for node in names if node not in self._view.cordoned]
            if self._view.offers.any_short:
                over_capacity = self._view.offers.refusals(request, names)
                names = [node for node in names if node not in over_capacity]
            return self._allowed_nodes(record.uid, names)

        def own_suggestion() -> str:
            # A quota may refuse a whole GPU of the planned node, but admit a smaller GPU of another node.
            fitting_node = self._look(record.uid, request, asked).fits
            if fitting_node and fitting_node not in self._view.cordoned:
                return ""
            # The fresh look replaces the category with that of the pod's own refusals.
            return self._for_nodes(record, Category.GANG, asked)

        def reserved_text() -> str:
            return self._reserved_for_gang(request, self._look(record.uid, request, asked).texts)

        return self._gang_suggestions.of(record, gang, standing, nodes, own_suggestion, reserved_text)

    def _for_quota(self, record: PodRecord, refusal: str, asked: Sequence[str] | None) -> str:
        over = self._quotas.over(record.uid)
        if not over:  # the quotas' pods are not listed yet
            return _GENERAL[Category.BINDING]
        text = quota_suggestions.would_help(over)
        if record.request is None:
            return text
        look = self._look(record.uid, record.request, asked)
        if Category.QUOTA in look.kinds:
            return self._for_whole(record, look)
        return text if look.roomy else text + _NO_ROOM

    def _for_whole(self, record: PodRecord, look: Look) -> str:
        """Quota suggestion for whole GPUs, by the units that they count: on the node that counts least, if possible one with room."""
        quotas, request = self._quotas, record.request
        assert request is not None
        refusing = [node for node, text in look.texts.items() if category_of(text) is Category.QUOTA]
        nodes = [node for node in refusing if node in look.roomy] or refusing
        units, node = min(zip(self._view.ledger.largest_units(nodes), nodes, strict=True))
        whole = quota_suggestions.Whole(node, units * request.gpu_count)
        text = quota_suggestions.would_help(
            quotas.over(record.uid, whole.units),
            alone=any(exceeded.alone for exceeded in quotas.over(record.uid)),
            whole=whole,
        )
        return text if node in look.roomy else text + _NO_ROOM

    def _for_rules(self, record: PodRecord) -> str:
        text = kube_scheduler.would_help(record.unplaced, self._asked_by)
        if kube_scheduler.OTHER_LABELS not in text:
            return text
        return text.replace(kube_scheduler.OTHER_LABELS, self._label_suggestions.of(record))


_GENERAL: Final = {
    **GENERAL,
    Category.BINDING: BY_ITSELF,
    Category.QUOTA: BY_ITSELF,
    Category.GATES: kube_scheduler.GATES_HELP,
}


def _left_out_text(look: Look) -> str:
    if not look.left_out:
        return ""
    nodes = len(look.texts) + look.left_out
    return f"; of {nodes} nodes those {len(look.texts)} with the most free capacity were checked"
