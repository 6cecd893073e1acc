"""A pod that is there asks for more or less of processors and memory, by its own subresource, and for nothing else."""

import copy
from typing import Any

import pytest

from gpushare.api import names
from gpushare_playground.apiserver.errors import ApiError
from gpushare_playground.apiserver.writes.patching import merge_patch
from gpushare_playground.apiserver.writes.writing import Outcome, WriteOptions
from tests.unit.playground.apiserver.plane import Plane

ASKED = {"limits": {"cpu": "2", names.GPU_MEM: "3"}, "requests": {"cpu": "1", names.GPU_MEM: "3"}}


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
                    {"name": "main", "image": "i", "resources": copy.deepcopy(ASKED)},
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


def refused(made: Plane, **how: Any) -> str:
    with pytest.raises(ApiError) as error:
        resize(made, **how)
    assert error.value.code == 422
    return str(error.value)


def test_processors_and_memory_change_and_all_else_is_passed_over() -> None:
    made = plane()
    more = {"limits": {**ASKED["limits"], "cpu": "4"}, "requests": {**ASKED["requests"], "memory": "1Gi"}}
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


def test_gpu_memory_does_not_change_nor_what_kind_of_pod_it_is() -> None:
    made = plane()
    gpus = {which: {**amounts, names.GPU_MEM: "4"} for which, amounts in ASKED.items()}
    assert "only cpu and memory resources are mutable" in refused(made, main={"resources": gpus})
    assert "only cpu and memory resources are mutable" in refused(made, main={"resources": None})
    without = {which: {names.GPU_MEM: "3"} for which in ASKED}
    nothing = refused(made, main={"resources": without}, early={"resources": {}})
    assert "Pod QOS Class may not change as a result of resizing" in nothing


def test_otherwise_than_by_the_subresource_nothing_is_resized() -> None:
    less = {"limits": ASKED["limits"], "requests": {**ASKED["requests"], "cpu": "500m"}}
    assert "pod updates may not change fields" in refused(plane(), part="", main={"resources": less})
