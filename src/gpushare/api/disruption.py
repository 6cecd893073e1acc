"""PodDisruptionBudgets (policy/v1): how many more pods may be evicted now."""

from collections.abc import Iterable, Sequence

import msgspec

from gpushare.api.objects import ObjectMeta, Pod


class Requirement(msgspec.Struct, gc=False):
    """One of ``matchExpressions``."""

    key: str
    operator: str
    values: list[str] | None = None

    def takes(self, labels: dict[str, str]) -> bool:
        """Whether it matches ``labels``; an unknown operator matches nothing."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in (self.values or ())
            case "NotIn":
                return value is None or value not in (self.values or ())
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        return False


class Selector(msgspec.Struct, rename="camel", gc=False):
    """A label selector."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[Requirement] | None = None

    def takes(self, labels: dict[str, str]) -> bool:
        """Whether it matches ``labels``; an empty selector matches every pod."""
        return all(labels.get(key) == value for key, value in (self.match_labels or {}).items()) and all(
            requirement.takes(labels) for requirement in self.match_expressions or ()
        )


class _Spec(msgspec.Struct, gc=False):
    selector: Selector | None = None


class _Status(msgspec.Struct, rename="camel", gc=False):
    disruptions_allowed: int = 0


class DisruptionBudget(msgspec.Struct, gc=False):
    """A PodDisruptionBudget."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    def covers(self, namespace: str, labels: dict[str, str]) -> bool:
        """Whether it protects the pod with ``labels`` in ``namespace``."""
        return (
            self.metadata.namespace == namespace
            and self.spec.selector is not None
            and self.spec.selector.takes(labels)
        )


def violating(pods: Iterable[Pod], budgets: Sequence[DisruptionBudget]) -> set[str]:
    """UIDs of the ``pods`` whose eviction now would violate ``budgets``, if all are evicted in this order."""
    return _refused(pods, budgets, single_budget=False)


def protected(pods: Iterable[Pod], budgets: Sequence[DisruptionBudget]) -> set[str]:
    """The same for evictions: the API never evicts a pod that two budgets cover."""
    return _refused(pods, budgets, single_budget=True)


def _refused(pods: Iterable[Pod], budgets: Sequence[DisruptionBudget], *, single_budget: bool) -> set[str]:
    spent: dict[int, int] = {}
    refused: set[str] = set()
    for pod in pods:
        covering = 0
        for index, budget in enumerate(budgets):
            if budget.covers(pod.metadata.namespace, pod.metadata.labels or {}):
                covering += 1
                spent[index] = spent.get(index, 0) + 1
                if spent[index] > budget.status.disruptions_allowed:
                    refused.add(pod.metadata.uid)
        if single_budget and covering > 1:
            refused.add(pod.metadata.uid)
    return refused


_BUDGET = msgspec.json.Decoder(DisruptionBudget)


def decode_budget(raw: bytes) -> DisruptionBudget:
    """A PodDisruptionBudget from JSON; raises ``msgspec.MsgspecError``."""
    return _BUDGET.decode(raw)
