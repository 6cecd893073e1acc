"""Suggestions for a pod that would fit on a cordoned node: kube-scheduler does not offer that one."""

import msgspec
import pytest

from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.objects import decode_node
from gpushare.api.quantity import MemoryUnit
from gpushare.api.taints import Taint
from gpushare.scheduler.cache.cache import NodeReader, NodeRecord
from tests.unit.scheduler.explain.test_decisions import GIB, ask_again, give
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node, pod_object

UNCORDON = "; or `kubectl uncordon a`: the node has enough capacity but is cordoned"


pytestmark = pytest.mark.usefixtures("without_nodes")


def cordon(world: World, node: NodeDevices, **labels: str) -> None:
    world.view.upsert_node(NodeRecord(node, "", cordoned=labels))


def sick(name: str) -> NodeDevices:
    node = gpu_node(name, 8 * GIB)
    return msgspec.structs.replace(
        node,
        devices=tuple(Device(0, one.uuid, one.total_mib, "", False, "GPU is lost") for one in node.devices),
    )


async def suggestion(browser: Browser, world: World, *offered: str, mem: int = 4, **spec: object) -> str:
    if "uid-waits" not in world.view.waiting:
        pod = pod_object("waits", mem)
        pod["spec"].update(spec)
        world.api.create(pod)
        world.see("waits")
    await ask_again(browser, world, "waits", *offered)
    return next(one.suggestion for one in world.decisions.waiting() if one.key == "default/waits")


async def test_next_to_a_gpu_out_of_service_the_cordoned_node_is_named(
    browser: Browser, world: World
) -> None:
    cordon(world, gpu_node("a", 8 * GIB))
    world.add_node(sick("b"))
    text = await suggestion(browser, world, "b")
    assert text.startswith("GPUs that are back in service: GPU 0 of node b: ")
    assert text.endswith(UNCORDON)

    world.add_node(gpu_node("a", 8 * GIB))
    assert "cordon" not in await suggestion(browser, world, "b")


async def test_if_a_gpu_waits_for_pods_from_before_a_mode_change_their_end_is_suggested(
    browser: Browser, world: World
) -> None:
    why = "held whole by pod default/whole until it ends"
    node = gpu_node("b", 8 * GIB)
    world.add_node(node)
    await give(browser, world, "whole", "b", 8)
    held = msgspec.structs.replace(node.devices[0], healthy=False, reason=why, kept_back=True)
    world.add_node(msgspec.structs.replace(node, devices=(held,)))
    text = await suggestion(browser, world, "b")
    assert text == (
        "termination of the pods that hold GPUs from before the node's change of mode: node b: "
        f"no GPU with 4 GiB or more is in service (GPU 0 is {why})"
    )


async def test_next_to_a_full_gpu_the_cordon_is_reported_and_no_rule_of_the_pod(
    browser: Browser, world: World
) -> None:
    cordon(world, gpu_node("a", 8 * GIB))
    world.add_node(gpu_node("b", 8 * GIB))
    await give(browser, world, "there", "b", 6)
    text = await suggestion(browser, world, "b")
    ends = "; deleting pod default/there (6 GiB) would be enough"
    assert text.endswith(f"the closest has 2 GiB free, GPU 0 of node b{ends}{UNCORDON}")
    assert "keep it off" not in text


async def test_a_cordoned_node_without_room_is_not_named(browser: Browser, world: World) -> None:
    cordon(world, gpu_node("a", 2 * GIB))
    world.add_node(sick("b"))
    assert "cordon" not in await suggestion(browser, world, "b")


@pytest.mark.parametrize(("zone", "expected"), [("east", True), ("west", False)])
async def test_a_node_excluded_by_the_selector_is_not_named(
    browser: Browser, world: World, zone: str, expected: bool
) -> None:
    cordon(world, gpu_node("a", 8 * GIB), zone="east", other="x")
    world.add_node(sick("b"))
    advice = await suggestion(browser, world, "b", nodeSelector={"zone": zone})
    assert advice.endswith(UNCORDON) is expected


async def test_node_affinity_is_left_open(browser: Browser, world: World) -> None:
    cordon(world, gpu_node("a", 8 * GIB))
    world.add_node(sick("b"))
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["east"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    advice = await suggestion(browser, world, "b", affinity={"nodeAffinity": required})
    assert advice.endswith(f"{UNCORDON}, provided that the pod's node affinity allows that node")


async def test_a_node_cordoned_since_it_was_offered_is_not_reported_to_have_room(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("a", 8 * GIB))
    await give(browser, world, "there", "a", 6)
    assert "closest" in await suggestion(browser, world, "a")
    world.view.remove_pod(world.view.bound["uid-there"])
    cordon(world, gpu_node("a", 8 * GIB))
    (one,) = world.decisions.waiting()
    assert one.suggestion == "`kubectl uncordon a`: the node has enough capacity but is cordoned"


@pytest.mark.parametrize(
    ("tolerations", "expected"),
    [
        ([], False),
        ([{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "dedicated", "value": "others", "effect": "NoSchedule"}], False),
        ([{"key": "dedicated", "value": "team", "effect": "NoSchedule"}], True),
        ([{"operator": "Exists"}], True),
    ],
)
async def test_a_node_with_another_taint_is_named_only_to_a_pod_that_tolerates_it(
    browser: Browser, world: World, tolerations: list[dict[str, str]], expected: bool
) -> None:
    taint = Taint("dedicated", "team", "NoSchedule")
    world.view.upsert_node(NodeRecord(gpu_node("a", 8 * GIB), "", cordoned={}, taints=(taint,)))
    world.add_node(sick("b"))
    assert (await suggestion(browser, world, "b", tolerations=tolerations)).endswith(UNCORDON) is expected

    cordon(world, gpu_node("a", 8 * GIB))
    assert (await suggestion(browser, world, "b")).endswith(UNCORDON)


def test_taints_are_read_from_a_cordoned_node() -> None:
    taints = [
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        {"key": "dedicated", "value": "team", "effect": "NoSchedule"},
        {"key": "soft", "effect": "PreferNoSchedule"},
        {"key": "gone", "effect": "NoExecute"},
    ]
    reader = NodeReader(unit=MemoryUnit.GIB, isolated_cap=16)
    raw = {"metadata": {"name": "n"}, "spec": {"unschedulable": True, "taints": taints}}
    assert reader.read(decode_node(raw)).taints == (
        Taint("dedicated", "team", "NoSchedule"),
        Taint("gone", "", "NoExecute"),
    )
    raw["spec"] = {"taints": taints}
    assert reader.read(decode_node(raw)).taints == ()


def test_the_cordon_is_read_from_the_node() -> None:
    raw = {"metadata": {"name": "n", "labels": {"zone": "east"}}, "spec": {"unschedulable": True}}
    reader = NodeReader(unit=MemoryUnit.GIB, isolated_cap=16)
    assert reader.read(decode_node(raw)).cordoned == {"zone": "east"}
    assert reader.read(decode_node({"metadata": {"name": "n"}})).cordoned is None


async def test_a_node_that_is_gone_is_not_named(browser: Browser, world: World) -> None:
    cordon(world, gpu_node("a", 8 * GIB))
    world.add_node(sick("b"))
    world.view.remove_node("a")
    assert "cordon" not in await suggestion(browser, world, "b")
