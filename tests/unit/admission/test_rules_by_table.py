"""The webhook's rules against the one table of what admission takes and refuses."""

from typing import Any

import pytest

from gpushare.admission import rules
from tests.admission_cases import PODS, RECORDS, WORKLOADS, PodCase, pod, workload
from tests.admission_writes import WRITES, Write
from tests.unit.admission.reviews import answered, patched, review, reviewer

OURS = [case for case in PODS if case.by == "gpushare"]
#: Whole namespaces are left out by the configuration, which tests/e2e/test_webhook.py shows.
POINTED = [case for case in OURS if not case.refused and not case.namespace_labels]


def said(response: dict[str, Any]) -> str:
    return "" if response["allowed"] else response["status"]["message"]


@pytest.mark.parametrize("case", OURS, ids=lambda case: case.id)
async def test_a_pod(case: PodCase) -> None:
    response = answered(await reviewer().validate(review("pods", pod(case, "x"))))
    assert said(response) == case.says
    assert "warnings" not in response


@pytest.mark.parametrize("case", POINTED, ids=lambda case: case.id)
async def test_which_scheduler_a_pod_gets(case: PodCase) -> None:
    sent = pod(case, "x")
    sent["spec"].setdefault("schedulerName", "default-scheduler")  # as the API server has filled it in
    response = answered(await reviewer().mutate(review("pods", sent)))
    assert response["allowed"]
    assert patched(sent, response.get("patch", []))["spec"]["schedulerName"] == case.scheduler


@pytest.mark.parametrize("kind", WORKLOADS)
@pytest.mark.parametrize("case", OURS, ids=lambda case: case.id)
async def test_a_template(kind: str, case: PodCase) -> None:
    version, resource = WORKLOADS[kind]
    group = version.rpartition("/")[0]
    sent = workload(kind, case, "x")
    response = answered(await reviewer().validate(review(resource, sent, group=group)))
    assert said(response) == case.says
    again = review(resource, sent, sent, operation="UPDATE", group=group)
    assert answered(await reviewer().validate(again))["allowed"], (
        "what is there already can be scaled and cleared"
    )
    empty = workload(kind, PODS[0], "x")
    changed = review(resource, sent, empty, operation="UPDATE", group=group)
    assert said(answered(await reviewer().validate(changed))) == case.says


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.id)
async def test_a_write(write: Write) -> None:
    body = review(
        write.resource, write.new, write.old, operation=write.operation, name=write.name, user=write.user
    )
    assert said(answered(await reviewer().validate(body))) == write.says


def test_the_table_names_the_same_records() -> None:
    assert rules.RECORDS == RECORDS
