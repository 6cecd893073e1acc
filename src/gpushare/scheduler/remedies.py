"""What would let a waiting pod in, in words: read from the ledger, gangs and quotas at the moment at which somebody asks.

What other rules say of a node (taints, selectors, processors) is kube-scheduler's, and not known here.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from gpushare.ledger import reasons
from gpushare.model import names
from gpushare.model.device import NodeMode
from gpushare.model.request import Request
from gpushare.scheduler import mode_remedies, own_rules, quota_remedies, room_remedies, size_remedies
from gpushare.scheduler.categories import Category, category_of, nearest
from gpushare.scheduler.counted import are, for_others, of_each, on_nodes, pods
from gpushare.scheduler.counted import nodes as counted_nodes
from gpushare.scheduler.records import PodRecord
from gpushare.scheduler.verdicts import Summary
from gpushare.scheduler.view import ClusterView

#: How a quota's refusal ends that counts more than is asked for.
_WHOLE: Final = " that are given whole"
_QUOTA: Final = re.compile(r"elastic quota (?P<name>[^:]+):")
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
_NOT_ASKED: Final = (
    "the pod's node selector, affinity or tolerations keep it off: kube-scheduler does not ask about it"
)
#: Nodes that are looked at for one pod, those with the most free first.
_MOST_LOOKED_AT: Final = 128


class Look(NamedTuple):
    """What is so now of the nodes that a pod may have, by its own rules (``asked``; ``None``: all) and by its ResourcePolicy.

    ``fits`` is one with room, empty for none; ``texts`` say why each of the others has none. ``elsewhere`` has room, but is not asked about.
    """

    asked: frozenset[str] | None
    fits: str
    texts: Mapping[str, str]
    elsewhere: str


class Remedies:
    """Words for many pods of one moment: what was worked out for one holds for the next that asks the same.

    ``in_turn`` gives those nodes of a list that the policy of a pod (UID) lets it have now, unit by unit (``Policies.by_unit``).
    """

    def __init__(
        self,
        view: ClusterView,
        asked_by: Collection[str] = (),
        in_turn: Callable[[str, list[str]], list[list[str]]] = lambda uid, nodes: [nodes],
    ) -> None:
        self._view = view
        self._asked_by = asked_by
        self._in_turn = in_turn
        self._all: list[str] | None = None
        self._nodes: dict[frozenset[str] | None, tuple[list[str], list[str]]] = {}
        self._looks: dict[tuple[Request, frozenset[str] | None, frozenset[str] | None], Look] = {}
        self._told: dict[tuple[int, Request, Category, bool], str] = {}
        """By the identity of a look, all of which are kept."""
        self._sets: dict[int, tuple[Sequence[str], frozenset[str] | None]] = {}
        """By the identity of a list that many pods share: that list, which is kept so that no other has its identity, and its nodes."""
        self._special: Mapping[Category, Callable[[PodRecord, Summary | None, str], str]] = {
            Category.GANG: self._for_gang,
            Category.QUOTA: self._for_quota_passed,
            Category.RULES: self._for_rules,
            Category.GATES: self._for_gates,
            Category.UNSERVED: self._for_unserved,
        }

    def of(
        self,
        record: PodRecord,
        category: Category,
        summary: Summary | None,
        reason: str,
        asked: Sequence[str] | None = None,
    ) -> str:
        """For the pod of ``record``, which waits for a ``reason`` of that category.

        ``asked`` are the nodes that kube-scheduler last asked about for it: all that its own rules leave. ``None``: not known.
        """
        node = self._view.ledger.kept_on(record.uid)
        if node:
            return f"room is being made for it on node {node}: it waits for pods that end there"
        if category in _OF_NODES or category in (Category.POLICY, Category.QUOTA):
            refusal = self._view.quotas.refusal(record.uid)
            if refusal:
                return self._for_quota(record, refusal, asked)
        if category is Category.QUOTA and _WHOLE not in reason and record.request is not None:
            category = Category.MEMORY  # whatever is short now
        if category in _OF_NODES:
            return self._for_nodes(record, category, asked)
        if category is Category.POLICY:
            return self._for_policy(record, asked)
        special = self._special.get(category)
        return _GENERAL[category] if special is None else special(record, summary, reason)

    # --- what the ledger says ---------------------------------------------------------------------

    def _for_nodes(self, record: PodRecord, category: Category, asked: Sequence[str] | None) -> str:
        request = record.request
        assert request is not None
        look = self._look(record.uid, request, asked)
        if look.fits:
            return f"there is room by now, on node {look.fits}: kube-scheduler asks again by itself"
        now = {category_of(text) for text in look.texts.values()}
        if not now:
            return self._for_policy(record, asked)  # it leaves no node
        if category not in now:
            category = nearest(now)
        key = (id(look), request, category, asked is not None)
        found = self._told.get(key)
        if found is None:
            found = self._for_look(request, category, look, known=asked is not None)
            found = self._told[key] = found + self._kept_for(request, look)
        return found

    def _kept_for(self, request: Request, look: Look) -> str:
        """Whose room it would have, were it not kept for that one; empty where that is not in the way."""
        found = room_remedies.kept_for(self._view.ledger, request, look.texts)
        if found is None:
            return ""
        node, uid = found
        record = self._view.waiting.get(uid)
        return f"; node {node} has room, but keeps it for {'another pod' if record is None else f'pod {record.pod}'}"

    def _for_look(self, request: Request, category: Category, look: Look, *, known: bool) -> str:
        ledger = self._view.ledger
        if category is Category.NODE:
            if not known:
                return _GENERAL[category]
            of = None if look.asked is None else len(look.asked)
            found = mode_remedies.would_help(
                ledger, request, list(look.texts), of=of, elsewhere=look.elsewhere
            )
            return found or _GENERAL[category]
        if category is Category.SIZE:
            if any(text.endswith(reasons.WITHOUT_SUFFIX) for text in look.texts.values()):
                return _SLIP
            return size_remedies.large_enough(ledger, request, look.texts)
        if category is Category.HEALTH:
            return room_remedies.of_service(ledger, request, look.texts if known else {})
        if category in (Category.MEMORY, Category.COMPUTE):
            told = room_remedies.of_room(ledger, request, category, look.texts)
            if look.elsewhere:
                told += f"; node {look.elsewhere} has room, but {_NOT_ASKED}"
            return told
        if category is Category.PODS:
            return room_remedies.of_caps(ledger, request, look.texts, self._view.isolated_cap)
        return _GENERAL.get(category, _GENERAL[Category.NODE])

    def _look(self, uid: str, request: Request, asked: Sequence[str] | None) -> Look:
        within = None if asked is None else self._set_of(asked)
        nodes, others = self._nodes_of(within)
        left = self._let(uid, nodes)
        key = (request, within, None if left is nodes else frozenset(left))
        found = self._looks.get(key)
        if found is None:
            fits, texts = self._now(request, left)
            elsewhere = ""
            if not fits and others:
                elsewhere, _ = self._now(request, self._let(uid, others))
            found = self._looks[key] = Look(within, fits, texts, elsewhere)
        return found

    def _now(self, request: Request, nodes: list[str]) -> tuple[str, Mapping[str, str]]:
        """The first of ``nodes`` with room, and why each of the others has none."""
        verdict = self._view.ledger.filter(request, nodes)
        short: Mapping[str, str] = {}
        if self._view.offers.any_short:
            short = self._view.offers.refusals(request, [*verdict.fits, *verdict.refused])
        fits = next((node for node in verdict.fits if node not in short), "")
        return fits, {**verdict.refused, **verdict.hopeless, **short}

    def _let(self, uid: str, nodes: list[str]) -> list[str]:
        """Those of ``nodes`` that the pod's policy lets it have; the same list where it has none."""
        units = self._in_turn(uid, nodes)
        if len(units) == 1 and units[0] is nodes:
            return nodes
        let = {node for some in units for node in some}
        return [node for node in nodes if node in let]

    def _nodes_of(self, within: frozenset[str] | None) -> tuple[list[str], list[str]]:
        """Nodes that are looked at: of ``within``, and others; those with the most free first."""
        found = self._nodes.get(within)
        if found is None:
            ledger = self._view.ledger
            if self._all is None:
                # Nodes that give GPUs by number are not among the roomiest.
                self._all = list(dict.fromkeys((*ledger.roomiest(), *ledger.node_names())))
            if within is None:
                found = self._all[:_MOST_LOOKED_AT], []
            else:
                there = (node for node in self._all if node in within)
                others = (node for node in self._all if node not in within)
                found = (
                    list(islice(there, _MOST_LOOKED_AT)) or sorted(within)[:_MOST_LOOKED_AT],
                    list(islice(others, _MOST_LOOKED_AT)),
                )
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
        fits, texts = self._now(record.request, nodes)
        return told if fits or not texts else f"{told}; and room, which none of these nodes has now"

    def _for_gang(self, record: PodRecord, summary: Summary | None, reason: str) -> str:
        gang = record.gang
        if gang is None:
            return _GENERAL[Category.SCHEDULER]
        there = self._view.gangs.there(record.uid)
        if there < gang.least:
            lack = gang.least - there
            return f"{lack} more {'pod' if lack == 1 else 'pods'} of gang {gang.key}: {there} of {gang.least} {are(there)} there"
        needed = self._view.gangs.needed(record.uid)
        return f"room for {pods(needed)} of gang {gang.key} at once, or a smaller {names.LABEL_GANG_LEAST}"

    def _for_quota(self, record: PodRecord, refusal: str, asked: Sequence[str] | None) -> str:
        over = self._view.quotas.over(record.uid)
        if not over:  # its pods are not read yet
            return _GENERAL[Category.BINDING]
        told = quota_remedies.would_help(over)
        if record.request is None or self._look(record.uid, record.request, asked).fits:
            return told
        return f"{told}; and room, which none of these nodes has now"

    def _for_quota_passed(self, record: PodRecord, summary: Summary | None, reason: str) -> str:
        """By what the GPUs come to that it would be given whole; or it is not so any more."""
        found = _QUOTA.search(reason)
        if found is None or _WHOLE not in reason:
            return _GENERAL[Category.BINDING]
        return f"pods of elastic quota {found['name']} that end, or a larger max of it"

    def _for_rules(self, record: PodRecord, summary: Summary | None, reason: str) -> str:
        return own_rules.would_help(record.unplaced, self._asked_by)

    def _for_gates(self, record: PodRecord, summary: Summary | None, reason: str) -> str:
        return own_rules.GATES_HELP

    def _for_unserved(self, record: PodRecord, summary: Summary | None, reason: str) -> str:
        return own_rules.unserved_help(record.unplaced, self._asked_by)


#: No larger GPU is meant, where bytes or MiB were written.
_SLIP: Final = f"write {names.GPU_MEM} as a number of units, without Mi or Gi"


_TOLD_BY_SCHEDULER: Final = (
    "`kubectl describe pod` tells what kube-scheduler found: taints, selectors, processors, volumes"
)
_GENERAL: Final[Mapping[Category, str]] = {
    Category.KINDS: "a node without pods of the other kind: those with GPU memory alone and those with compute too are "
    "never together on one",
    Category.POLICY: "a place in one of the units of its ResourcePolicy, or another ResourcePolicy",
    Category.BINDING: "nothing: it is tried again by itself",
    Category.UNIT: "delete the pod, so that it is made anew in the unit of the nodes",
    Category.NODE: f"a node with the label {names.LABEL_MODE}={NodeMode.SHARE.value} ({NodeMode.CORE_MEM.value} for compute, "
    f"{NodeMode.TOPOLOGY.value} for {names.GPU_WHOLE})",
    Category.REQUEST: "another request: change the pod's template, nothing else will do",
    Category.SCHEDULER: _TOLD_BY_SCHEDULER,
    Category.UNASKED: f"kube-scheduler's turn, or its own rules refuse every node: {_TOLD_BY_SCHEDULER}",
}


def reason_text(summary: Summary) -> str:
    """One line on a pod that no node took. Where bytes or MiB were written instead of units, it ends with that."""
    told = _reason_text(summary)
    slip = next(
        filter(None, (_slip_of(one.reason) for group in summary.groups for one in group.examples)), ""
    )
    return told if slip in told else told + slip


def _slip_of(reason: str) -> str:
    """What a node's reason says of how the request was written; it stands in brackets at its end, which are left out of several nodes'."""
    return reason[reason.rindex(" (") :] if reason.endswith(reasons.WITHOUT_SUFFIX) else ""


def _reason_text(summary: Summary) -> str:
    if not summary.nodes:
        return "kube-scheduler offered no node"
    if len(summary.groups) == 1 and summary.groups[0].nodes in (summary.nodes, summary.sampled):
        group = summary.groups[0]
        told = group.examples[0].reason if len(group.examples) == 1 else group.reason
        if summary.nodes == 1:
            return group.examples[0].reason
        # A text that speaks of the node would seem to speak of one alone.
        spoken = of_each(told)
        return told if spoken == told and len(group.examples) == 1 else f"{_nodes(summary.nodes)}: {spoken}"
    told = "; ".join(on_nodes(group.nodes, group.reason) for group in summary.groups[:MOST_TOLD])
    more = sum(group.nodes for group in summary.groups[MOST_TOLD:])
    looked = "" if summary.sampled + summary.left_out >= summary.nodes else f" (of {summary.sampled} of them)"
    return f"{_nodes(summary.nodes)}{looked}; {told}" + (f"; {for_others(more)}" if more else "")


MOST_TOLD: Final = 4


def _nodes(count: int) -> str:
    return "the node does not take it" if count == 1 else f"none of {count} nodes takes it"


def fitting_text(nodes: Sequence[str], count: int) -> str:
    """Which nodes took a pod that is not bound."""
    some = ", ".join(nodes)
    return f"there is room on {counted_nodes(count)} ({some}{', …' if count > len(nodes) else ''})"
