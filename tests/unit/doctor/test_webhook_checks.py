"""A webhook that cannot be called is reported where admission is checked, with the consequence for pods."""

from pathlib import Path
from typing import Any

import pytest

from gpushare.doctor.cluster.checks.services import _EFFECTS, meanwhile
from gpushare.doctor.cluster.facts import ClusterFacts, Json
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import Finding, Unread, examine
from tests.unit.doctor.healthy_cluster import agent_pod, endpoints, node_of, rendered, scheduler_pod, sound
from tests.unit.doctor.test_cluster_checks import bundle, deployment_with

NAME = "gpushare-admission"
PLACE = f"kube-system/{NAME}"
REFUSED = "pods that request GPUs are rejected"
CHART = (
    Path(__file__).parents[3]
    / "charts"
    / "ack-ai-installer"
    / "templates"
    / "webhook"
    / "configurations.yaml"
)


def hooks(*webhooks: str, policy: str | None = None, namespace: str = "kube-system") -> Json:
    """A webhook configuration (``NAME`` or ``NAME=failurePolicy``) with calls to the Service; its CA is valid."""
    client = bundle(60)["webhooks"][0]["clientConfig"]
    service = {"namespace": namespace, "name": NAME}
    made = []
    for one in webhooks:
        name, _, own = one.partition("=")
        hook = {"name": f"{name}.gpushare.dev", "clientConfig": {**client, "service": service}}
        if own or policy:
            hook["failurePolicy"] = own or policy
        made.append(hook)
    return {"webhooks": made}


# : As in the chart for Kubernetes 1.28.
ALL = (
    hooks("memory-amounts=Fail", "scheduler-name=Fail"),
    hooks("requests=Fail", "mistakes=Ignore", "templates=Ignore", "records=Fail", "node-agent=Fail"),
)


def deployment(ready: int | None, wanted: int = 2) -> list[Json]:
    (one,) = [one for one in rendered("installer-1.28.yaml", "Deployment") if one["metadata"]["name"] == NAME]
    one["spec"]["replicas"] = wanted
    one["status"] = {} if ready is None else {"readyReplicas": ready}
    return [one]


def kinds(kind: str) -> list[Json]:
    """Objects of both charts for Kubernetes 1.28."""
    return rendered("installer-1.28.yaml", kind) + rendered("scheduler-1.36.yaml", kind)


def with_webhook(ready: int | None = 2, *behind: bool | None, **changes: Any) -> ClusterFacts:
    """A healthy cluster of Kubernetes 1.28, whose webhook has this many ready pods and ready endpoints."""
    slices = [endpoints("ack-co-scheduler", True), endpoints(NAME, *behind)]
    facts = {
        "version": {"gitVersion": "v1.28.9"},
        "nodes": [node_of(kubelet="v1.28.9")],
        "deployments": deployment_with(2, image="k:v1.28.9"),
        "webhooks": list(ALL),
        "roles": kinds("ClusterRole"),
        "bindings": kinds("ClusterRoleBinding"),
        "own_roles": kinds("Role"),
        "own_bindings": kinds("RoleBinding"),
        "network_policies": kinds("NetworkPolicy"),
        "webhook_deployments": deployment(ready),
        "endpoint_slices": slices,
        "validating_policies": Unread("404", absent=True),
        "mutating_policies": Unread("404", absent=True),
    }
    return sound(**{**facts, **changes})


def bad(facts: ClusterFacts) -> list[Finding]:
    return [one for one in examine(facts, CHECKS) if one.state != "ok"]


@pytest.mark.parametrize("behind", [(True, True), (False, True), (None,)])
def test_a_webhook_with_endpoints_behind_its_service_is_ok(behind: tuple[bool | None, ...]) -> None:
    assert bad(with_webhook(2, *behind)) == []


@pytest.mark.parametrize("ready", [0, None])
def test_a_webhook_whose_pods_are_down_is_one_fault_with_the_consequence_for_pods(ready: int | None) -> None:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff"}}}
    pod = {
        "metadata": {"name": "a", "namespace": "kube-system", "labels": {"app.kubernetes.io/name": NAME}},
        "status": {"containerStatuses": [waiting]},
    }
    (found,) = bad(with_webhook(ready, False, part_pods=[agent_pod(), scheduler_pod(), pod]))
    assert (found.check, found.state, found.subject) == ("admission", "fault", f"deployment {PLACE}")
    assert found.message == (
        "0 of 2 pods of the webhook are ready: ImagePullBackOff; until one is: "
        f"{REFUSED}, writes of node agents are rejected"
    )
    assert found.suggestion.startswith("`kubectl -n kube-system describe pods -l ")


def test_a_webhook_with_fewer_pods_than_wanted_is_a_warning() -> None:
    (found,) = bad(with_webhook(1, True))
    assert (found.check, found.state, found.subject) == ("admission", "warning", f"deployment {PLACE}")
    assert REFUSED not in found.message


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoint_slices": [endpoints("ack-co-scheduler", True), endpoints(NAME, False, False)]},
        {"endpoint_slices": [endpoints("ack-co-scheduler", True)]},
        {
            "webhook_deployments": deployment(0, wanted=0),
            "endpoint_slices": [endpoints("ack-co-scheduler", True)],
        },
        {
            "endpoint_slices": [
                endpoints("ack-co-scheduler", True),
                {**endpoints(NAME, True), "metadata": {**endpoints(NAME)["metadata"], "namespace": "other"}},
            ]
        },
    ],
    ids=["not ready", "none", "scaled to none", "of another namespace"],
)
def test_a_service_without_endpoints_is_a_fault(changes: dict[str, Any]) -> None:
    (found,) = bad(with_webhook(2, **changes))
    assert (found.check, found.state, found.subject) == ("admission", "fault", f"service {PLACE}")
    assert found.message.endswith(f"until then: {REFUSED}, writes of node agents are rejected")


def test_leftovers_of_a_removal_are_a_fault_even_without_the_charts() -> None:
    gone: dict[str, Any] = {
        "daemon_sets": [],
        "deployments": [],
        "config_maps": [],
        "leases": [],
        "definitions": [],
    }
    found = [
        one
        for one in bad(with_webhook(webhook_deployments=[], endpoint_slices=[], **gone))
        if one.check == "admission"
    ]
    assert [(one.state, one.subject) for one in found] == [("fault", f"deployment {PLACE}")]
    assert REFUSED in found[0].message
    assert "kubectl delete mutatingwebhookconfiguration" in found[0].suggestion


def test_a_webhook_that_only_sets_the_scheduler_is_reported_separately_from_policies() -> None:
    """Kubernetes 1.30 to 1.35: validation is by policies."""
    version = "v1.32.1"
    facts = sound(
        version={"gitVersion": version},
        nodes=[node_of(kubelet=version)],
        deployments=deployment_with(2, image=f"k:{version}"),
        webhooks=[hooks("scheduler-name", "memory-amounts")],
        webhook_deployments=deployment(0),
        roles=kinds("ClusterRole"),
        bindings=kinds("ClusterRoleBinding"),
        own_roles=kinds("Role"),
        own_bindings=kinds("RoleBinding"),
        mutating_policies=Unread("404", absent=True),
    )
    (found,) = bad(facts)
    assert found.message.endswith(
        "until one is: pods that request GPUs and name no scheduler are rejected, "
        "pods that request gpushare.dev/gpu-memory are rejected"
    )


@pytest.mark.parametrize(
    ("webhooks", "effect"),
    [
        (("scheduler-name=Ignore",), "pods that name no scheduler are admitted unchanged, and use the default scheduler"),
        (("requests=Ignore", "scheduler-name"), "invalid requests are admitted, pods that request GPUs and name no scheduler are rejected"),
        (("requests", "scheduler-name=Ignore"), REFUSED),
        (("records=Ignore",), "anyone may change allocation records"),
        (("records",), "its requests are rejected"),
        (("mistakes=Ignore", "templates=Ignore"), "its requests are admitted unchanged"),
    ],
)  # fmt: skip
def test_the_consequence_for_pods_depends_on_the_failure_policy(
    webhooks: tuple[str, ...], effect: str
) -> None:
    assert meanwhile(hooks(*webhooks)["webhooks"]) == effect


def test_a_webhook_that_may_not_renew_its_certificate_is_a_fault() -> None:
    roles = kinds("ClusterRole")
    (own,) = [one for one in roles if one["metadata"]["name"] == NAME]
    own["rules"][0]["verbs"].remove("patch")
    (found,) = bad(with_webhook(2, True, roles=roles))
    assert (found.check, found.state, found.subject) == ("process-rights", "fault", f"clusterrole {NAME}")
    assert "patch validatingwebhookconfigurations" in found.message


def test_webhooks_called_by_url_are_not_searched() -> None:
    outside = {"webhooks": [{"name": f"{name}.gpushare.dev", "clientConfig": {**bundle(60)["webhooks"][0]["clientConfig"], "url": "https://x"}} for name in ("requests", "scheduler-name")]}  # fmt: skip
    assert bad(with_webhook(webhooks=[outside], webhook_deployments=[])) == []


def test_the_consequences_refer_to_webhooks_of_the_chart() -> None:
    text = CHART.read_text()
    assert [kind for kind in _EFFECTS if f"- name: {kind}.gpushare.dev\n" not in text] == []
