"""Pods for several GPUs, and for whole ones, through filter and bind."""

import json
from typing import Any

import pytest

from gpushare.admission.rules.unit_rules import conversion
from gpushare.api import names
from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import decode_pod
from gpushare.api.request.unit_conversion import Counting
from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.server.protocol import BindingArgs
from tests.unit.scheduler.world import World, gpu_node, pod_object

TWO = {names.LABEL_POD_GPU_COUNT: "2"}


def create(world: World, name: str, mem: int, labels: dict[str, str]) -> dict[str, Any]:
    pod = pod_object(name, mem)
    pod["metadata"]["labels"] = labels
    world.api.create(pod)
    world.see(name)
    return pod


def filtered(world: World, pod: dict[str, Any], *nodes: str) -> dict[str, Any]:
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": nodes}).encode()
    answer: dict[str, Any] = json.loads(filter_nodes(world.view, Bodies().read(body), world.framework()))
    return answer


async def bind(world: World, name: str, node: str) -> dict[str, str]:
    await world.binder.bind(BindingArgs("default", name, f"uid-{name}", node))
    annotations: dict[str, str] = world.api.pods[f"default/{name}"]["metadata"]["annotations"]
    return annotations


async def test_one_write_records_which_gpus_a_pod_has(world: World) -> None:
    world.add_node(gpu_node("two", 16384, 16384))
    world.add_node(gpu_node("one", 81920))
    pod = create(world, "a", 8, TWO)
    answer = filtered(world, pod, "one", "two")
    assert answer["NodeNames"] == ["two"]
    assert answer["FailedAndUnresolvableNodes"] == {"one": "requests 2 GPUs, but the node has 1"}
    annotations = await bind(world, "a", "two")
    assert annotations[names.ANN_ALLOCATION] == '{"0":{"0":4,"1":4}}'
    assert names.ANN_MEM_INDEX not in annotations
    allocation = read_allocation(annotations, None)
    assert allocation is not None
    world.see("a")
    held = world.ledger.held("uid-a")
    assert held is not None
    assert (held.confirmed, held.allocation) == (True, allocation)
    assert world.used_mib("two") == [4096, 4096]


@pytest.mark.parametrize("labels", [{names.LABEL_POD_GPU_COUNT: "3"}, {names.LABEL_POD_GPU_COUNT: "none"}])
async def test_a_request_that_never_fits_gives_its_reason_on_every_node(
    world: World, labels: dict[str, str]
) -> None:
    world.add_node(gpu_node("n", 16384, 16384, 16384))
    answer = filtered(world, create(world, "a", 8, labels), "n")
    (reason,) = answer["FailedAndUnresolvableNodes"].values()
    assert reason.startswith("label aliyun.com/gpu-count")


async def test_containers_that_do_not_fit_on_one_gpu_together_get_one_each(world: World) -> None:
    world.add_node(gpu_node("n", 16384, 16384, 16384, mode=NodeMode.CORE_MEM))
    world.create("before", 12, core=80)
    await bind(world, "before", "n")
    pod = pod_object("pair", 10, core=30)
    (first,) = pod["spec"]["containers"]
    pod["spec"]["containers"].append({**first, "name": "d"})
    world.api.create(pod)
    world.see("pair")
    assert "20 GiB" in filtered(world, pod, "n")["FailedAndUnresolvableNodes"]["n"], (
        "together they fit nowhere"
    )
    pod["metadata"]["labels"] = {names.LABEL_POD_APART: "true"}
    world.see("pair")
    assert filtered(world, pod, "n")["NodeNames"] == ["n"]
    annotations = await bind(world, "pair", "n")
    assert annotations[names.ANN_ALLOCATION] == '{"0":{"1":10},"1":{"2":10}}'
    assert annotations[names.ANN_CORE] == '{"0":{"1":30},"1":{"2":30}}'
    world.see("pair")
    assert world.used_mib("n") == [12288, 10240, 10240]
    late = create(world, "late", 7, {})
    assert not filtered(world, late, "n")["NodeNames"], "the rest of each GPU is all that is left"


@pytest.mark.parametrize("second", ["9Gi", "10Gi"])
async def test_a_gpu_each_in_users_units_is_counted_by_container_and_must_be_equal(
    world: World, second: str
) -> None:
    world.add_node(gpu_node("n", 16384, 16384))
    pod = pod_object("pair", 1, labels={names.LABEL_POD_APART: "true"})
    (main,) = pod["spec"]["containers"]
    limits = {"c": "10Gi", "d": second}
    pod["spec"]["containers"] = [
        {**main, "name": name, "resources": {"limits": {names.GPU_MEMORY: text}}}
        for name, text in limits.items()
    ]
    steps = conversion(decode_pod(json.dumps(pod).encode()), Counting())
    counted = [step["value"] for step in steps if step["op"] == "add" and step["path"].endswith("gpu-mem")]
    note = next(step["value"] for step in steps if step["path"].endswith("requested"))
    for container, units in zip(pod["spec"]["containers"], counted, strict=True):
        container["resources"] = {"limits": {names.GPU_MEM: units}}
    pod["metadata"]["annotations"] = {names.ANN_REQUESTED: note}
    world.api.create(pod)
    world.see("pair")
    answer = filtered(world, pod, "n")
    if second == "9Gi":
        assert "container c asks for 10, container d asks for 9; use equal requests" in str(answer)
        assert not answer["NodeNames"]
    else:
        assert answer["NodeNames"] == ["n"]
        assert (await bind(world, "pair", "n"))[names.ANN_ALLOCATION] == '{"0":{"0":10},"1":{"1":10}}'
