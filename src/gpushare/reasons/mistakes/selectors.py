"""Nodes that a pod wants and that there cannot be: labels of ours in its selector, spelled as no node can have them. Pure.

Kubernetes takes any text there, and what comes of it is a pod that waits for a node with just that.
"""

from collections.abc import Collection, Iterator
from typing import Final

from gpushare.api import names
from gpushare.api.node.device import Placement
from gpushare.api.node.modes import MODES
from gpushare.api.objects import NodeRequirement, Pod

#: Labels of nodes whose values are a few words.
_VALUES: Final = {
    names.LABEL_MODE: tuple(MODES),
    names.LABEL_PLACEMENT: tuple(one.value for one in Placement),
}
_OURS: Final = "ack.node.gpu."
_KEYS: Final = (*_VALUES, names.LABEL_MAX_PODS)
#: How alike a word must be to one that there is to be taken for a slip.
_ALIKE: Final = 0.6


def mistyped(pod: Pod, there: Collection[tuple[str, str]] = ()) -> list[str]:
    """What in the pod's ``nodeSelector`` and required node affinity no node has, each with what to write.

    ``there``: labels that nodes do have, and of which nothing is said.
    """
    if pod.spec.node_selector is None and pod.spec.affinity is None:
        return []
    found = (_mistake(where, key, value) for where, key, value in _wanted(pod) if (key, value) not in there)
    return list(dict.fromkeys(text for text in found if text))


def unmet(pod: Pod) -> list[str]:
    """What no node can have of labels of ours in the ``nodeSelector``, and in node affinity, required or preferred.

    A sentence each, such as policies can say, too: they know a word in another case, or with - for _, and else list all that there are.
    """
    selector = pod.spec.node_selector or {}
    strange = [
        *(_no_key(key) for key in selector if _is_strange(key)),
        *(_no_value(key, selector[key]) for key in _VALUES if key in selector),
    ]
    terms = () if pod.spec.affinity is None else (*pod.spec.affinity.terms, *pod.spec.affinity.preferences)
    wanted = [text for term in terms for one in term.match_expressions or () for text in _strange(one)]
    places = (("nodeSelector", strange), ("node affinity", wanted))
    return [
        f"{place} names what no node can have: {', '.join(filter(None, found))}"
        for place, found in places
        if any(found)
    ]


def _strange(wanted: NodeRequirement) -> list[str]:
    """Of what node affinity wants, or does not want."""
    if _is_strange(wanted.key):
        return [_no_key(wanted.key)]
    if wanted.operator not in ("In", "NotIn"):
        return []
    return [text for value in wanted.values or () if (text := _no_value(wanted.key, value))]


def _is_strange(key: str) -> bool:
    return key.startswith(_OURS) and key not in _KEYS


def _no_key(key: str) -> str:
    return f"{key} (write {_all(_KEYS)})"


def _no_value(key: str, value: str) -> str:
    """Empty where a node can have it."""
    known = _VALUES.get(key, (value,))
    if value in known:
        return ""
    alike = next((one for one in known if _plain(one) == _plain(value)), "")
    return f"{key}={value} (write {alike or _all(known)})"


def _plain(value: str) -> str:
    return value.lower().replace("-", "").replace("_", "")


def _wanted(pod: Pod) -> Iterator[tuple[str, str, str]]:
    """Where it says so, label and value."""
    for key, value in (pod.spec.node_selector or {}).items():
        yield "nodeSelector", key, value
    for term in pod.spec.affinity.terms if pod.spec.affinity is not None else ():
        for one in term.match_expressions or ():
            for value in (one.values or ()) if one.operator == "In" else ():
                yield "node affinity", one.key, value


def _mistake(where: str, key: str, value: str) -> str:
    if not key.startswith(_OURS):
        return ""
    if key not in _KEYS:
        return f"its {where} names label {key}, which nobody reads: write {_like_key(key) or _all(_KEYS)}"
    known = _VALUES.get(key, (value,))
    if value in known:
        return ""
    return f"its {where} wants {key}={value}, which no node can have: write {nearest(value, known) or _all(known)}"


def _like_key(key: str) -> str:
    """By what follows the part that all of them begin with."""
    near = nearest(key.removeprefix(_OURS), [one.removeprefix(_OURS) for one in _KEYS])
    return f"{_OURS}{near}" if near else ""


def nearest(word: str, known: Collection[str]) -> str:
    """Which of ``known`` is meant; empty where none is like it."""
    # Hardly a pod has such a slip, and the scheduler starts without it.
    from difflib import get_close_matches

    return next(iter(get_close_matches(word.lower().replace("-", "_"), known, 1, _ALIKE)), "")


def _all(known: Collection[str]) -> str:
    return " or ".join((", ".join(list(known)[:-1]), list(known)[-1]))
