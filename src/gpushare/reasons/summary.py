"""Compact results of ``filter`` for thousands of nodes: reasons with their number of nodes, and two bytes per node."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from gpushare.ledger import Verdict
from gpushare.ledger.fit.reasons import WITHOUT_SUFFIX
from gpushare.reasons import phrases
from gpushare.reasons.categories import Category, category_of, nearest
from gpushare.reasons.phrases import OTHER_REASONS, for_others, of_each, on_nodes

#: Groups of reasons per pod; the rarest of more are merged.
MOST_GROUPS: Final = 16
#: Example nodes per reason.
EXAMPLES: Final = 3
#: Different texts stored per pod, and characters of each.
MOST_TEXTS: Final = 2000
LONGEST_TEXT: Final = 400

FITS: Final = 0
LEFT_OUT: Final = 1
_FIRST_TEXT: Final = 2
TOO_MANY: Final = "too many different reasons: not stored"


class Example(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A node with its full reason."""

    node: str
    reason: str


class Group(msgspec.Struct, frozen=True, rename="camel"):
    """Nodes that refuse for the same reason: its start, the number of nodes, and examples.

    ``final``: preemption cannot help there: evicting pods would not change it, or a policy or the kubelet excludes the node.
    """

    category: str
    reason: str
    final: bool
    nodes: int
    examples: tuple[Example, ...]


class Each(NamedTuple):
    """A code per node: ``FITS``, ``LEFT_OUT``, or the index of its text in ``texts`` plus 2."""

    names: Sequence[str]
    codes: "array[int]"
    texts: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Memory used, except for the names, which are shared."""
        return 2 * len(self.codes) + sum(map(len, self.texts))

    def answers(self, left_out: str) -> Iterable[Example]:
        """The reason of each node, in the order of the call; empty for nodes that fit."""
        texts = ("", left_out, *self.texts)
        return map(Example, self.names, map(texts.__getitem__, self.codes))


class Summary(msgspec.Struct, frozen=True, rename="camel"):
    """A result of ``filter``: numbers of nodes in the call, of those that fit, and of those left out without a reason.

    ``sampled``: number of refusing nodes that the reasons cover; usually all.
    """

    nodes: int
    fits: int
    left_out: int
    sampled: int
    groups: tuple[Group, ...]
    fitting: tuple[str, ...]
    """Some of the nodes that fit."""

    @property
    def category(self) -> Category:
        """The category that counts for the pod, if no node fits."""
        return nearest(Category(group.category) for group in self.groups)


def summarized(names: Sequence[str], verdict: Verdict) -> tuple[Summary, Each]:
    """The summary and the code of each node. Takes some hundred microseconds for thousands of nodes."""
    reasons = {**verdict.refused, **verdict.hopeless}
    fits = set(verdict.fits)
    code_of: dict[str, int] = {}
    first_nodes: list[str] = []
    codes = array("H")
    for name in names:
        text = reasons.get(name)
        if text is None:
            codes.append(FITS if name in fits else LEFT_OUT)
            continue
        code = code_of.get(text)
        if code is None:
            if len(first_nodes) >= MOST_TEXTS:
                text = TOO_MANY
            code = code_of.setdefault(text, len(first_nodes) + _FIRST_TEXT)
            if code == len(first_nodes) + _FIRST_TEXT:
                first_nodes.append(name)
        codes.append(code)
    count = Counter(codes)
    refusals = [
        _Refusal(text, node, count[code], node in verdict.hopeless)
        for (text, code), node in zip(code_of.items(), first_nodes, strict=True)
    ]
    texts = tuple(text[:LONGEST_TEXT] for text in code_of)
    return _summary(len(names), len(verdict.fits), len(reasons), verdict.fits, refusals), Each(
        names, codes, texts
    )


def sampled(nodes: int, fits: int, refusing: int, recorded: Verdict) -> Summary:
    """The summary of a call of which only the ``recorded`` refusals are known."""
    refusals = [
        _Refusal(text, node, 1, final)
        for reasons, final in ((recorded.refused, False), (recorded.hopeless, True))
        for node, text in reasons.items()
    ]
    return _summary(nodes, fits, refusing, recorded.fits, refusals)


class _Refusal(NamedTuple):
    text: str
    node: str
    nodes: int
    final: bool


def _summary(
    nodes: int, fits: int, refusing: int, fitting: Sequence[str], refusals: list[_Refusal]
) -> Summary:
    return Summary(
        nodes=nodes,
        fits=fits,
        left_out=max(nodes - fits - refusing, 0),
        sampled=sum(refusal.nodes for refusal in refusals),
        groups=_groups(refusals),
        fitting=tuple(fitting[:EXAMPLES]),
    )


def _groups(refusals: list[_Refusal]) -> tuple[Group, ...]:
    """Groups by the start of the reasons, the most frequent first."""
    by_head: dict[tuple[str, bool], list[_Refusal]] = {}
    for refusal in refusals:
        by_head.setdefault((_head(refusal.text), refusal.final), []).append(refusal)
    groups = sorted(by_head.items(), key=lambda item: -sum(refusal.nodes for refusal in item[1]))
    result = [_group(head, members) for (head, final), members in groups[:MOST_GROUPS]]
    rest = [refusal for _, members in groups[MOST_GROUPS:] for refusal in members]
    if rest:
        result.append(_group(OTHER_REASONS, rest))
    return tuple(result)


def _group(head: str, refusals: list[_Refusal]) -> Group:
    examples = tuple(Example(refusal.node, refusal.text[:LONGEST_TEXT]) for refusal in refusals[:EXAMPLES])
    category = nearest(category_of(refusal.text) for refusal in refusals)
    return Group(
        category.value,
        head,
        all(refusal.final for refusal in refusals),
        sum(refusal.nodes for refusal in refusals),
        examples,
    )


def _head(text: str) -> str:
    """The start of a reason, without the parts that differ between nodes."""
    text = text.partition("; ")[0]
    head, _, rest = text.partition(" (")
    # Brackets in the middle of a sentence belong to it.
    return (text if "), " in rest else head)[:LONGEST_TEXT]


def reason_text(summary: Summary) -> str:
    """A one-line reason for a pod that fits no node; it ends with a note if bytes or MiB were written instead of units."""
    text = _reason_text(summary)
    note = next(
        filter(None, (_note_of(example.reason) for group in summary.groups for example in group.examples)), ""
    )
    return text if note in text else text + note


def _note_of(reason: str) -> str:
    """The note on a wrong unit in brackets at the end of a node's reason, which the texts for several nodes omit; else empty."""
    return reason[reason.rindex(" (") :] if reason.endswith(WITHOUT_SUFFIX) else ""


def _reason_text(summary: Summary) -> str:
    if not summary.nodes:
        return "kube-scheduler offered no node"
    if len(summary.groups) == 1 and summary.groups[0].nodes in (summary.nodes, summary.sampled):
        group = summary.groups[0]
        text = group.examples[0].reason if len(group.examples) == 1 else group.reason
        if summary.nodes == 1:
            return group.examples[0].reason
        # A text with "node" in the singular would seem to mean a single node.
        plural = of_each(text)
        return text if plural == text and len(group.examples) == 1 else f"{_nodes(summary.nodes)}: {plural}"
    text = "; ".join(on_nodes(group.nodes, group.reason) for group in summary.groups[:MOST_NAMED])
    more = sum(group.nodes for group in summary.groups[MOST_NAMED:])
    sample = "" if summary.sampled + summary.left_out >= summary.nodes else f" (of {summary.sampled} of them)"
    return f"{_nodes(summary.nodes)}{sample}; {text}" + (f"; {for_others(more)}" if more else "")


MOST_NAMED: Final = 4


def _nodes(count: int) -> str:
    return "the node does not fit" if count == 1 else f"none of {count} nodes fits"


def fitting_text(nodes: Sequence[str], count: int) -> str:
    """A text about the nodes that fit a pod that is not bound."""
    listed = ", ".join(nodes)
    return f"there is capacity on {phrases.nodes(count)} ({listed}{', …' if count > len(nodes) else ''})"
