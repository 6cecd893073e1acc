"""PodDisruptionBudgets as their controller would have them at each moment of a simulation, in which each pod with a node is ready."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gpushare.model.disruption import DisruptionBudget, decode_budget
from gpushare.model.json_objects import Json, name_of, namespace_of, spec_of, status_of
from gpushare.simulate.errors import SimulateError


class Budgets:
    """``budgets`` over ``pods`` (by ``NAMESPACE/NAME``), which may change.

    One with a status allows what that says, and one less for each of its pods that has lost its node since; one without (of a
    manifest) what its spec comes to.
    """

    def __init__(self, budgets: Iterable[Json], pods: Mapping[str, Json]) -> None:
        self._pods = pods
        self._budgets = [(_read(one), spec_of(one), status_of(one)) for one in budgets]
        self._began = [self._counted(one)[0] for one, _, _ in self._budgets]

    def now(self) -> list[DisruptionBudget]:
        """Each with what it allows now."""
        found = []
        for (budget, spec, status), began in zip(self._budgets, self._began, strict=True):
            healthy, expected = self._counted(budget)
            if "disruptionsAllowed" in status:
                allowed = int(status["disruptionsAllowed"]) + healthy - began
            else:
                allowed = healthy - _desired(spec, expected)
            found.append(
                msgspec.structs.replace(
                    budget,
                    status=msgspec.structs.replace(budget.status, disruptions_allowed=max(allowed, 0)),
                )
            )
        return found

    def _counted(self, budget: DisruptionBudget) -> tuple[int, int]:
        """How many of its pods have a node and stay, and how many there are."""
        covered = [
            pod
            for pod in self._pods.values()
            if budget.covers(namespace_of(pod), pod["metadata"].get("labels") or {})
        ]
        healthy = [
            pod
            for pod in covered
            if spec_of(pod).get("nodeName") and not pod["metadata"].get("deletionTimestamp")
        ]
        return len(healthy), len(covered)


def _read(item: Json) -> DisruptionBudget:
    subject = f"PodDisruptionBudget {namespace_of(item)}/{name_of(item)}"
    try:
        budget = decode_budget(msgspec.json.encode(item))
        _desired(spec_of(item), 1)
    except (msgspec.MsgspecError, ValueError) as error:
        raise SimulateError(
            subject, f"cannot be read ({error}); see kubectl explain PodDisruptionBudget"
        ) from None
    return budget


def _desired(spec: Mapping[str, Any], expected: int) -> int:
    """How many pods have to stay, of ``expected``; parts are rounded up as the controller does."""
    if spec.get("maxUnavailable") is not None:
        return max(expected - _number(spec["maxUnavailable"], expected), 0)
    if spec.get("minAvailable") is not None:
        return _number(spec["minAvailable"], expected)
    return expected  # one that says neither allows nothing


def _number(value: Any, of: int) -> int:
    if isinstance(value, str) and value.endswith("%"):
        return math.ceil(int(value.removesuffix("%")) * of / 100)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is neither a number nor a percentage")
    return int(value)
