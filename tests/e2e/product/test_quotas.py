"""Elastic quotas on the real cluster: borrowed quota goes back to the other team up to its min, and the max holds."""

from typing import Any

from gpushare.api import names
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.product.product import Product, gpu_pod

TREE = "elasticquotatree"
TEAMS = ("team-a", "team-b")
#: One GPU of 15 units.
NODE = "cgpu-t4"


def status(product: Product) -> dict[str, Any]:
    found = product.json("-n", names.QUOTA_NAMESPACE, "get", names.QUOTA_PLURAL, TREE)
    return dict(found.get("status") or {})


def two_teams() -> dict[str, Any]:
    amounts = {names.GPU_MEM: 15}
    least = {"team-a": 5, "team-b": 10}
    children = [
        {"name": team, "namespaces": [team], "min": {names.GPU_MEM: least[team]}, "max": amounts}
        for team in TEAMS
    ]
    return {
        "apiVersion": names.QUOTA_GROUP,
        "kind": names.QUOTA_KIND,
        "metadata": {"name": TREE, "namespace": names.QUOTA_NAMESPACE},
        "spec": {"root": {"name": "root", "min": amounts, "max": amounts, "children": children}},
    }


def team_pod(team: str, name: str, units: int) -> dict[str, Any]:
    pod = gpu_pod(name, units, node=NODE)
    pod["metadata"]["namespace"] = team
    return pod


def running(product: Product, team: str) -> list[str]:
    """The team's running pods that are not terminating."""
    return [
        pod["metadata"]["name"]
        for pod in product.pods(namespace=team)
        if pod["status"]["phase"] == "Running" and not pod["metadata"].get("deletionTimestamp")
    ]


def has_accounts(product: Product, team: str) -> bool:
    return product.run("kubectl", "get", "serviceaccount", "default", "-n", team).code == 0


def test_a_min_is_reclaimed_on_a_full_node(product: Product) -> None:
    """By kube-scheduler's sums nothing is free there, and no pod has a lower priority: with the default
    chart it calls us.
    """
    for team in TEAMS:
        product.kubectl("create", "namespace", team)
    try:
        product.apply(two_teams())
        wait_for("the tree is in force", lambda: status(product).get("state") == "InForce", timeout=60)
        for team in TEAMS:
            wait_for("the namespace has its account", lambda team=team: has_accounts(product, team))  # type: ignore[misc]
        product.apply(*(team_pod("team-a", f"a-{number}", 5) for number in range(3)))
        wait_for("the first team has it all", lambda: len(running(product, "team-a")) == 3, timeout=60)
        product.apply(team_pod("team-b", "b-0", 10))
        wait_for("the second team has its min", lambda: running(product, "team-b") == ["b-0"], timeout=60)
        assert len(running(product, "team-a")) == 1, "both are at their min"
        evicted_pods: list[str] = []

        def evicted() -> bool:
            notes = [note for number in range(3) for note in product.events(f"a-{number}", "team-a")]
            evicted_pods[:] = [note for note in notes if "evicted for" in note]
            return len(evicted_pods) >= 2

        wait_for("the victim's event names the pod", evicted, timeout=30)
        assert len(evicted_pods) == 2
        why = "elastic quota root/team-b reclaims, within its min, what root/team-a borrowed"
        assert all("pod team-b/b-0" in note and why in note for note in evicted_pods)
        # No pod is evicted for more than a min, and no kubelet was asked for more than it has.
        product.apply(team_pod("team-b", "b-1", 5))
        full = f"elastic quota root: 15 of 15 {names.GPU_MEM} used (max), 5 requested"
        wait_for(
            "the next waits", lambda: any(full in one for one in product.events("b-1", "team-b")), timeout=60
        )
        for team in TEAMS:
            # Victims fail, too, and are deleted a moment after their capacity is allocated.
            stay = [
                pod for pod in product.pods(namespace=team) if not pod["metadata"].get("deletionTimestamp")
            ]
            assert not [pod for pod in stay if pod["status"]["phase"] == "Failed"]
        assert running(product, "team-b") == ["b-0"]
    finally:
        product.kubectl("-n", names.QUOTA_NAMESPACE, "delete", names.QUOTA_PLURAL, TREE, "--ignore-not-found")
        for team in TEAMS:
            product.kubectl("-n", team, "delete", "pods", "--all", "--grace-period=1", "--timeout=60s")
            product.kubectl("delete", "namespace", team, "--timeout=60s")
