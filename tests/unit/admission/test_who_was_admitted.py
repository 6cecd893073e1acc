"""What the webhook logs of pods that it lets in: with their UID where the API server has given it."""

import json
import logging
from typing import Any

import pytest

from gpushare.model import names
from tests.unit.admission.reviews import answered, review, reviewer

POD: dict[str, Any] = {
    "metadata": {"name": "way-1", "namespace": "default", "uid": "u-pod"},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {names.GPU_MEM: "3"}}}]},
}
PLAIN: dict[str, Any] = {"metadata": {"name": "b", "uid": "u-b"}, "spec": {"containers": [{"name": "c"}]}}


@pytest.fixture(autouse=True)
def _debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "gpushare.admission")


async def test_a_pod_that_is_let_in_is_told_with_its_uid(caplog: pytest.LogCaptureFixture) -> None:
    assert answered(await reviewer().validate(review("pods", POD)))["allowed"]
    (record,) = caplog.records
    assert record.getMessage() == "pod default/way-1: admitted for someone"
    assert record.__dict__["about"] == ("default/way-1", "u-pod", "", "u-pod")


@pytest.mark.parametrize("new", [PLAIN, POD], ids=["no GPU", "not new"])
async def test_others_are_let_in_silently(new: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    operation, old = ("CREATE", None) if new is PLAIN else ("UPDATE", PLAIN)
    assert answered(await reviewer().validate(review("pods", new, old, operation=operation)))["allowed"]
    assert not caplog.records


async def test_a_dry_run_lets_nobody_in(caplog: pytest.LogCaptureFixture) -> None:
    body = json.loads(review("pods", POD))
    body["request"]["dryRun"] = True
    assert answered(await reviewer().validate(json.dumps(body).encode()))["allowed"]
    assert not caplog.records


async def test_what_is_changed_before_it_has_a_uid_is_told_with_the_uid_of_the_review(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await reviewer().mutate(review("pods", {"metadata": {}, "spec": POD["spec"]}))
    (record,) = caplog.records
    assert record.getMessage() == f"pod default/?: pointed to {names.SCHEDULER_NAME}"
    assert record.__dict__["about"][3] == "u-1"


async def test_a_refusal_is_told_with_the_uid_of_the_review(caplog: pytest.LogCaptureFixture) -> None:
    wrong = {**POD, "spec": {"containers": [{"name": "c", "resources": {"limits": {names.GPU_CORE: "7"}}}]}}
    assert not answered(await reviewer().validate(review("pods", wrong)))["allowed"]
    assert {record.__dict__["about"][3] for record in caplog.records} == {"u-1"}
