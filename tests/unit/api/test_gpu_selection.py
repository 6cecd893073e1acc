"""Annotations that select GPUs: their meaning, and which are refused."""

import re

import pytest

from gpushare.api import names
from gpushare.api.node.device import Device
from gpushare.api.objects import decode_pod
from gpushare.api.request.choice_formats import MOST_CHARACTERS, problem
from gpushare.api.request.gpu_selection import GpuSelection, bound_selection, selection_of
from gpushare.api.request.request import request_of

T4 = Device(0, "GPU-1", 15360, "Tesla T4", architecture="turing")
A100 = Device(1, "GPU-2", 40960, "NVIDIA A100-SXM4-40GB", architecture="ampere")
A10 = Device(2, "GPU-3", 23028, "NVIDIA A10", architecture="ampere")
UNKNOWN = Device(3, "n1/3", 23028)
GPUS = (T4, A100, A10, UNKNOWN)


@pytest.mark.parametrize(
    ("annotations", "allowed"),
    [
        # A whole word of the model's name: A10 is not A100.
        ({names.ANN_GPU_MODEL: "A10"}, (A10,)),
        ({names.ANN_GPU_MODEL: "a10, tesla t4"}, (T4, A10)),
        # As in the label nvidia.com/gpu.product.
        ({names.ANN_GPU_MODEL: "NVIDIA-A100-SXM4-40GB"}, (A100,)),
        ({names.ANN_GPU_MODEL_EXCLUDE: "T4,A10"}, (A100,)),
        ({names.ANN_GPU_ARCHITECTURE: "ampere,hopper"}, (A100, A10)),
        ({names.ANN_GPU_ARCHITECTURE_EXCLUDE: "turing"}, (A100, A10)),
        ({names.ANN_GPU_MEMORY_MIN: "20Gi"}, (A100, A10, UNKNOWN)),
        ({names.ANN_GPU_MEMORY_MAX: "23028Mi"}, (T4, A10, UNKNOWN)),
        ({names.ANN_GPU_UUID: "GPU-1,GPU-3"}, (T4, A10)),
        ({names.ANN_GPU_UUID_EXCLUDE: "GPU-1"}, (A100, A10, UNKNOWN)),
        ({names.ANN_GPU_ARCHITECTURE: "ampere", names.ANN_GPU_UUID_EXCLUDE: "GPU-2"}, (A10,)),
    ],
)
def test_a_pod_may_use_the_gpus_that_all_its_annotations_allow(
    annotations: dict[str, str], allowed: tuple[Device, ...]
) -> None:
    selection = selection_of(annotations)
    assert selection is not None
    assert tuple(filter(selection.allows, GPUS)) == allowed


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (names.ANN_GPU_MODEL, ""),
        (names.ANN_GPU_MODEL, "A10,,L4"),
        (names.ANN_GPU_MODEL, "A10;L4"),
        (names.ANN_GPU_MODEL_EXCLUDE, " - "),
        (names.ANN_GPU_ARCHITECTURE, "Ampere"),
        (names.ANN_GPU_ARCHITECTURE_EXCLUDE, "ada"),
        (names.ANN_GPU_MEMORY_MIN, "24"),
        (names.ANN_GPU_MEMORY_MIN, "24GB"),
        (names.ANN_GPU_MEMORY_MAX, "0Gi"),
        (names.ANN_GPU_UUID, "0"),
        (names.ANN_GPU_UUID_EXCLUDE, "GPU-1 GPU-2"),
        (names.ANN_GPU_PLACEMENT, "Binpack"),
        (names.ANN_NODE_PLACEMENT, ""),
    ],
)
def test_an_invalid_value_is_refused_as_a_whole(name: str, text: str) -> None:
    message = problem({names.ANN_GPU_MODEL: "A10", name: text})
    assert re.match(f"annotation {name} must be .*: it is '{text}'; correct it, or remove", message)
    assert bound_selection({name: text}) is None


def test_limits_that_exclude_each_other_and_long_values_are_refused() -> None:
    both = {names.ANN_GPU_MEMORY_MIN: "24Gi", names.ANN_GPU_MEMORY_MAX: "16Gi"}
    assert problem(both) == (
        "annotation gpushare.dev/gpu-memory-min=24Gi is above gpushare.dev/gpu-memory-max=16Gi, so that every GPU is excluded; correct one of them"
    )
    long = problem({names.ANN_GPU_MODEL: "A" * (MOST_CHARACTERS + 1)})
    assert long == "annotation gpushare.dev/gpu-model has 4097 characters, the maximum is 4096: shorten it"


@pytest.mark.parametrize("resource", [names.GPU_MEM, names.GPU_WHOLE])
def test_the_selection_is_part_of_the_request(resource: str) -> None:
    def asking(annotations: dict[str, str]) -> GpuSelection | None:
        pod = {
            "metadata": {"name": "a", "annotations": annotations},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {resource: 1}}}]},
        }
        request = request_of(decode_pod(pod))
        assert request is not None
        return request.selection

    assert asking({"other": "x"}) is None
    assert asking({names.ANN_GPU_MODEL: "L4 , A10"}) == GpuSelection(models=("L4", "A10"))


def test_it_is_written_as_in_the_manifest() -> None:
    selection = GpuSelection(models=("L4", "A10"), min_mib=24576, uuids_excluded=("GPU-1",))
    assert selection.written() == [
        "gpushare.dev/gpu-model: L4,A10",
        "gpushare.dev/gpu-memory-min: 24Gi",
        "gpushare.dev/gpu-uuid-exclude: GPU-1",
    ]
