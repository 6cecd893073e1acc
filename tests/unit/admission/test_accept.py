"""Requests of HAMi and KAI at the webhook, by the table of what they become and of what is rejected."""

from typing import Any

import pytest

from gpushare.admission.accept.translation import PRODUCTS
from gpushare.admission.options import ROLE
from gpushare.api import names
from tests.admission_accept import INVALID_AFTERWARDS, LEFT_ALONE, REJECTED, TRANSLATED, Case, pod, share
from tests.rows import every_row
from tests.unit.admission.reviews import answered, patched, review, reviewer

ALL = tuple(PRODUCTS.values())


async def accepted(case: Case, sent: dict[str, Any]) -> dict[str, Any]:
    return answered(await reviewer(accepted=ALL, counting=case.counting).accept(review("pods", sent)))


async def warned(case: Case) -> list[str]:
    template = {"spec": {"template": pod(case)}}
    sent = review("deployments", template, group="apps")
    response = answered(await reviewer(accepted=ALL, counting=case.counting).accept(sent))
    assert response["allowed"]
    assert "patch" not in response
    return list(response.get("warnings", []))


@every_row(TRANSLATED)
async def test_requests_become_ours(case: Case) -> None:
    sent = pod(case)
    response = await accepted(case, sent)
    assert response["allowed"]
    made = patched(sent, response["patch"])
    resources = {one["name"]: one["resources"] for one in made["spec"]["containers"]}
    assert {name: found.get("limits", {}) for name, found in resources.items()} == case.becomes
    assert all(found.get("requests") == found.get("limits") for found in resources.values())
    metadata = made["metadata"]
    assert metadata["labels"].get(names.LABEL_POD_GPU_COUNT) == case.count
    assert metadata["annotations"].pop(names.ANN_REQUESTED)
    assert metadata["annotations"] == case.chooses
    assert made["spec"]["schedulerName"] == names.SCHEDULER_NAME


@every_row(TRANSLATED)
async def test_what_they_become_is_valid_and_left_as_it_is(case: Case) -> None:
    sent = pod(case)
    made = patched(sent, (await accepted(case, sent))["patch"])
    assert "patch" not in await accepted(case, made)
    for reviewed in (reviewer().validate, reviewer().mutate, reviewer().count):
        response = answered(await reviewed(review("pods", made)))
        assert response == {"uid": "u-1", "allowed": True}
    assert await warned(case) == []


@every_row(LEFT_ALONE)
async def test_other_pods_are_left_as_they_are(case: Case) -> None:
    assert await accepted(case, pod(case)) == {"uid": "u-1", "allowed": True}
    assert await warned(case) == []


@every_row(REJECTED)
async def test_what_has_no_equivalent_is_rejected_by_name(case: Case) -> None:
    response = await accepted(case, pod(case))
    assert not response["allowed"]
    assert response["status"] == {"code": 422, "reason": "Invalid", "message": case.says}
    assert await warned(case) == [case.says]


@every_row(INVALID_AFTERWARDS)
async def test_the_rules_for_every_pod_apply_afterwards(case: Case) -> None:
    sent = pod(case)
    made = patched(sent, (await accepted(case, sent))["patch"])
    response = answered(await reviewer().validate(review("pods", made)))
    assert not response["allowed"]
    assert response["status"]["message"] == case.says
    assert await warned(case) == [case.says]


@pytest.mark.parametrize("product", [(), (PRODUCTS["kai"],)], ids=["none", "kai"])
async def test_only_what_is_switched_on_is_accepted(product: tuple[Any, ...]) -> None:
    sent = review("pods", pod(TRANSLATED[0]))
    assert answered(await reviewer(accepted=product).accept(sent)) == {"uid": "u-1", "allowed": True}


async def test_init_containers_count_alike() -> None:
    case = Case("init", {"c": {}}, {"gpu-memory": "1024", "gpu-fraction-container-name": "i"})
    sent = pod(case)
    sent["spec"]["initContainers"] = [{"name": "i", "image": "x"}]
    made = patched(sent, (await accepted(case, sent))["patch"])
    [init] = made["spec"]["initContainers"]
    assert init == {"name": "i", "image": "x", "resources": {"limits": share(1), "requests": share(1)}}
    assert made["spec"]["containers"] == sent["spec"]["containers"]


async def test_only_new_pods_are_changed() -> None:
    sent = pod(TRANSLATED[0])
    for body in (
        review("pods", sent, sent, operation="UPDATE"),
        review("pods/status", sent, sent, operation="UPDATE"),
        review("pods", None, sent, operation="DELETE"),
        review("pods", {"spec": 7}),
    ):
        assert answered(await reviewer(accepted=ALL).accept(body)) == {"uid": "u-1", "allowed": True}


def test_the_option_names_all_products() -> None:
    [option] = [option for option in ROLE.options if option.name == "accept"]
    assert option.choices == tuple(PRODUCTS)
