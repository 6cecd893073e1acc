"""Misspelt labels of ours in a pod's node selection, which no node can have. No I/O.

Kubernetes accepts any text there, and the pod stays pending.
"""

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final

from gpushare.api import names
from gpushare.api.node.device import Placement
from gpushare.api.node.modes import MODES
from gpushare.api.objects import NodeRequirement, Pod

#: Labels of nodes with a fixed set of values.
_VALUES: Final = {
    names.LABEL_MODE: tuple(MODES),
    names.LABEL_PLACEMENT: tuple(placement.value for placement in Placement),
}
_PREFIX: Final = "ack.node.gpu."
_KEYS: Final = (*_VALUES, names.LABEL_MAX_PODS)
#: Minimum similarity to a known word to count as a misspelling of it.
_MIN_SIMILARITY: Final = 0.6
#: Most mistakes that are reported for a pod, most values of our labels that are examined, and most characters of one that are shown.
#: A node affinity may have thousands of values, and the scheduler reads pending pods at each of their events.
_MOST_MISTAKES: Final = 3
_MOST_VALUES: Final = 50
_MOST_CHARACTERS: Final = 63


def mistyped(pod: Pod, existing: Collection[tuple[str, str]] = ()) -> list[str]:
    """Impossible labels in the pod's ``nodeSelector`` and required node affinity, each with a correction.

    ``existing``: labels that nodes have, which are not reported. Of many mistakes only the first ones are returned.
    """
    if pod.spec.node_selector is None and pod.spec.affinity is None:
        return []
    ours = (
        selected
        for selected in _selected(pod)
        if selected[1].startswith(_PREFIX) and selected[1:] not in existing
    )
    mistakes = dict.fromkeys(text for selected in islice(ours, _MOST_VALUES) if (text := _mistake(*selected)))
    return list(mistakes)[:_MOST_MISTAKES]


def unmet(pod: Pod) -> list[str]:
    """Impossible labels of ours in the ``nodeSelector`` and in node affinity, required or preferred, in a sentence for each of the two.

    Limited to what the chart's admission policies can express: they correct the case of letters and - for _, and otherwise list all values.
    """
    selector = pod.spec.node_selector or {}
    in_selector = [
        *(_no_key(key) for key in selector if _is_strange(key)),
        *(_no_value(key, selector[key]) for key in _VALUES if key in selector),
    ]
    terms = () if pod.spec.affinity is None else (*pod.spec.affinity.terms, *pod.spec.affinity.preferences)
    in_affinity = [
        text
        for term in terms
        for requirement in term.match_expressions or ()
        for text in _corrections(requirement)
    ]
    places = (("nodeSelector", in_selector), ("node affinity", in_affinity))
    return [
        f"{place} names labels that no node can have: {', '.join(filter(None, corrections))}"
        for place, corrections in places
        if any(corrections)
    ]


def _corrections(requirement: NodeRequirement) -> list[str]:
    """Corrections for a requirement of node affinity."""
    if _is_strange(requirement.key):
        return [_no_key(requirement.key)]
    if requirement.operator not in ("In", "NotIn"):
        return []
    return [text for value in requirement.values or () if (text := _no_value(requirement.key, value))]


def _is_strange(key: str) -> bool:
    return key.startswith(_PREFIX) and key not in _KEYS


def _no_key(key: str) -> str:
    return f"{key} (write {_all(_KEYS)})"


def _no_value(key: str, value: str) -> str:
    """A correction; empty if a node can have the value."""
    known = _VALUES.get(key, (value,))
    if value in known:
        return ""
    match = next((word for word in known if _normalized(word) == _normalized(value)), "")
    return f"{key}={value} (write {match or _all(known)})"


def _normalized(value: str) -> str:
    return value.lower().replace("-", "").replace("_", "")


def _selected(pod: Pod) -> Iterator[tuple[str, str, str]]:
    """Where each node label is selected, its key and its value."""
    for key, value in (pod.spec.node_selector or {}).items():
        yield "nodeSelector", key, value
    for term in pod.spec.affinity.terms if pod.spec.affinity is not None else ():
        for requirement in term.match_expressions or ():
            for value in (requirement.values or ()) if requirement.operator == "In" else ():
                yield "node affinity", requirement.key, value


def _mistake(where: str, key: str, value: str) -> str:
    if key not in _KEYS:
        return f"its {where} names label {_shown(key)}, which is unknown: write {_similar_key(key) or _all(_KEYS)}"
    known = _VALUES.get(key, (value,))
    if value in known:
        return ""
    return f"its {where} requires {key}={_shown(value)}, which no node can have: write {nearest(value, known) or _all(known)}"


def _shown(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


def _similar_key(key: str) -> str:
    """The most similar known key, compared without the common prefix; else empty."""
    similar = nearest(key.removeprefix(_PREFIX), [known.removeprefix(_PREFIX) for known in _KEYS])
    return f"{_PREFIX}{similar}" if similar else ""


def nearest(word: str, known: Collection[str]) -> str:
    """The most similar word of ``known``; empty if none is similar enough."""
    if len(word) > _MOST_CHARACTERS:
        return ""
    # Imported here because it is rarely needed and slows the scheduler's start.
    from difflib import get_close_matches

    return next(iter(get_close_matches(word.lower().replace("-", "_"), known, 1, _MIN_SIMILARITY)), "")


def _all(known: Collection[str]) -> str:
    return " or ".join((", ".join(list(known)[:-1]), list(known)[-1]))
