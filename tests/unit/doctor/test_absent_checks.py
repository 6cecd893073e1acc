"""No check reports absent objects as ok."""

from typing import Any

import pytest

from gpushare.api import names
from gpushare.doctor.cluster.facts import ClusterFacts
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import Unread, examine, exit_code
from tests.unit.doctor.healthy_cluster import node_of, sound

KIND = Unread("404", absent=True)
NO_AGENTS: dict[str, Any] = {"daemon_sets": [], "validating_policies": [], "mutating_policies": [], "policy_bindings": []}  # fmt: skip
NO_SCHEDULER: dict[str, Any] = {
    "deployments": [], "config_maps": [], "leases": [], "definitions": [], "policies": KIND, "quota_trees": KIND, "answers": {},
}  # fmt: skip
BARE = node_of(labels={}, annotations={}, allocatable={})
# : What can be checked in a cluster without an installation.
LOOKED_AT = {"permissions", "certificate", "node-labels", "pod-records", "pod-shares"}


def states(facts: ClusterFacts) -> dict[str, set[str]]:
    found = examine(facts, CHECKS)
    return {one.name: {of.state for of in found if of.check == one.name} for one in CHECKS}


def test_before_any_install_only_what_was_checked_is_ok() -> None:
    facts = sound(**NO_AGENTS, **NO_SCHEDULER, nodes=[BARE], pods=[], part_pods=[])
    found = states(facts)
    assert {name for name, states_of_check in found.items() if states_of_check == {"ok"}} == LOOKED_AT
    assert found["installation"] == {"fault"}
    assert exit_code(examine(facts, CHECKS)) == 2


@pytest.mark.parametrize(
    ("changes", "unseen"),
    [
        (NO_AGENTS, {"versions", "one-scheduler", "node-agents", "rollout", "taints", "process-rights", "admission"}),
        (NO_SCHEDULER, {"versions", "one-scheduler", "rollout", "scheduler", "scheduler-config", "process-rights", "definitions", "dashboard", "policy-units", "policy-pods", "elastic-quotas", "waiting-pods", "gangs"}),
        ({"nodes": [BARE], "pods": []}, {"clocks", "node-agents", "taints", "node-devices", "node-capacity", "node-health", "other-plugins", "claims"}),
    ],
    ids=["no agents", "no scheduler", "no label"],
)  # fmt: skip
def test_checks_that_depend_on_absent_objects_are_unknown(changes: dict[str, Any], unseen: set[str]) -> None:
    found = states(sound(**changes))
    assert {name for name, states_of_check in found.items() if states_of_check == {"unknown"}} == unseen


def test_absent_objects_are_named() -> None:
    messages = {one.check: one.message for one in examine(sound(**NO_AGENTS, namespace="gpu"), CHECKS)}
    assert messages["admission"] == (
        "not installed in namespace gpu, and so not checked: DaemonSet gpushare-device-plugin-ds"
    )
    messages = {one.check: one.message for one in examine(sound(nodes=[BARE], pods=[]), CHECKS)}
    assert messages["node-agents"] == f"no node has the label {names.LABEL_MODE}; nothing to check"


def test_a_playground_needs_no_charts() -> None:
    found = states(sound(**NO_AGENTS, **NO_SCHEDULER, playground={}))
    assert {name for name, states_of_check in found.items() if "unknown" in states_of_check} == set()
