"""What would let a waiting pod in, in words: read from the ledger, gangs and quotas at the moment at which somebody asks.

What other rules say of a node (taints, selectors, processors) is kube-scheduler's, and not known here.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from gpushare.ledger import Verdict
from gpushare.model import names
from gpushare.model.asked import memory_text
from gpushare.model.device import NodeMode
from gpushare.model.request import Request
from gpushare.scheduler import mode_remedies, own_rules
from gpushare.scheduler.categories import Category, category_of
from gpushare.scheduler.counted import are, for_others, of_each, on_nodes, pods
from gpushare.scheduler.counted import nodes as counted_nodes
from gpushare.scheduler.records import PodRecord
from gpushare.scheduler.verdicts import Summary
from gpushare.scheduler.view import ClusterView

#: As ``ledger.reasons`` writes which GPU comes nearest.
_LARGEST: Final = re.compile(r"\(largest free: (?P<free>.+?) on GPU (?P<gpu>\d+)\)")
_NEAREST: Final = re.compile(r"\(nearest: GPU (?P<gpu>\d+) with (?P<free>.+?)\)")
_QUOTA: Final = re.compile(r"elastic quota (?P<name>[^:]+):")
_OF_ROOM: Final = frozenset({Category.MEMORY, Category.COMPUTE})
_NOT_ASKED: Final = (
    "the pod's node selector, affinity or tolerations keep it off: kube-scheduler does not ask about it"
)
#: Nodes that stand for those that were asked about, where none of them is among the roomiest.
_SOME: Final = 16
_MOVES: Final = "kubectl inspect cgpu --fragmentation says whose move would help"


class Remedies:
    """Words for many pods of one moment: what was worked out for one holds for the next that asks the same."""

    def __init__(self, view: ClusterView, asked_by: Collection[str] = ()) -> None:
        self._view = view
        self._asked_by = asked_by
        self._roomiest: list[str] | None = None
        self._room: dict[tuple[Category, Request, frozenset[str] | None], str] = {}
        self._sets: dict[int, tuple[Sequence[str], frozenset[str] | None]] = {}
        """By the identity of a list that many pods share: that list, which is kept so that no other has its identity, and its nodes."""
        self._special: Mapping[Category, Callable[[PodRecord, Summary | None, str], str]] = {
            Category.GANG: self._for_gang,
            Category.QUOTA: self._for_quota,
            Category.HEALTH: self._for_health,
            Category.SIZE: self._for_size,
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
        if category in _OF_ROOM:
            return self._for_room(record, category, asked)
        if category is Category.NODE:
            return self._for_node(record, asked)
        special = self._special.get(category)
        return _GENERAL[category] if special is None else special(record, summary, reason)

    def _for_room(self, record: PodRecord, category: Category, asked: Sequence[str] | None) -> str:
        assert record.request is not None
        within = None if asked is None else self._set_of(asked)
        key = (category, record.request, within)
        found = self._room.get(key)
        if found is None:
            found = self._room[key] = self._room_for(record.request, category, within)
        return found

    def _for_node(self, record: PodRecord, asked: Sequence[str] | None) -> str:
        assert record.request is not None
        if asked is None:
            return _GENERAL[Category.NODE]
        within = self._set_of(asked)
        key = (Category.NODE, record.request, within)
        found = self._room.get(key)
        if found is None:
            found = mode_remedies.would_help(self._view.ledger, record.request, within)
            found = self._room[key] = found or _GENERAL[Category.NODE]
        return found

    def _set_of(self, asked: Sequence[str]) -> frozenset[str] | None:
        """``None`` where all nodes were asked about."""
        known = self._sets.get(id(asked))
        if known is None:
            nodes = frozenset(asked)
            within = None if nodes.issuperset(self._view.ledger.node_names()) else nodes
            known = self._sets[id(asked)] = asked, within
        return known[1]

    def _room_for(self, request: Request, category: Category, within: frozenset[str] | None) -> str:
        ledger = self._view.ledger
        if self._roomiest is None:
            self._roomiest = ledger.roomiest()
        roomiest = self._roomiest
        if within is not None:
            roomiest = [node for node in roomiest if node in within] or sorted(within)[:_SOME]
        verdict = ledger.filter(request, roomiest)
        if verdict.fits:
            return f"there is room by now, on node {verdict.fits[0]}: kube-scheduler asks again by itself"
        told = self._nearest_of(request, category, roomiest, verdict)
        if within is not None:
            others = ledger.filter(request, [node for node in self._roomiest if node not in within])
            if others.fits:
                told += f"; node {others.fits[0]} has room, but {_NOT_ASKED}"
        return told

    def _nearest_of(
        self, request: Request, category: Category, roomiest: Sequence[str], verdict: Verdict
    ) -> str:
        wanted = _wanted(request)
        near = next(
            ((node, text) for node, text in verdict.refused.items() if category_of(text) is category), None
        )
        if near is None:
            return f"{wanted}: all GPUs of the kind are full; pods that end, or one node more"
        node, text = near
        told = f"{wanted}: {_nearest(node, text)}{self._compute_of(request, node, text)}"
        if category is Category.MEMORY and request.is_ordinary:
            scattered = self._view.ledger.scattered(request, roomiest)
            if scattered:
                told += f"; node {scattered[0]} has as much in all, on several GPUs: {_MOVES}"
        return told

    def _compute_of(self, request: Request, node: str, text: str) -> str:
        """What the GPU of a text that speaks of memory lacks of compute besides: to free the memory alone would not do."""
        found = _LARGEST.search(text)
        if found is None or not request.core_percent:
            return ""
        gpus = self._view.ledger.usage(node).gpus
        free = next((100 - one.used_core for one in gpus if one.index == int(found["gpu"])), 100)
        return f", which has {max(free, 0)}% compute free" if free < request.core_percent else ""

    def _for_gang(self, record: PodRecord, summary: Summary | None, reason: str) -> str:
        gang = record.gang
        if gang is None:
            return _GENERAL[Category.SCHEDULER]
        there = len(self._view.gangs.together_with(record.uid))
        if there < gang.least:
            lack = gang.least - there
            return f"{lack} more {'pod' if lack == 1 else 'pods'} of gang {gang.key}: {there} of {gang.least} {are(there)} there"
        return (
            f"room for {pods(gang.least)} of gang {gang.key} at once, or a smaller {names.LABEL_GANG_LEAST}"
        )

    def _for_quota(self, record: PodRecord, summary: Summary | None, reason: str) -> str:
        found = _QUOTA.search(reason)
        whose = "its elastic quota" if found is None else f"elastic quota {found['name']}"
        return f"pods of {whose} that end, or a larger max of it"

    def _for_health(self, record: PodRecord, summary: Summary | None, reason: str) -> str:
        sick = (
            ""
            if summary is None
            else next(
                (
                    f": node {example.node}: {example.reason}"
                    for group in summary.groups
                    if group.category == Category.HEALTH
                    for example in group.examples
                ),
                "",
            )
        )
        return f"GPUs that are back in service{sick}"

    def _for_size(self, record: PodRecord, summary: Summary | None, reason: str) -> str:
        assert record.request is not None
        return _large_enough(record.request)

    def _for_rules(self, record: PodRecord, summary: Summary | None, reason: str) -> str:
        return own_rules.would_help(record.unplaced, self._asked_by)

    def _for_gates(self, record: PodRecord, summary: Summary | None, reason: str) -> str:
        return own_rules.GATES_HELP

    def _for_unserved(self, record: PodRecord, summary: Summary | None, reason: str) -> str:
        return own_rules.unserved_help(record.unplaced, self._asked_by)


def _wanted(request: Request) -> str:
    if request.by_gpu:
        return "a whole GPU" if request.gpu_count == 1 else f"{request.gpu_count} whole GPUs of one node"
    units = (
        memory_text(request.memory_units * request.unit_mib)
        if request.unit_mib
        else f"{request.memory_units} of {names.GPU_MEM}"
    )
    compute = f" and {request.core_percent}% compute" if request.core_percent else ""
    state = "that nobody uses" if request.whole_device else "free"
    if request.gpu_count > 1:
        return f"{request.gpu_count} GPUs of one node with {units}{compute} {state} each"
    return f"a GPU with {units}{compute} {state}"


def _large_enough(request: Request) -> str:
    """What would hold a request that no node holds even when it is empty. A share of one GPU is not helped by more of them."""
    if request.core_percent > 100:
        return "ask for 100% compute at most, all containers together: no GPU has more, however large"
    if request.by_gpu:
        return f"a node with {request.gpu_count} GPUs or more; or ask for fewer"
    if request.gpu_count > 1:
        return f"a node with {request.gpu_count} GPUs or more that are as large as each of those asked for; or ask for less"
    return "a node with larger GPUs; or ask for less"


def _nearest(node: str, text: str) -> str:
    found = _LARGEST.search(text) or _NEAREST.search(text)
    if found is None:
        return f"the nearest is node {node}: {text}"
    return f"the nearest has {found['free']} free, GPU {found['gpu']} of node {node}"


_TOLD_BY_SCHEDULER: Final = (
    "kubectl describe pod tells what kube-scheduler found: taints, selectors, processors, volumes"
)
_GENERAL: Final[Mapping[Category, str]] = {
    Category.PODS: f"a pod that ends on one of these GPUs, or a larger cap (node labels {names.LABEL_MAX_PODS} and "
    f"{names.LABEL_MAX_NODE_PODS})",
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
    """One line on a pod that no node took."""
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
