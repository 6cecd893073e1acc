"""Pods whose annotations allow no GPU of the cluster, behind a real API server with nodes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from tests.admission_accept import Case, pod, share
from tests.e2e.asking import Answer, Api
from tests.e2e.webhook import reviewing

V100 = Device(0, "GPU-v100", 16160, model="Tesla V100-SXM2-16GB", architecture="volta")
ALLOWED: list[dict[str, str]] = [
    {},
    {names.ANN_GPU_MODEL: "L4,V100"},
    {names.ANN_GPU_MODEL_EXCLUDE: "A10", names.ANN_GPU_MEMORY_MIN: "15Gi"},
    {names.ANN_GPU_UUID: "GPU-v100"},
]
EXCLUDED = [
    {names.ANN_GPU_MODEL: "L4"},
    {names.ANN_GPU_ARCHITECTURE: "hopper", names.ANN_GPU_MODEL: "V100"},
    {names.ANN_GPU_UUID_EXCLUDE: "GPU-v100"},
    {"nvidia.com/use-gputype": "H100"},
]


@pytest.fixture(scope="module")
def api(binaries: Path, states: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    chart = ["--set=admission.requireMatchingGPU=true", "--set=admission.accept={hami}"]
    arguments = ["--accept", "hami", "--require-matching-gpu"]
    folder = tmp_path_factory.mktemp("webhook")
    with reviewing(binaries, states / "matching", folder, chart, arguments, in_force) as api:
        yield api


def in_force(api: Api) -> bool:
    described = devices_annotation(NodeMode.CGPU, MemoryUnit.GIB, (V100,))
    metadata = {
        "name": "n1",
        "labels": {names.LABEL_MODE: "cgpu"},
        "annotations": {names.ANN_DEVICES: described},
    }
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    template = create_template(api, EXCLUDED[0])
    return not create(api, EXCLUDED[0]).taken and bool(template.warnings)


def pod_choosing(annotations: dict[str, str]) -> dict[str, Any]:
    theirs = any(name.startswith("nvidia.com/") for name in annotations)
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"} if theirs else share(3)
    return pod(Case("choosy", {"main": limits}, annotations=annotations))


def create(api: Api, annotations: dict[str, str]) -> Answer:
    return api.create(pod_choosing(annotations), dry=True)


def create_template(api: Api, annotations: dict[str, str]) -> Answer:
    made = pod_choosing(annotations)
    metadata = {"annotations": annotations, "labels": {"app": "x"}}
    return api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "x", "namespace": "default"},
            "spec": {
                "selector": {"matchLabels": {"app": "x"}},
                "template": {"metadata": metadata, "spec": made["spec"]},
            },
        },
        dry=True,
    )


@pytest.mark.parametrize("annotations", ALLOWED, ids=lambda chosen: ",".join(chosen) or "none")
def test_a_pod_that_some_gpu_suits_is_accepted(api: Api, annotations: dict[str, str]) -> None:
    answer = create(api, annotations)
    assert answer.taken, answer.message
    assert not create_template(api, annotations).warnings


@pytest.mark.parametrize("annotations", EXCLUDED, ids=",".join)
def test_a_pod_that_no_gpu_suits_is_rejected_and_its_template_has_a_warning(
    api: Api, annotations: dict[str, str]
) -> None:
    answer = create(api, annotations)
    assert answer.status == 422
    assert "no GPU of this cluster matches the annotations (gpushare.dev/gpu-" in answer.message
    assert "there are 1 × Tesla V100-SXM2-16GB (volta, 16160 MiB)" in answer.message
    template = create_template(api, annotations)
    assert template.taken
    [warning] = template.warnings
    assert warning in answer.message


def test_pods_that_request_no_gpu_of_ours_are_not_judged(api: Api) -> None:
    without_gpu = pod(Case("plain", {"main": {}}, annotations=EXCLUDED[0]))
    assert api.create(without_gpu, dry=True).taken
