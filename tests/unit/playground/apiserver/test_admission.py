"""The embedded API server's admission decides as the table of accepted and refused objects says."""

import copy
from typing import Any

import pytest

from gpushare.api import names
from gpushare_playground.apiserver.errors import ApiError
from gpushare_playground.apiserver.writes.writing import Outcome
from tests.admission_cases import PODS, WORKLOADS, pod, workload
from tests.admission_mistakes import placed_words
from tests.admission_users import SCHEDULER
from tests.admission_words import PodCase, counted
from tests.admission_writes import Write
from tests.rows import every_row
from tests.unit.playground.apiserver.plane import HERE, Plane


@pytest.fixture
def plane() -> Plane:
    return Plane()


def agrees(case: PodCase, act: Any, ending: str) -> Outcome | None:
    """Check that ``act`` ends as the table says for ``case``; returns its outcome."""
    if case.refused:
        with pytest.raises(ApiError) as caught:
            act()
        assert case.says in str(caught.value)
        if case.by == "gpushare":
            policy = "gpushare-records" if "annotations" in case.says else "gpushare-requests"
            message = f"'{policy}{ending}' with binding '{policy}{ending}' denied request: {case.says}"
            assert str(caught.value).endswith(message)
        return None
    outcome: Outcome = act()
    policy = f"gpushare-mistakes{ending}"
    prefix = f"Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{policy}': "
    assert outcome.warnings == [prefix + text for text in case.warns]
    return outcome


@every_row(PODS)
def test_a_pod(case: PodCase) -> None:
    plane = Plane()
    namespace = "labelled" if case.namespace_labels else "default"
    plane.add_namespace("labelled", dict(case.namespace_labels))
    outcome = agrees(case, lambda: plane.create("pods", pod(case, "p", namespace)), "")
    if outcome is not None:
        assert outcome.record.obj["spec"]["schedulerName"] == case.scheduler
        assert not counted(case, outcome.record.obj)


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet", "Job"])
@every_row(PODS)
def test_a_template(kind: str, case: PodCase) -> None:
    plane = Plane()
    agrees(case, lambda: plane.create(WORKLOADS[kind][1], workload(kind, case, "w")), "-templates")


def test_mistakes_in_a_template_are_reported_on_each_change_and_those_of_a_pod_once(plane: Plane) -> None:
    case = next(case for case in PODS if case.id == "asks-4Gi")
    made = plane.create("deployments", workload("Deployment", case, "w")).record.obj
    scaled = {**made, "spec": {**made["spec"], "replicas": 2}}
    assert plane.replace("deployments", scaled).warnings == []
    scaled = copy.deepcopy(scaled)
    scaled["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    scaled["metadata"].pop("resourceVersion")
    [warning] = plane.replace("deployments", scaled).warnings
    assert warning.endswith(case.warns[0])
    one = plane.create("pods", pod(case, "p")).record.obj
    labelled = {**one, "metadata": {**one["metadata"], "labels": {"a": "b"}}}
    assert plane.replace("pods", labelled).warnings == []


def test_a_label_that_matters_for_placement_is_warned_about_once_a_pod_is_bound(plane: Plane) -> None:
    case = next(case for case in PODS if case.id == "memory")
    one = plane.create("pods", pod(case, "p")).record.obj
    bound = copy.deepcopy(one)
    bound["metadata"] |= {"name": "q", "labels": {}}
    bound["spec"]["nodeName"] = "n1"
    for gone in ("resourceVersion", "uid", "creationTimestamp"):
        bound["metadata"].pop(gone)
    bound = plane.create("pods", bound, SCHEDULER.name).record.obj

    def labelled(obj: dict[str, Any], key: str, value: str) -> list[str]:
        labels = {**(obj["metadata"].get("labels") or {}), key: value}
        changed = {**obj, "metadata": {**obj["metadata"], "labels": labels}}
        changed["metadata"].pop("resourceVersion")
        return plane.replace("pods", changed).warnings

    policy = "gpushare-mistakes-bound"
    assert labelled(one, names.LABEL_POD_GPU_COUNT, "3") == []
    assert labelled(bound, "team", "x") == []
    assert labelled(bound, names.LABEL_POD_GPU_COUNT, "3") == [
        f"Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{policy}': {placed_words(names.LABEL_POD_GPU_COUNT)}"
    ]


@every_row(HERE)
def test_a_write(write: Write) -> None:
    plane = Plane()
    plane.fill()
    if not write.says:
        plane.write(write)
        return
    with pytest.raises(ApiError) as caught:
        plane.write(write)
    assert caught.value.code == 403
    assert str(caught.value).endswith(write.says)
