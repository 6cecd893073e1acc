"""Which pods budgets allow to be deleted, as kube-scheduler counts, or evicted by the eviction API."""

import msgspec

from gpushare.api.disruption import DisruptionBudget, decode_budget, protected, violating
from gpushare.api.objects import Pod, decode_pod


def pod(name: str, **labels: str) -> Pod:
    return decode_pod({"metadata": {"name": name, "namespace": "default", "uid": name, "labels": labels}})


def budget(name: str, allowed: int, namespace: str = "default", **labels: str) -> DisruptionBudget:
    written = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": labels}},
        "status": {"disruptionsAllowed": allowed},
    }
    return decode_budget(msgspec.json.encode(written))


def test_a_budget_allows_its_number_of_disruptions_in_the_order_of_eviction() -> None:
    pods = [pod(name, app="db") for name in ("a", "b", "c")]
    budgets = [budget("db", 2, app="db"), budget("other", 0, app="web"), budget("far", 0, "else", app="db")]
    assert violating(pods, budgets) == protected(pods, budgets) == {"c"}
    assert violating(pods[::-1], budgets) == {"a"}


def test_a_pod_covered_by_two_budgets_can_never_be_evicted() -> None:
    """The eviction API answers 500; kube-scheduler, which deletes, counts each budget separately."""
    both, one = pod("both", app="db", tier="gold"), pod("one", app="db")
    budgets = [budget("db", 5, app="db"), budget("gold", 5, tier="gold")]
    assert protected([both, one], budgets) == {"both"}
    assert violating([both, one], budgets) == set()
