"""The resize subresource changes a pod's requests for CPU and memory, and nothing else."""

import copy
from typing import Any

import pytest

from gpushare.api import names
from gpushare_playground.apiserver.errors import ApiError
from gpushare_playground.apiserver.writes.patching import merge_patch
from gpushare_playground.apiserver.writes.writing import Outcome, WriteOptions
from tests.unit.playground.apiserver.plane import Plane

RESOURCES = {"limits": {"cpu": "2", names.GPU_MEM: "3"}, "requests": {"cpu": "1", names.GPU_MEM: "3"}}


def plane() -> Plane:
    made = Plane()
    early = {"name": "early", "image": "i", "restartPolicy": "Always", "resources": {"limits": {"cpu": "1"}}}
    made.create(
        "pods",
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default", "labels": {"app": "a"}},
            "spec": {
                "initContainers": [early],
                "containers": [
                    {"name": "main", "image": "i", "resources": copy.deepcopy(RESOURCES)},
                    {"name": "plain", "image": "i"},
                ],
            },
        },
    )
    return made


def resize(made: Plane, *, part: str = "resize", meta: Any = None, **containers: Any) -> Outcome:
    def patched(obj: dict[str, Any]) -> dict[str, Any]:
        obj = merge_patch(copy.deepcopy(obj), {"metadata": meta or {}})
        for one in (*obj["spec"]["containers"], *obj["spec"]["initContainers"]):
            one.update(containers.get(one["name"], {}))
        return obj

    pods = made.resource("v1", "pods")
    return made.writer.patch(pods, "default", "p", patched, WriteOptions(), part)


def refused(made: Plane, **change: Any) -> str:
    with pytest.raises(ApiError) as error:
        resize(made, **change)
    assert error.value.code == 422
    return str(error.value)


def test_cpu_and_memory_change_and_everything_else_is_ignored() -> None:
    made = plane()
    more = {
        "limits": {**RESOURCES["limits"], "cpu": "4"},
        "requests": {**RESOURCES["requests"], "memory": "1Gi"},
    }
    found = resize(
        made,
        meta={"labels": {"app": "b"}},
        main={"resources": more, "image": "other"},
        early={"resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}},
    ).record.obj
    assert found["metadata"]["labels"] == {"app": "a"}
    assert found["metadata"]["generation"] == 2
    (main, plain), (early,) = found["spec"]["containers"], found["spec"]["initContainers"]
    assert (main["image"], main["resources"]) == ("i", more)
    assert plain.get("resources", {}) == {}
    assert early["resources"]["limits"] == {"cpu": "2"}
    assert resize(made).record.obj["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]


def test_gpu_memory_and_the_qos_class_cannot_change() -> None:
    made = plane()
    gpus = {which: {**amounts, names.GPU_MEM: "4"} for which, amounts in RESOURCES.items()}
    assert "only cpu and memory resources are mutable" in refused(made, main={"resources": gpus})
    assert "only cpu and memory resources are mutable" in refused(made, main={"resources": None})
    without = {which: {names.GPU_MEM: "3"} for which in RESOURCES}
    nothing = refused(made, main={"resources": without}, early={"resources": {}})
    assert "Pod QOS Class may not change as a result of resizing" in nothing


def test_nothing_is_resized_except_by_the_subresource() -> None:
    less = {"limits": RESOURCES["limits"], "requests": {**RESOURCES["requests"], "cpu": "500m"}}
    assert "pod updates may not change fields" in refused(plane(), part="", main={"resources": less})
