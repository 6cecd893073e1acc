"""Requests of HAMi and KAI behind a real API server: by the webhook, together with the chart's policies
where the server has them.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.api import names
from tests.admission_accept import INVALID_AFTERWARDS, LEFT_ALONE, REJECTED, TRANSLATED, Case, pod
from tests.admission_words import COUNTING
from tests.e2e.asking import Answer, Api
from tests.e2e.webhook import reviewing


@pytest.fixture(scope="module")
def api(binaries: Path, states: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    chart, arguments = ["--set=admission.accept={hami,kai}"], ["--accept", "hami", "--accept", "kai"]
    folder = tmp_path_factory.mktemp("webhook")
    with reviewing(binaries, states / "accept", folder, chart, arguments, in_force) as api:
        yield api


def in_force(api: Api) -> bool:
    return (
        all(case.says in create(api, case).message for case in (REJECTED[0], INVALID_AFTERWARDS[0]))
        and create(api, TRANSLATED[0]).taken
        and bool(create_template(api, REJECTED[0]).warnings)
    )


def create(api: Api, case: Case) -> Answer:
    return api.create(pod(case), dry=True)


def create_template(api: Api, case: Case) -> Answer:
    labels = {**case.labels, "app": "x"}
    template = pod(case)
    template["metadata"] = {"annotations": case.annotations, "labels": labels}
    return api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "x", "namespace": "default"},
            "spec": {
                "selector": {"matchLabels": {"app": "x"}},
                "template": {"metadata": template["metadata"], "spec": template["spec"]},
            },
        },
        dry=True,
    )


def limits(answer: Answer) -> dict[str, dict[str, str]]:
    return {one["name"]: one["resources"].get("limits", {}) for one in answer.body["spec"]["containers"]}


@pytest.mark.parametrize("case", TRANSLATED, ids=lambda case: case.id)
def test_requests_are_converted_to_ours(api: Api, case: Case) -> None:
    answer = create(api, case)
    assert answer.taken, answer.message
    assert limits(answer) == case.becomes
    for one in answer.body["spec"]["containers"]:
        assert one["resources"].get("requests", {}) == one["resources"].get("limits", {})
    metadata = answer.body["metadata"]
    assert metadata.get("labels", {}).get(names.LABEL_POD_GPU_COUNT) == case.count
    assert metadata["annotations"].pop(names.ANN_REQUESTED)
    assert metadata["annotations"] == case.chooses
    assert answer.body["spec"]["schedulerName"] == names.SCHEDULER_NAME
    assert not create_template(api, case).warnings


@pytest.mark.parametrize("case", LEFT_ALONE, ids=lambda case: case.id)
def test_other_pods_are_left_unchanged(api: Api, case: Case) -> None:
    answer = create(api, case)
    assert answer.taken, answer.message
    assert limits(answer) == case.limits
    assert answer.body["metadata"].get("annotations", {}) == case.annotations


@pytest.mark.parametrize("case", [*REJECTED, *INVALID_AFTERWARDS], ids=lambda case: case.id)
def test_requests_without_an_equivalent_are_rejected_by_name(api: Api, case: Case) -> None:
    if case.counting != COUNTING:
        pytest.skip("the webhook has a reference GPU")
    answer = create(api, case)
    assert not answer.taken
    assert case.says in answer.message
    template = create_template(api, case)
    assert template.taken or case.says in template.message
    assert not template.taken or case.says in template.warnings
