"""Node selectors, node affinity, taints and tolerations."""

from collections.abc import Iterable, Mapping
from typing import Final

from gpushare.api.json_objects import Json, labels_of, name_of, spec_of
from gpushare.api.taints import CORDON_TAINT, read_taints, read_tolerations

UNSCHEDULABLE_TAINT: Final[Json] = {"key": CORDON_TAINT, "effect": "NoSchedule"}


def wants_node(pod: Json, node: Json) -> bool:
    """Whether node selector and required node affinity both match."""
    spec = spec_of(pod)
    selector: Mapping[str, str] = spec.get("nodeSelector") or {}
    if not selector.items() <= labels_of(node).items():
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    # Terms are ORed; an empty term matches nothing.
    return any(term_matches(term, node) for term in required.get("nodeSelectorTerms") or ())


def preference_for(pod: Json, node: Json) -> int:
    """The sum of the weights of matching preferred node affinities."""
    affinity = (spec_of(pod).get("affinity") or {}).get("nodeAffinity") or {}
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    return sum(int(one["weight"]) for one in preferred if term_matches(one.get("preference") or {}, node))


def term_matches(term: Json, node: Json) -> bool:
    """Whether every expression and field of a node selector term matches; an empty term never does."""
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_holds(one, labels_of(node)) for one in expressions) and all(
        _holds(one, {"metadata.name": name_of(node)}) for one in fields
    )


def _holds(expression: Json, labels: Mapping[str, str]) -> bool:
    value = labels.get(str(expression.get("key")))
    values = expression.get("values") or []
    operator = expression.get("operator")
    # No match statement: the single-file kubectl plugin runs on Python 3.9.
    if operator in ("In", "NotIn"):
        return (value in values) is (operator == "In")
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) is (operator == "Exists")
    return operator in ("Gt", "Lt") and _compares(operator, value, values)


def _compares(operator: str, value: str | None, values: list[str]) -> bool:
    try:
        found, bound = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return found > bound if operator == "Gt" else found < bound


def tolerates(pod: Json, taint: Json) -> bool:
    """Whether the pod tolerates ``taint``."""
    (read,) = read_taints([taint])
    return any(one.covers(read) for one in read_tolerations(spec_of(pod).get("tolerations")))


def untolerated(pod: Json, node: Json, effects: Iterable[str]) -> list[Json]:
    """The node's taints with one of ``effects`` that the pod does not tolerate."""
    taints = spec_of(node).get("taints") or ()
    return [taint for taint in taints if taint.get("effect") in effects and not tolerates(pod, taint)]


def admits_unscheduled(pod: Json, node: Json) -> bool:
    """Whether the node is schedulable, or the pod tolerates that it is not."""
    return not spec_of(node).get("unschedulable") or tolerates(pod, UNSCHEDULABLE_TAINT)
