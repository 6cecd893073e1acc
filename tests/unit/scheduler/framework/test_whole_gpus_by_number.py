"""Pods that count GPUs (``aliyun.com/gpu``) through filter, prioritize, bind and preempt, as bodies go over the wire."""

import json
from typing import Any

import msgspec

from gpushare.api import names
from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.node.device import NodeDevices, Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.node.topology import matrix
from gpushare.scheduler.framework.cycle import filter_nodes, prioritize_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.plugins.preemption.extender_preempt import preempt_pods
from gpushare.scheduler.server.protocol import BindingArgs, read_preemption
from tests.unit.scheduler.world import World, gpu_node, pod_object

ISLANDS = matrix(4, lambda a, b: 100 if a // 2 == b // 2 else 1)


def topology(name: str, *, near: bool = True) -> NodeDevices:
    made = gpu_node(name, *[16384] * 4, mode=NodeMode.TOPOLOGY)
    return msgspec.structs.replace(made, near=ISLANDS if near else ())


def create(world: World, name: str, gpus: int, **how: Any) -> dict[str, Any]:
    pod = pod_object(name, **how)
    pod["spec"]["containers"][0]["resources"]["limits"] = {names.GPU_WHOLE: str(gpus)}
    world.api.create(pod)
    world.see(name)
    return pod


def filter_body(pod: dict[str, Any], *nodes: str) -> bytes:
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": nodes}).encode()


async def bind(world: World, name: str, node: str) -> list[int]:
    await world.binder.bind(BindingArgs("default", name, f"uid-{name}", node))
    world.see(name)
    annotations = world.api.pods[f"default/{name}"]["metadata"]["annotations"]
    assert list(annotations) == [names.ANN_SHARE]
    allocation = read_allocation(annotations, None)
    held = world.ledger.held(f"uid-{name}")
    assert allocation is not None
    assert held is not None
    assert (held.confirmed, held.allocation) == (True, allocation)
    return [share.index for share in allocation.gpus]


async def test_the_node_with_the_nearest_gpus_and_these_gpus_are_chosen(world: World) -> None:
    for node in (topology("far", near=False), topology("near"), gpu_node("shares", 16384, 16384)):
        world.add_node(node)
    body = filter_body(create(world, "a", 2), "far", "near", "shares")
    answer = json.loads(filter_nodes(world.view, Bodies().read(body), world.framework()))
    assert answer["NodeNames"] == ["far", "near"]
    assert answer["FailedAndUnresolvableNodes"] == {
        "shares": "node offers no whole GPUs (it is in mode share; "
        "aliyun.com/gpu needs label ack.node.gpu.schedule=topology)"
    }
    points = json.loads(
        prioritize_nodes(world.view, Bodies().read(filter_body(world.api.pods["default/a"], "far", "near")))
    )
    assert points == [{"Host": "near", "Score": 10}]
    assert await bind(world, "a", "near") == [0, 1]
    create(world, "b", 2)
    assert await bind(world, "b", "near") == [2, 3]
    refused = filter_body(create(world, "c", 1), "near")
    answer = json.loads(filter_nodes(world.view, Bodies().read(refused), world.framework()))
    assert answer["FailedAndUnresolvableNodes"] == {"near": "needs a GPU completely free, but no GPU is"}


async def test_a_binding_by_another_scheduler_counts_once_its_record_is_written(world: World) -> None:
    world.add_node(topology("near"))
    pod = create(world, "theirs", 2, node="near")
    assert world.used_mib("near") == [0] * 4
    create(world, "ours", 2)
    await world.binder.bind(BindingArgs("default", "ours", "uid-ours", "near"))
    record = world.api.pods["default/ours"]["metadata"]["annotations"][names.ANN_SHARE]
    pod["metadata"]["annotations"][names.ANN_SHARE] = record.replace("near-0", "near-2").replace(
        "near-1", "near-3"
    )
    world.see("theirs")
    world.see("ours")
    assert world.used_mib("near") == [16384] * 4


def test_whole_gpus_found_bound_do_not_count_as_arrivals_of_shares(world: World) -> None:
    learned: list[object] = []
    world.ledger.arrived = learned.append  # type: ignore[method-assign]
    world.add_node(topology("near"))
    share = {"uuid": "GPU-near-0", "index": 0, "mib": 16384, "units": 16, "of": 16}
    record = {"version": 1, "unit": "1GiB", "gpus": [share], "containers": {"c": [share]}}
    create(world, "there", 1, node="near", annotations={names.ANN_SHARE: json.dumps(record)})
    assert world.used_mib("near") == [16384, 0, 0, 0]
    assert learned == []
    world.add_node(gpu_node("shares", 16384))
    of_share = json.dumps(record).replace("GPU-near-0", "GPU-shares-0")
    world.create("share", 16, node="shares", annotations={names.ANN_SHARE: of_share})
    assert len(learned) == 1


async def test_kube_schedulers_victims_leave_whole_gpus(world: World) -> None:
    world.add_node(topology("near"))
    for number in range(4):
        create(world, f"low-{number}", 1)
        await bind(world, f"low-{number}", "near")
    high = create(world, "high", 2, priority=100)
    # kube-scheduler counts: any two would do.
    victims = {"Pods": [{"UID": "uid-low-0"}, {"UID": "uid-low-2"}], "NumPDBViolations": 0}
    body = json.dumps({"Pod": high, "NodeNameToMetaVictims": {"near": victims}}).encode()
    answer = json.loads(
        preempt_pods(world.view, read_preemption(body), lambda uid: None, quotas=world.quotas)
    )
    found = answer["NodeNameToMetaVictims"]["near"]["Pods"]
    assert {one["UID"] for one in found} == {"uid-low-0", "uid-low-2"}


def test_placement_by_fragmentation_leaves_whole_gpus_to_nearness(world: World) -> None:
    world.add_node(msgspec.structs.replace(topology("near"), placement=Placement.FRAGMENTATION))
    create(world, "a", 2)
    request = world.view.waiting["uid-a"].request
    assert request is not None
    allocation = world.ledger.reserve("uid-a", "default/a", request, "near")
    assert [share.index for share in allocation.gpus] == [0, 1]
