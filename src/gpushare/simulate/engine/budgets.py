"""PodDisruptionBudgets as their controller would have them at each moment of a simulation in which every bound pod is ready."""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec

from gpushare.api.disruption import DisruptionBudget, decode_budget
from gpushare.api.json_objects import Json, key_of, labels_of, name_of, namespace_of, spec_of, status_of
from gpushare.simulate.errors import SimulateError


class _Counted:
    """A budget and the keys of the pods that it covers: all of them, and those that are bound and not terminating."""

    __slots__ = ("began", "budget", "covered", "healthy", "spec", "status")

    def __init__(self, item: Json) -> None:
        self.budget = _read(item)
        self.spec, self.status = spec_of(item), status_of(item)
        self.covered: set[str] = set()
        self.healthy: set[str] = set()
        self.began = 0

    def allowed(self) -> int:
        """How many of them may be evicted now."""
        healthy = len(self.healthy)
        if "disruptionsAllowed" in self.status:
            return max(int(self.status["disruptionsAllowed"]) + healthy - self.began, 0)
        return max(healthy - _desired(self.spec, len(self.covered)), 0)


class Budgets:
    """``budgets`` over ``pods``; ``upsert`` and ``remove`` must be called for every later change.

    A budget with a status allows what the status says, less one for each of its pods that has lost its node since. A budget
    without (from a manifest) allows what its spec results in.
    """

    def __init__(self, budgets: Iterable[Json], pods: Iterable[Json]) -> None:
        self._in: dict[str, list[_Counted]] = {}
        for item in budgets:
            self._in.setdefault(namespace_of(item), []).append(_Counted(item))
        for pod in pods:
            self.upsert(pod)
        for counted in self._all():
            counted.began = len(counted.healthy)

    def _all(self) -> Iterator[_Counted]:
        return chain.from_iterable(self._in.values())

    def upsert(self, pod: Json) -> None:
        """A pod was added or changed."""
        for counted in self._in.get(namespace_of(pod), ()):
            key = key_of(pod)
            counted.covered.discard(key)
            counted.healthy.discard(key)
            if counted.budget.covers(namespace_of(pod), dict(labels_of(pod))):
                counted.covered.add(key)
                if spec_of(pod).get("nodeName") and not pod["metadata"].get("deletionTimestamp"):
                    counted.healthy.add(key)

    def remove(self, pod: Json) -> None:
        """A pod was deleted."""
        for counted in self._in.get(namespace_of(pod), ()):
            counted.covered.discard(key_of(pod))
            counted.healthy.discard(key_of(pod))

    def now(self) -> list[DisruptionBudget]:
        """All budgets with their current number of allowed disruptions."""
        return [
            msgspec.structs.replace(
                counted.budget,
                status=msgspec.structs.replace(counted.budget.status, disruptions_allowed=counted.allowed()),
            )
            for counted in self._all()
        ]


def _read(item: Json) -> DisruptionBudget:
    try:
        return budget_of(item)
    except ValueError as error:
        raise SimulateError(
            f"PodDisruptionBudget {namespace_of(item)}/{name_of(item)}",
            f"cannot be read ({error}); see `kubectl explain PodDisruptionBudget`",
        ) from None


def budget_of(item: Json) -> DisruptionBudget:
    """The decoded budget, with all numbers validated; raises ``ValueError``."""
    budget = decode_budget(msgspec.json.encode(item))
    _desired(spec_of(item), 1)
    return budget


def _desired(spec: Mapping[str, Any], expected: int) -> int:
    """How many of ``expected`` pods must stay; fractions are rounded up as by the controller."""
    if spec.get("maxUnavailable") is not None:
        return max(expected - _number(spec["maxUnavailable"], expected), 0)
    if spec.get("minAvailable") is not None:
        return _number(spec["minAvailable"], expected)
    return expected  # a budget with neither allows nothing


def _number(value: Any, of: int) -> int:
    if isinstance(value, str) and value.endswith("%"):
        return math.ceil(int(value.removesuffix("%")) * of / 100)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is neither a number nor a percentage")
    return int(value)
