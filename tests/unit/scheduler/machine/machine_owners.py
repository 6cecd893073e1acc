"""Part of the whole machine: writes by owners of pods and nodes other than pods and GPUs."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpushare.api.disruption import decode_budget
from tests.unit.scheduler.machine.watched import Cluster


def budget(namespace: str, allowed: int, name: str) -> Any:
    """Of all pods of a namespace."""
    return decode_budget(
        f'{{"metadata":{{"name":"{name}","namespace":"{namespace}"}},"spec":{{"selector":{{}}}},'
        f'"status":{{"disruptionsAllowed":{allowed}}}}}'.encode()
    )


class Owning(RuleBasedStateMachine):
    """PodDisruptionBudgets, and the labels by which units of policies choose nodes."""

    cluster: Cluster

    def room_changes(self) -> None:
        raise NotImplementedError

    @rule(budgets=st.lists(st.tuples(st.sampled_from(("default", "x", "z")), st.integers(0, 2)), max_size=4))
    def budgets_are_written(self, budgets: list[tuple[str, int]]) -> None:
        """One or two that cover a namespace, with or without room for another disruption, or none at all."""
        self.cluster.api.budgets = [
            budget(space, allowed, f"b{number}") for number, (space, allowed) in enumerate(budgets)
        ]

    @rule(name=st.sampled_from(("n0", "n1", "n2")), pool=st.sampled_from(("a", "b", "c")))
    def a_node_comes_into_another_pool(self, name: str, pool: str) -> None:
        self.room_changes()
        self.cluster.pools[name] = pool

    @invariant()
    def no_pod_was_evicted_that_a_budget_protects(self) -> None:
        assert not self.cluster.api.forbidden
