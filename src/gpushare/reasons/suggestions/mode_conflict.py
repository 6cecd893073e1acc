"""What would help a pod where the nodes that give what it asks for have pods of the other kind."""

from collections.abc import Mapping
from typing import Final

from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.reasons.categories import Category, category_of
from gpushare.reasons.phrases import have
from gpushare.reasons.suggestions import modes, sizes
from gpushare.reasons.suggestions.trial import fewest_first, pods_on, refusal, to_try
from gpushare.reasons.suggestions.victims import MOST_NAMED, listed, names_of

_KINDS: Final = (
    "a node without pods of the other kind: those with GPU memory alone and those with compute too are never "
    "together on one"
)


def without_others(ledger: Ledger, request: Request, texts: Mapping[str, str], lets: sizes.AllowsFn) -> str:
    """``texts``: why each of the nodes that the pod may have does not take it; empty where these are not known."""
    ways = [_ended(ledger, request, texts), _labelled(ledger, request, texts, lets)]
    advice = "; or ".join(filter(None, ways))
    return f"{_KINDS}: {advice}" if advice else _KINDS


def _ended(ledger: Ledger, request: Request, texts: Mapping[str, str]) -> str:
    """The node with the fewest pods that would do without them, where they are few; empty for none."""
    found = [ledger.node(name) for name, text in texts.items() if category_of(text) is Category.KINDS]
    for node in to_try(fewest_first(ledger, filter(None, found))):
        there = names_of(ledger, pods_on(ledger, node.name))
        if 0 < len(there) <= MOST_NAMED and not refusal(ledger, request, node, emptied=True, kept=True):
            return f"node {node.name} would do once {listed(there)} {have(len(there))} ended"
    return ""


def _labelled(ledger: Ledger, request: Request, texts: Mapping[str, str], lets: sizes.AllowsFn) -> str:
    others = [name for name, text in texts.items() if category_of(text) is Category.NODE]
    return modes.idle_label(ledger, request, others, lets)
