"""What the webhook logs of admitted pods: with their UID once the API server has assigned it."""

import json
import logging
from typing import Any

import pytest

from gpushare.api import names
from tests.unit.admission.reviews import answered, review, reviewer

POD: dict[str, Any] = {
    "metadata": {"name": "way-1", "namespace": "default", "uid": "u-pod"},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {names.GPU_MEM: "3"}}}]},
}
PLAIN: dict[str, Any] = {"metadata": {"name": "b", "uid": "u-b"}, "spec": {"containers": [{"name": "c"}]}}


@pytest.fixture(autouse=True)
def _debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "gpushare.admission")


async def test_an_admitted_pod_is_logged_with_its_uid(caplog: pytest.LogCaptureFixture) -> None:
    assert answered(await reviewer().validate(review("pods", POD)))["allowed"]
    (record,) = caplog.records
    assert record.getMessage() == "pod default/way-1: admitted for someone"
    assert record.__dict__["about"] == ("default/way-1", "u-pod", "", "u-pod")


@pytest.mark.parametrize("new", [PLAIN, POD], ids=["no GPU", "not new"])
async def test_others_are_let_in_silently(new: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    operation, old = ("CREATE", None) if new is PLAIN else ("UPDATE", PLAIN)
    assert answered(await reviewer().validate(review("pods", new, old, operation=operation)))["allowed"]
    assert not caplog.records


async def test_a_dry_run_is_not_logged_as_admitted(caplog: pytest.LogCaptureFixture) -> None:
    body = json.loads(review("pods", POD))
    body["request"]["dryRun"] = True
    assert answered(await reviewer().validate(json.dumps(body).encode()))["allowed"]
    assert not caplog.records


async def test_a_pod_changed_before_it_has_a_uid_is_logged_with_the_uid_of_the_review(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await reviewer().mutate(review("pods", {"metadata": {}, "spec": POD["spec"]}))
    (record,) = caplog.records
    assert record.getMessage() == f"pod default/?: schedulerName set to {names.SCHEDULER_NAME}"
    assert record.__dict__["about"][3] == "u-1"


async def test_a_rejection_is_logged_with_the_uid_of_the_review(caplog: pytest.LogCaptureFixture) -> None:
    wrong = {**POD, "spec": {"containers": [{"name": "c", "resources": {"limits": {names.GPU_CORE: "7"}}}]}}
    assert not answered(await reviewer().validate(review("pods", wrong)))["allowed"]
    assert {record.__dict__["about"][3] for record in caplog.records} == {"u-1"}


@pytest.mark.parametrize(
    ("resource", "operation", "pod", "uid", "request_id"),
    [
        ("pods", "UPDATE", "default/way-1", "u-pod", "u-pod"),
        ("pods", "CREATE", "default/way-1", "", "u-1"),
        ("pods/binding", "CREATE", "default/way-1", "", "u-1"),
        ("bindings", "CREATE", "", "", "u-1"),
    ],
)
async def test_a_refusal_about_a_pod_that_is_there_is_found_by_its_uid(
    resource: str, operation: str, pod: str, uid: str, request_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    forged = {**POD, "metadata": {**POD["metadata"], "annotations": {names.ANN_SHARE: "{}"}}}
    old = POD if operation == "UPDATE" else None
    asked = review(resource, forged, old, operation=operation, name="way-1")
    assert not answered(await reviewer().validate(asked))["allowed"]
    assert {record.__dict__["about"] for record in caplog.records} == {(pod, uid, "", request_id)}


async def test_a_rejection_of_an_unreadable_object_is_logged_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = review("pods", {"metadata": 5}, {"metadata": 5}, operation="UPDATE", name="way-1")
    assert not answered(await reviewer().validate(asked))["allowed"]
    assert [record.__dict__["about"] for record in caplog.records] == [("default/way-1", "", "", "u-1")]
