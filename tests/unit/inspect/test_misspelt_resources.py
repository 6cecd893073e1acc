"""``--why`` names resources that look like ours but are not: the scheduler knows nothing of such a pod."""

import pytest

from gpushare.inspect.views.explain import why
from tests.unit.inspect.test_views import PLAIN, cluster, options
from tests.unit.scheduler.world import World


@pytest.fixture
async def world() -> World:
    return World()


async def test_a_resource_similar_to_ours_is_named(world: World) -> None:
    world.create("pod", 6)
    spec = world.api.pods["default/pod"]["spec"]
    for name, key in (("init", "initContainers"), ("c", "containers")):
        limits = {"aliyun.com/gpu-memory": "6", "aliyun.com/gpu-mem": "1", "nvidia.com/gpu": "1"}
        spec[key] = [{"name": name, "resources": {"limits": limits}}]

    remarks = why(cluster(world), options("--why", "pod"), PLAIN).remarks

    assert remarks[:2] == tuple(
        f"warning: pod default/pod: container {name} asks for aliyun.com/gpu-memory, which no node offers to pods; "
        "write aliyun.com/gpu-mem in units, or gpushare.dev/gpu-memory such as 6Gi"
        for name in ("c", "init")
    )
    assert "nvidia.com" not in str(remarks)


async def test_a_request_of_zero_units_is_a_warning(world: World) -> None:
    world.create("zero", 6)
    limits = {"aliyun.com/gpu-mem": "0"}
    world.api.pods["default/zero"]["spec"]["containers"] = [{"name": "c", "resources": {"limits": limits}}]

    shown = why(cluster(world), options("--why", "zero"), PLAIN)

    assert shown.remarks[0] == (
        "warning: aliyun.com/gpu-mem: 0 requests nothing: no share of a GPU is allocated, and no limit is enforced: "
        "container c; write the number of units, or leave it out"
    )


@pytest.mark.parametrize("resource", ["alyun.com/gpu-mem", "aliyun.com/gup-mem", "aliyun.com/gpu-count"])
async def test_a_misspelt_resource_is_named_wherever_it_occurs_as_in_admission(
    world: World, resource: str
) -> None:
    world.create("pod", 6)
    limits = {resource: "5"}
    world.api.pods["default/pod"]["spec"]["containers"] = [{"name": "c", "resources": {"limits": limits}}]
    (first, *_) = why(cluster(world), options("--why", "pod"), PLAIN).remarks
    assert first.startswith(
        f"warning: pod default/pod: container c asks for {resource}, which no node offers to pods"
    )
