"""Requests that become ResourceClaims behind a real API server: by the webhook, together with the chart's
policies.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.api import names
from tests.admission_accept import Case
from tests.admission_claims import CLAIMED, LEFT_ALONE, REJECTED, Claimed, pod
from tests.e2e.asking import Answer, Api
from tests.e2e.cluster.waiting import wait_for
from tests.e2e.plane import wait_for_accounts
from tests.e2e.webhook import NAME, reviewing

DRA = "/apis/resource.k8s.io/v1/namespaces"
BOUNDED = "bounded"


@pytest.fixture(scope="module")
def api(binaries: Path, states: Path, tmp_path_factory: pytest.TempPathFactory, k8s: str) -> Iterator[Api]:
    if tuple(map(int, k8s.split(".")[:2])) < (1, 36):
        pytest.skip("devices are shared by capacity from Kubernetes 1.36 on")
    chart = ["--set=admission.toClaims=true", "--set=admission.accept={hami}"]
    chart.append("--api-versions=resource.k8s.io/v1/DeviceClass")
    folder = tmp_path_factory.mktemp("webhook")
    arguments = ["--accept", "hami", "--to-claims"]
    with reviewing(binaries, states / "claims", folder, chart, arguments, in_force) as api:
        assert api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": BOUNDED}}).taken
        wait_for_accounts(api, BOUNDED)
        yield api


def in_force(api: Api) -> bool:
    """The webhook, the policy that counts MiB as units, and the one about templates of claims."""
    wrong = template("wrong", {"requests": [{"name": "gpu", "exactly": exactly({"time": "1"})}]})
    return (
        REJECTED[0].says in create(api, REJECTED[0]).message
        and all(create(api, row.case).taken for row in CLAIMED)
        and bool(create_template(api, REJECTED[0]).warnings)
        and "nothing else" in api.create(wrong, dry=True).message
    )


def exactly(capacity: dict[str, str]) -> dict[str, Any]:
    return {"deviceClassName": names.DRA_DRIVER, "capacity": {"requests": capacity}}


def template(name: str, devices: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": devices}},
    }


def create(api: Api, case: Case, *, namespace: str = "default", dry: bool = True) -> Answer:
    made = pod(case)
    made["metadata"] |= {"name": case.id, "namespace": namespace}
    return api.create(made, dry=dry)


def create_template(api: Api, case: Case) -> Answer:
    labels = {**case.labels, "app": "x"}
    return api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "x", "namespace": "default"},
            "spec": {
                "selector": {"matchLabels": {"app": "x"}},
                "template": {
                    "metadata": {"annotations": case.annotations, "labels": labels},
                    "spec": pod(case)["spec"],
                },
            },
        },
        dry=True,
    )


def delete(api: Api, path: str) -> None:
    assert api.ask("DELETE", path, {"gracePeriodSeconds": 0} if "/pods/" in path else None).taken
    wait_for(f"{path} is gone", lambda: api.ask("GET", path).status == 404)


@pytest.mark.parametrize("row", CLAIMED, ids=lambda row: row.id)
def test_requests_become_claims_that_kubernetes_creates_for_the_pod(api: Api, row: Claimed) -> None:
    answer = create(api, row.case, dry=False)
    assert answer.taken, answer.message
    try:
        spec = answer.body["spec"]
        assert spec["schedulerName"] == row.scheduler
        others = [one["name"] for one in row.case.spec.get("resourceClaims", ())]
        templates = {
            one["name"]: one["resourceClaimTemplateName"]
            for one in spec["resourceClaims"]
            if one["name"] not in others
        }
        for name, claim in row.claims.items():
            made = api.get(f"{DRA}/default/resourceclaimtemplates/{templates[name]}")
            assert made["spec"]["spec"]["devices"] == claim.devices()
            assert made["metadata"]["labels"] == {"app.kubernetes.io/managed-by": NAME}
        assert templates.keys() == row.claims.keys()
        containers = spec["containers"] + spec.get("initContainers", [])
        uses = {
            one["name"]: one["resources"]["claims"][-1]["name"]
            for one in containers
            if "claims" in one["resources"]
        }
        assert uses == row.uses
        for one in containers:
            assert one["resources"].get("limits", {}) == row.left.get(one["name"], {})
            assert one["resources"].get("requests", {}) == row.left.get(one["name"], {})
        if not others:
            wait_for("its claims are there", lambda: claims_of(api, row.id) == set(row.claims))
        assert not create_template(api, row.case).warnings
    finally:
        delete(api, f"/api/v1/namespaces/default/pods/{row.id}")


def claims_of(api: Api, name: str) -> set[str]:
    """The entries of a pod that have their ResourceClaim."""
    status = api.get(f"/api/v1/namespaces/default/pods/{name}")["status"]
    return {one["name"] for one in status.get("resourceClaimStatuses", ()) if one.get("resourceClaimName")}


@pytest.mark.parametrize("case", LEFT_ALONE, ids=lambda case: case.id)
def test_other_pods_are_left_unchanged(api: Api, case: Case) -> None:
    answer = create(api, case)
    assert answer.taken, answer.message
    assert "resourceClaims" not in answer.body["spec"]
    assert {
        one["name"]: one["resources"].get("limits", {}) for one in answer.body["spec"]["containers"]
    } == case.limits


@pytest.mark.parametrize("case", REJECTED, ids=lambda case: case.id)
def test_requests_that_claims_cannot_express_are_rejected_by_name(api: Api, case: Case) -> None:
    answer = create(api, case)
    assert not answer.taken
    assert case.says in answer.message
    response = create_template(api, case)
    assert case.says in (response.warnings if response.taken else response.message)


def test_a_dry_run_creates_no_template(api: Api) -> None:
    case = Case("dry", {"c": {names.GPU_MEM: "11"}})
    answer = create(api, case)
    [claim] = answer.body["spec"]["resourceClaims"]
    path = f"{DRA}/default/resourceclaimtemplates/{claim['resourceClaimTemplateName']}"
    assert api.ask("GET", path).status == 404


def test_a_template_of_that_name_with_another_share_is_not_used(api: Api) -> None:
    case = Case("forged", {"c": {names.GPU_MEM: "9"}})
    [claim] = create(api, case).body["spec"]["resourceClaims"]
    name = claim["resourceClaimTemplateName"]
    forged = template(name, {"requests": [{"name": "gpu", "exactly": exactly({"memory": "90Gi"})}]})
    assert api.create(forged).taken
    message = f"ResourceClaimTemplate default/{name} is not the one that gpushare creates under this name: delete it"
    assert message in create(api, case, dry=False).message
    delete(api, f"{DRA}/default/resourceclaimtemplates/{name}")
    assert create(api, case, dry=False).taken
    delete(api, f"/api/v1/namespaces/default/pods/{case.id}")


def test_a_quota_limits_the_templates_of_a_namespace(api: Api) -> None:
    kind = "count/resourceclaimtemplates.resource.k8s.io"
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "templates", "namespace": BOUNDED},
        "spec": {"hard": {kind: "1"}},
    }
    assert api.create(quota).taken
    path = f"/api/v1/namespaces/{BOUNDED}/resourcequotas/templates"
    wait_for("the quota counts", lambda: kind in api.get(path).get("status", {}).get("used", {}))
    first, second = (Case(f"of-{units}", {"c": {names.GPU_MEM: str(units)}}) for units in (3, 4))
    # Admission uses its own watch: a quota of which it does not see the count yet refuses every template.
    wait_for("the first is taken", lambda: create(api, first, namespace=BOUNDED, dry=False).taken)
    message = create(api, second, namespace=BOUNDED, dry=False).message
    assert f"ResourceClaimTemplate {BOUNDED}/gpushare-4096mib-" in message
    assert "exceeded quota: templates" in message
