"""Requests that become ResourceClaims at the webhook, by the table of what they become and of what is rejected."""

from typing import Any

import pytest

from gpushare.admission.accept.translation import PRODUCTS
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.unit_conversion import Counting
from tests.admission_accept import Case, share
from tests.admission_claims import CLAIMED, LEFT_ALONE, REJECTED, Claimed, pod
from tests.rows import every_row
from tests.unit.admission.reviews import Templates, answered, patched, review, reviewer


async def answer(
    sent: dict[str, Any], templates: Templates | None = None, dry: bool = False, **changes: Any
) -> dict[str, Any]:
    body = review("pods", sent).replace(b'"dryRun": false', f'"dryRun": {str(dry).lower()}'.encode())
    claiming = reviewer(
        accepted=tuple(PRODUCTS.values()), claim_templates=templates or Templates(), **changes
    )
    return answered(await claiming.accept(body))


async def warned(case: Case) -> list[str]:
    template = {"spec": {"template": pod(case)}}
    claiming = reviewer(accepted=tuple(PRODUCTS.values()), claim_templates=Templates())
    response = answered(await claiming.accept(review("deployments", template, group="apps")))
    assert response["allowed"]
    return list(response.get("warnings", []))


def containers(made: dict[str, Any]) -> dict[str, Any]:
    spec = made["spec"]
    return {one["name"]: one["resources"] for one in spec["containers"] + spec.get("initContainers", [])}


@every_row(CLAIMED)
async def test_requests_become_claims(row: Claimed) -> None:
    sent, templates = pod(row.case), Templates()
    response = await answer(sent, templates)
    assert response["allowed"], response
    made = patched(sent, response["patch"])
    own = made["spec"]["resourceClaims"][len(sent["spec"].get("resourceClaims", ())) :]
    named = {one["name"]: one["resourceClaimTemplateName"] for one in own}
    assert set(named.values()) == set(templates.made["default"])
    found = {name: templates.made["default"][template]["spec"]["devices"] for name, template in named.items()}
    for devices in found.values():
        devices["requests"][0]["exactly"]["allocationMode"] = "ExactCount"
    assert found == {name: claim.devices() for name, claim in row.claims.items()}
    resources = containers(made)
    assert {
        name: one["claims"][-1]["name"] for name, one in resources.items() if one.get("claims")
    } == row.uses
    for name, before in containers(sent).items():
        kept = before.get("claims", [])
        assert resources[name].get("claims", [])[: len(kept)] == kept
    for name, one in resources.items():
        assert one.get("limits", {}) == one.get("requests", {}) == row.left.get(name, {})
    assert made["spec"]["schedulerName"] == row.scheduler
    assert made["metadata"]["labels"] == row.case.labels
    assert await warned(row.case) == []


@every_row(CLAIMED)
async def test_a_pod_with_claims_is_valid_and_left_as_it_is(row: Claimed) -> None:
    sent = pod(row.case)
    made = patched(sent, (await answer(sent))["patch"])
    assert await answer(made) == {"uid": "u-1", "allowed": True}
    for reviewed in (reviewer().validate, reviewer().mutate, reviewer().count):
        assert answered(await reviewed(review("pods", made))) == {"uid": "u-1", "allowed": True}


@every_row(LEFT_ALONE)
async def test_other_pods_are_left_as_they_are(case: Case) -> None:
    assert await answer(pod(case)) == {"uid": "u-1", "allowed": True}
    assert await warned(case) == []


@every_row(REJECTED)
async def test_what_claims_cannot_express_is_rejected_by_name(case: Case) -> None:
    templates = Templates()
    response = await answer(pod(case), templates)
    assert response["status"] == {"code": 422, "reason": "Invalid", "message": case.says}
    assert not templates.made
    # The rules for every request reject the template itself.
    assert await warned(case) == ([] if case is REJECTED[-1] else [case.says])


async def test_equal_requests_have_one_template() -> None:
    templates = Templates()
    await answer(pod(Case("two", {"a": share(3), "b": share(3)})), templates)
    await answer(pod(Case("in-mib", {"c": {"gpushare.dev/gpu-memory": "3Gi"}})), templates)
    [name] = templates.made["default"]
    assert name.startswith("gpushare-3072mib-")


async def test_a_unit_is_what_the_cluster_counts_in() -> None:
    templates = Templates()
    counting = Counting(MemoryUnit.MIB_128)
    await answer(pod(Case("fine", {"c": share(3, 30)})), templates, counting=counting)
    [spec] = templates.made["default"].values()
    [request] = spec["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"] == {"requests": {"memory": "384Mi", "compute": "30"}}


async def test_a_dry_run_creates_nothing() -> None:
    templates = Templates()
    response = await answer(pod(CLAIMED[0].case), templates, dry=True)
    assert response["patch"]
    assert not templates.made


async def test_a_pod_without_its_template_is_rejected_with_the_reason() -> None:
    response = await answer(pod(CLAIMED[0].case), Templates("the API server is slow; try again"))
    assert response["status"] == {
        "code": 403,
        "reason": "Forbidden",
        "message": "the API server is slow; try again",
    }


@pytest.mark.parametrize(
    "amounts",
    [
        {"limits": {"aliyun.com/gpu-mem": "1.5"}, "requests": {"aliyun.com/gpu-mem": "1.5"}},
        {"requests": {"aliyun.com/gpu-mem": "3"}},
        {"limits": {"aliyun.com/gpu-mem": "3"}, "requests": {"aliyun.com/gpu-mem": "2"}},
    ],
    ids=["fraction", "no-limit", "differs-from-limit"],
)
async def test_what_kubernetes_rejects_itself_stays_for_it_to_reject(amounts: dict[str, Any]) -> None:
    sent = pod(CLAIMED[0].case)
    sent["spec"]["containers"][0]["resources"] = amounts
    response = await answer(sent)
    made = patched(sent, response.get("patch", []))
    assert "aliyun.com/gpu-mem" in made["spec"]["containers"][0]["resources"]["requests"]


async def test_a_pod_with_a_node_is_left_to_the_rules_for_every_pod() -> None:
    sent = pod(CLAIMED[0].case)
    sent["spec"]["nodeName"] = "n1"
    assert await answer(sent) == {"uid": "u-1", "allowed": True}
