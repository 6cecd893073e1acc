"""Suggestions for pods whose eligible nodes have pods of the other kind (memory only, or memory and compute)."""

from collections.abc import Mapping
from typing import Final

from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.reasons.categories import Category, category_of
from gpushare.reasons.phrases import have
from gpushare.reasons.suggestions import modes, sizes
from gpushare.reasons.suggestions.trial import fewest_first, pods_on, refusal, to_try
from gpushare.reasons.suggestions.victims import MAX_NAMED, listed, names_of

_KINDS: Final = (
    "a node without pods of the other kind: memory-only pods and pods with compute never share a node"
)


def without_others(ledger: Ledger, request: Request, texts: Mapping[str, str], lets: sizes.AllowsFn) -> str:
    """The suggestion; ``texts``: reasons of the eligible nodes, or empty if these are unknown."""
    suggestions = [_after_pods_end(ledger, request, texts), _by_label(ledger, request, texts, lets)]
    advice = "; or ".join(filter(None, suggestions))
    return f"{_KINDS}: {advice}" if advice else _KINDS


def _after_pods_end(ledger: Ledger, request: Request, texts: Mapping[str, str]) -> str:
    """Suggests the node with the fewest pods that would fit the pod without them, if they are few; else empty."""
    conflicting = [ledger.node(name) for name, text in texts.items() if category_of(text) is Category.KINDS]
    for node in to_try(fewest_first(ledger, filter(None, conflicting))):
        present = names_of(ledger, pods_on(ledger, node.name))
        if 0 < len(present) <= MAX_NAMED and not refusal(
            ledger, request, node, emptied=True, with_reserved=True
        ):
            return f"node {node.name} would fit once {listed(present)} {have(len(present))} ended"
    return ""


def _by_label(ledger: Ledger, request: Request, texts: Mapping[str, str], lets: sizes.AllowsFn) -> str:
    others = [name for name, text in texts.items() if category_of(text) is Category.NODE]
    return modes.idle_label(ledger, request, others, lets)
