"""No pod is placed above a node's sum, which kube-scheduler leaves to us: the kubelet's capacity, less what pods hold without a record."""

import json
from typing import Any

import pytest
from msgspec import structs

from gpushare.api import names
from gpushare.api.node.device import NodeDevices, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import decode_node, decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import Request, request_of
from gpushare.scheduler.cache.cache import NodeReader
from gpushare.scheduler.cache.kubelet_capacity import Sums, offered_by, requested_by
from gpushare.scheduler.cache.pod_records import record_of
from gpushare.scheduler.framework.binder import BindRefused
from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.server.protocol import BindingArgs
from tests.unit.scheduler.world import World, gpu_node, pod_object

GIB = 1024


def see_node(world: World, devices: NodeDevices, allocatable: dict[str, Any] | None) -> None:
    """The informer's view of a node with this description by its agent and this capacity by its kubelet."""
    written = {
        "metadata": {
            "name": devices.name,
            "labels": {names.LABEL_MODE: devices.mode.value},
            "annotations": {
                names.ANN_DEVICES: devices_annotation(devices.mode, devices.unit, devices.devices)
            },
        },
        "spec": {},
        "status": {"capacity": {}} if allocatable is None else {"capacity": {}, "allocatable": allocatable},
    }
    reader = NodeReader(unit=MemoryUnit.GIB, isolated_cap=16)
    world.view.upsert_node(reader.read(decode_node(json.dumps(written).encode())))


def filtered(
    world: World, pod: dict[str, Any], *nodes: str
) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """The filter's answer: nodes that take the pod, that refuse it, and that refuse it whatever is evicted."""
    refused_on: list[str] = []
    body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}).encode()
    answer = filter_nodes(
        world.view,
        Bodies().read(body),
        world.framework(refused=lambda uid, refused: refused_on.extend(refused)),
    )
    read = json.loads(answer)
    return read["NodeNames"], read["FailedNodes"], read["FailedAndUnresolvableNodes"]


def two(name: str = "n2", mode: NodeMode = NodeMode.SHARE) -> NodeDevices:
    return gpu_node(name, 16 * GIB, 16 * GIB, mode=mode)


def bound(world: World, name: str, *requests: Any, **more: Any) -> None:
    world.create(name, *requests, node="n2", phase="Running", **more)


def args(name: str) -> BindingArgs:
    return BindingArgs("default", name, f"uid-{name}", "n2")


async def test_memory_that_pods_hold_without_a_record_is_not_allocated_to_others(world: World) -> None:
    see_node(world, two(), {names.GPU_MEM: "32"})
    bound(world, "by-hand", 20)
    world.create("fits", 12)
    world.create("large", 13)
    assert filtered(world, pod_object("fits", 12), "n2")[0] == ["n2"]
    fits, refused, hopeless = filtered(world, pod_object("large", 13), "n2", "n1")
    assert fits == ["n1"]
    assert not refused
    assert hopeless == {
        "n2": f"the kubelet has 12 {names.GPU_MEM} left: pods without an allocation record hold 20"
    }
    with pytest.raises(BindRefused, match="node n2: the kubelet has 12"):
        await world.binder.bind(args("large"))
    assert world.used_mib("n2") == [0, 0]
    await world.binder.bind(args("fits"))
    world.create("one", 1)
    assert filtered(world, pod_object("one", 1), "n2")[0] == [], "what was allocated since counts, too"
    assert filtered(world, pod_object("fits", 12), "n2")[0] == ["n2"], "its own binding may still arrive"
    freed: list[str] = []
    world.view.capacity_freed.subscribe(lambda: freed.append("freed"))
    world.view.remove_pod(record_of_bound("by-hand", 20))
    assert freed
    assert filtered(world, pod_object("large", 13), "n2")[0] == ["n2"]


def test_a_pod_larger_than_its_node_holds_nothing_there(world: World) -> None:
    """The kubelet rejects it, so it must not keep other pods away until then."""
    see_node(world, two(), {names.GPU_MEM: "32"})
    bound(world, "absurd", 10**9)
    assert filtered(world, pod_object("a", 16), "n2")[0] == ["n2"]
    bound(world, "largest", 32)
    assert filtered(world, pod_object("a", 1), "n2")[0] == []


def test_a_pod_on_all_gpus_holds_them_while_one_is_unhealthy(world: World) -> None:
    gpus = two()
    bound(world, "by-hand", 32)
    sick = structs.replace(gpus.devices[1], healthy=False)
    see_node(world, structs.replace(gpus, devices=(gpus.devices[0], sick)), {names.GPU_MEM: "16"})
    assert filtered(world, pod_object("a", 1), "n2")[0] == []


def test_a_pod_that_requests_absurd_compute_holds_no_memory_either(world: World) -> None:
    see_node(world, two(mode=NodeMode.CORE_MEM), {names.GPU_MEM: "32", names.GPU_CORE: "200"})
    bound(world, "absurd", 32, core=10**6)
    assert filtered(world, pod_object("a", 2, core=40), "n2")[0] == ["n2"]


def record_of_bound(name: str, units: int) -> Any:
    return record_of(decode_pod(pod_object(name, units, node="n2", phase="Running")))


def test_a_node_whose_kubelet_offers_nothing_takes_no_pod_and_evicts_none(world: World) -> None:
    see_node(world, two(), {names.GPU_MEM: "0"})
    freed: list[str] = []
    world.view.capacity_freed.subscribe(lambda: freed.append("freed"))
    fits, refused, hopeless = filtered(world, pod_object("a", 1), "n2")
    assert (fits, refused) == ([], {})
    assert hopeless["n2"] == (
        f"the kubelet offers 32 {names.GPU_MEM} less than the node's GPUs have "
        "(the node has just started, a GPU has just recovered, or the node agent is not running)"
    )
    see_node(world, two(), {names.GPU_MEM: "0"})
    assert not freed
    see_node(world, two(), {names.GPU_MEM: "32"})
    assert freed, "pods that wait are tried again"
    assert filtered(world, pod_object("a", 16), "n2")[0] == ["n2"]


async def test_a_node_that_offers_only_a_part_takes_no_pod_as_the_gpu_is_unknown(
    world: World,
) -> None:
    """One of two GPUs has just come back: the sum of what is offered would suffice for the pod, but the kubelet would refuse it."""
    see_node(world, two(), {names.GPU_MEM: "16"})
    world.create("a", 4)
    _, _, hopeless = filtered(world, pod_object("a", 4), "n2")
    assert hopeless["n2"].startswith(f"the kubelet offers 16 {names.GPU_MEM} less than the node's GPUs have")
    with pytest.raises(BindRefused, match="node n2: the kubelet offers 16"):
        await world.binder.bind(args("a"))
    bound(world, "by-hand", 5)
    see_node(world, two(), {names.GPU_MEM: "32"})
    assert filtered(world, pod_object("a", 4), "n2")[0] == ["n2"]


def test_a_node_without_reported_capacity_is_taken_as_described(world: World) -> None:
    see_node(world, two(), {names.GPU_MEM: "0"})
    see_node(world, two(), None)
    assert filtered(world, pod_object("a", 16), "n2")[0] == ["n2"]


def test_compute_is_counted_too(world: World) -> None:
    see_node(world, two(mode=NodeMode.CORE_MEM), {names.GPU_MEM: "32", names.GPU_CORE: "100"})
    _, _, hopeless = filtered(world, pod_object("a", 2, core=60), "n2")
    assert hopeless["n2"].startswith(
        f"the kubelet offers 100 {names.GPU_CORE} less than the node's GPUs have"
    )
    assert filtered(world, pod_object("a", 2), "n2")[0] == ["n2"], "who asks for none may go there"
    see_node(world, two(mode=NodeMode.CORE_MEM), {names.GPU_MEM: "32", names.GPU_CORE: "200"})
    bound(world, "by-hand", 2, core=160)
    _, _, hopeless = filtered(world, pod_object("a", 2, core=60), "n2")
    assert hopeless["n2"].startswith(
        f"the kubelet has 40 {names.GPU_CORE} left: pods without an allocation record"
    )
    assert filtered(world, pod_object("a", 2, core=40), "n2")[0] == ["n2"]


def test_compute_of_several_gpus_is_compared_with_the_sum_for_all() -> None:
    assert requested_by(Request(2, 30, (), gpu_count=2)) == Sums(4, 60, 0)


def test_whole_gpus_are_counted_by_number(world: World) -> None:
    see_node(world, two(mode=NodeMode.TOPOLOGY), {names.GPU_WHOLE: "1"})
    pod = pod_object("a")
    pod["spec"]["containers"][0]["resources"]["limits"] = {names.GPU_WHOLE: 2}
    request = request_of(decode_pod(pod))
    assert request is not None
    assert world.view.offers.refusal(request, "n2").startswith(f"the kubelet offers 1 {names.GPU_WHOLE} less")
    see_node(world, two(mode=NodeMode.TOPOLOGY), {names.GPU_WHOLE: "2"})
    assert filtered(world, pod, "n2")[0] == ["n2"]


async def test_a_record_below_the_request_counts_as_the_request(world: World) -> None:
    see_node(world, two(), {names.GPU_MEM: "32"})
    world.create("a", 4)
    await world.binder.bind(args("a"))
    world.see("a")
    assert not world.view.offers.any_short
    pod = world.api.pods["default/a"]
    pod["spec"]["containers"][0]["resources"]["limits"][names.GPU_MEM] = 10
    world.see("a")
    assert world.view.offers.any_short
    assert filtered(world, pod_object("b", 16), "n2")[0] == ["n2"]
    bound(world, "c", 7)
    assert filtered(world, pod_object("b", 16), "n2")[0] == []
    # It got another node in the meantime, and lost its record: the first record is forgotten.
    see_node(world, two("n3"), {names.GPU_MEM: "32"})
    world.create("c", 7, node="n3", phase="Running")
    assert filtered(world, pod_object("b", 16), "n2")[0] == ["n2"]
    world.view.remove_node("n2")
    world.view.remove_node("n3")
    assert not world.view.offers.any_short


def test_pods_may_arrive_before_their_node(world: World) -> None:
    bound(world, "by-hand", 20)
    assert not world.view.offers.any_short
    see_node(world, two(), {names.GPU_MEM: "32"})
    assert filtered(world, pod_object("a", 13), "n2")[0] == []


def test_an_invalid_amount_is_zero() -> None:
    status = {
        "metadata": {"name": "n"},
        "status": {"allocatable": {names.GPU_MEM: "many", names.GPU_CORE: "1k"}},
    }
    assert offered_by(decode_node(json.dumps(status).encode())) == Sums(0, 1000, 0)
