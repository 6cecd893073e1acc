"""Guarantees of a ResourcePolicy, computed at every Binding from the pods in the API server."""

from collections import Counter
from typing import Any

import msgspec

from gpushare.api import names
from gpushare.api.crd.resource_policy import ResourcePolicy, decode_policy
from gpushare.api.objects import decode_pod
from gpushare.api.request.amounts import amounts_of
from gpushare.scheduler.plugins.resource_policy.model.unit_usage import PolicyBook
from tests.unit.scheduler.machine.watched import Cluster
from tests.unit.scheduler.resource_policy.policy_samples import written

#: The namespace whose pods the policies govern; their units choose nodes by pool, ``a`` and ``b``.
SPACE = "default"
POLICIES: tuple[tuple[dict[str, Any], ...], ...] = (
    ({"max": 2}, {"max": 3}),
    ({"max": 1}, {}),
    ({"maxResources": {names.GPU_MEM: 8}}, {"max": 4}),
    ({"max": 4},),
)


def some_policy(number: int, generation: int) -> ResourcePolicy:
    made = decode_policy(written(*POLICIES[number], selector={}))
    return msgspec.structs.replace(made, generation=generation)


class PolicyTruth:
    """Checks, independently of the scheduler's own books, what a cluster's pods hold of each unit."""

    bound = 0
    """How many Bindings were held against a unit, of all clusters."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def _book(self) -> PolicyBook | None:
        return next(iter(self._cluster.world.policies.census.books()), None)

    def _in_units(self, book: PolicyBook) -> tuple[Counter[int], Counter[tuple[int, str]]]:
        """By unit the pods that count, and by unit and resource their requests, in thousandths."""
        pods: Counter[int] = Counter()
        amounts: Counter[tuple[int, str]] = Counter()
        for name, pod in self._cluster.running().items():
            unit = self._unit_of(book, name, pod)
            if unit is None or pod["metadata"].get("deletionTimestamp"):
                continue
            pods[unit] += 1
            for resource, amount in amounts_of(decode_pod(pod)).items():
                amounts[unit, resource] += amount
        return pods, amounts

    def _unit_of(self, book: PolicyBook, name: str, pod: dict[str, Any]) -> int | None:
        if self._cluster.api.key(name).partition("/")[0] != SPACE:
            return None
        pool = self._cluster.known_pools[pod["spec"]["nodeName"]]
        found = [
            number for number, unit in enumerate(book.policy.units) if unit.node_selector == {"pool": pool}
        ]
        return found[0] if found else None

    def check_binding(self, name: str) -> None:
        """A Binding was written: the pod is in a unit, which is not above its caps."""
        book = self._book()
        if book is None or self._cluster.api.key(name).partition("/")[0] != SPACE:
            return
        PolicyTruth.bound += 1
        unit = self._unit_of(book, name, self._cluster.running()[name])
        assert unit is not None, f"{name} is on a node of no unit"
        pods, amounts = self._in_units(book)
        caps = book.policy.units[unit]
        if caps.most_pods is not None:
            assert pods[unit] <= caps.most_pods, f"{name}: unit {unit + 1} holds {pods[unit]} pods"
        for resource, most in (caps.most or {}).items():
            assert amounts[unit, resource] <= most, f"{name}: unit {unit + 1} is above its {resource}"

    def books_agree(self) -> None:
        """The scheduler's figures match the definition, and places are reserved only for pods that may still be bound."""
        book = self._book()
        if book is None:
            return
        bound: Counter[int] = Counter()
        for name, pod in self._cluster.running().items():
            unit = self._unit_of(book, name, pod)
            if unit is not None:
                bound[unit] += 1
        assert book.pods_in() == [bound[number] for number in range(len(book.policy.units))]
        promises = self._cluster.world.policies.promises
        places = {place.key for place in self._cluster.leader.mover._places}
        assert {uid for uid in book.booked.keys() - places if promises[uid].book is not book} == set()
