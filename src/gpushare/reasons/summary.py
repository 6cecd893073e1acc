"""What ``filter`` said of thousands of nodes, in little: the reasons with how many nodes each has, and node by node in two bytes each."""

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

#: Kinds of reasons that are told apart for one pod; the rarest of more are told together.
MOST_GROUPS: Final = 16
#: Nodes that stand for a reason.
EXAMPLES: Final = 3
#: Different texts that are kept for one pod, and characters of each.
MOST_TEXTS: Final = 2000
LONGEST_TEXT: Final = 400

FITS: Final = 0
LEFT_OUT: Final = 1
_FIRST_TEXT: Final = 2
TOO_MANY: Final = "one of too many different reasons to be kept"


class Example(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A node, and all that was said of it."""

    node: str
    reason: str


class Group(msgspec.Struct, frozen=True, rename="camel"):
    """Nodes that refuse for one reason: how it begins, how many they are, some of them.

    ``final``: nobody is ended there for the pod: no end of others would change it, or a policy or its kubelet keeps the node from it.
    """

    category: str
    reason: str
    final: bool
    nodes: int
    examples: tuple[Example, ...]


class Each(NamedTuple):
    """Node by node: ``FITS``, ``LEFT_OUT``, or the place of its text in ``texts`` after these two."""

    names: Sequence[str]
    codes: "array[int]"
    texts: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """What it takes, but for the names, which many share."""
        return 2 * len(self.codes) + sum(map(len, self.texts))

    def answers(self, left_out: str) -> Iterable[Example]:
        """What was said of each node, in the order asked; nothing of one that takes the pod."""
        said = ("", left_out, *self.texts)
        return map(Example, self.names, map(said.__getitem__, self.codes))


class Summary(msgspec.Struct, frozen=True, rename="camel"):
    """An answer of ``filter``: of how many nodes it was asked, how many took the pod, how many were left out in silence.

    ``sampled``: of how many of the refusing nodes the reasons are; all of them, mostly.
    """

    nodes: int
    fits: int
    left_out: int
    sampled: int
    groups: tuple[Group, ...]
    fitting: tuple[str, ...]
    """Some of the nodes that took it."""

    @property
    def category(self) -> Category:
        """What stands for the pod, where no node took it."""
        return nearest(Category(one.category) for one in self.groups)


def summarized(names: Sequence[str], verdict: Verdict) -> tuple[Summary, Each]:
    """All of it. Some hundred microseconds for thousands of nodes."""
    reasons = {**verdict.refused, **verdict.hopeless}
    fits = set(verdict.fits)
    code_of: dict[str, int] = {}
    first: list[str] = []
    codes = array("H")
    for name in names:
        text = reasons.get(name)
        if text is None:
            codes.append(FITS if name in fits else LEFT_OUT)
            continue
        code = code_of.get(text)
        if code is None:
            if len(first) >= MOST_TEXTS:
                text = TOO_MANY
            code = code_of.setdefault(text, len(first) + _FIRST_TEXT)
            if code == len(first) + _FIRST_TEXT:
                first.append(name)
        codes.append(code)
    count = Counter(codes)
    refusals = [
        _Refusal(text, node, count[code], node in verdict.hopeless)
        for (text, code), node in zip(code_of.items(), first, strict=True)
    ]
    texts = tuple(text[:LONGEST_TEXT] for text in code_of)
    return _summary(len(names), len(verdict.fits), len(reasons), verdict.fits, refusals), Each(
        names, codes, texts
    )


def sampled(nodes: int, fits: int, refusing: int, some: Verdict) -> Summary:
    """Of ``nodes`` so many fit or refuse; only ``some`` of the refusals were kept."""
    refusals = [
        _Refusal(text, node, 1, final)
        for kept, final in ((some.refused, False), (some.hopeless, True))
        for node, text in kept.items()
    ]
    return _summary(nodes, fits, refusing, some.fits, refusals)


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
        sampled=sum(one.nodes for one in refusals),
        groups=_groups(refusals),
        fitting=tuple(fitting[:EXAMPLES]),
    )


def _groups(refusals: list[_Refusal]) -> tuple[Group, ...]:
    """By how the reasons begin, the most frequent first."""
    found: dict[tuple[str, bool], list[_Refusal]] = {}
    for one in refusals:
        found.setdefault((_head(one.text), one.final), []).append(one)
    groups = sorted(found.items(), key=lambda item: -sum(one.nodes for one in item[1]))
    kept = [_group(head, its) for (head, final), its in groups[:MOST_GROUPS]]
    rest = [one for _, its in groups[MOST_GROUPS:] for one in its]
    if rest:
        kept.append(_group(OTHER_REASONS, rest))
    return tuple(kept)


def _group(head: str, refusals: list[_Refusal]) -> Group:
    examples = tuple(Example(one.node, one.text[:LONGEST_TEXT]) for one in refusals[:EXAMPLES])
    category = nearest(category_of(one.text) for one in refusals)
    return Group(
        category.value, head, all(one.final for one in refusals), sum(one.nodes for one in refusals), examples
    )


def _head(text: str) -> str:
    """How a reason begins, without what differs from node to node."""
    head, _, aside = text.partition(" (")
    # In the midst of a sentence the brackets are a part of it.
    return (text if "), " in aside else head).partition("; ")[0][:LONGEST_TEXT]


def reason_text(summary: Summary) -> str:
    """One line on a pod that no node took. Where bytes or MiB were written instead of units, it ends with that."""
    text = _reason_text(summary)
    note = next(
        filter(None, (_note_of(one.reason) for group in summary.groups for one in group.examples)), ""
    )
    return text if note in text else text + note


def _note_of(reason: str) -> str:
    """What a node's reason says of how the request was written; it stands in brackets at its end, which are left out of several nodes'."""
    return reason[reason.rindex(" (") :] if reason.endswith(WITHOUT_SUFFIX) else ""


def _reason_text(summary: Summary) -> str:
    if not summary.nodes:
        return "kube-scheduler offered no node"
    if len(summary.groups) == 1 and summary.groups[0].nodes in (summary.nodes, summary.sampled):
        group = summary.groups[0]
        text = group.examples[0].reason if len(group.examples) == 1 else group.reason
        if summary.nodes == 1:
            return group.examples[0].reason
        # A text that speaks of the node would seem to speak of one alone.
        spoken = of_each(text)
        return text if spoken == text and len(group.examples) == 1 else f"{_nodes(summary.nodes)}: {spoken}"
    text = "; ".join(on_nodes(group.nodes, group.reason) for group in summary.groups[:MOST_NAMED])
    more = sum(group.nodes for group in summary.groups[MOST_NAMED:])
    looked = "" if summary.sampled + summary.left_out >= summary.nodes else f" (of {summary.sampled} of them)"
    return f"{_nodes(summary.nodes)}{looked}; {text}" + (f"; {for_others(more)}" if more else "")


MOST_NAMED: Final = 4


def _nodes(count: int) -> str:
    return "the node does not take it" if count == 1 else f"none of {count} nodes takes it"


def fitting_text(nodes: Sequence[str], count: int) -> str:
    """Which nodes took a pod that is not bound."""
    some = ", ".join(nodes)
    return f"there is room on {phrases.nodes(count)} ({some}{', …' if count > len(nodes) else ''})"
