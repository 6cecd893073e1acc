"""For a pod whose containers have different GPUs it is shown which has which; for all others nothing is added."""

import re
from typing import Any

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.allocation.allocation import Allocation, share_of
from gpushare.api.allocation.annotations import _record
from gpushare.api.node.device import Device
from gpushare.api.node.enforcement_text import not_held_text
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Pod
from gpushare.api.quantity import MemoryUnit
from gpushare.inspect.color import Paint
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.live_usage import RealUse
from gpushare.inspect.view_result import Shown
from gpushare.inspect.views.explain import why
from gpushare.inspect.views.json_output import encoded
from gpushare.inspect.views.node_details import details
from gpushare.inspect.views.pods import Rows, _rows, pods
from tests.unit.inspect.clusters import device, node, placed, pod, seen
from tests.unit.inspect.test_views import Answers, both, cluster, options
from tests.unit.scheduler.explain.test_decisions import ask_again, bind
from tests.unit.scheduler.server.test_app import Browser
from tests.unit.scheduler.world import World, gpu_node, pod_object

GIB = 1024
PLAIN = Paint()
THERE = gpu_node("n1", 8 * GIB, 8 * GIB, 8 * GIB, 8 * GIB)


async def bound(labels: dict[str, str], *containers: tuple[str, dict[str, Any]]) -> World:
    """The pod ``pod`` is queried and bound to a node with four GPUs."""
    world = World()
    browser = Browser(world)
    world.add_node(THERE)
    made = pod_object("pod", 1, labels=labels)
    made["spec"]["containers"] = [
        {"name": name, "resources": {"limits": limits}} for name, limits in containers
    ]
    world.api.create(made)
    world.see("pod")
    await ask_again(browser, world, "pod", "n1")
    assert not await bind(browser, "pod", "n1")
    world.see("pod")
    return world


async def pair() -> World:
    limits = {names.GPU_MEM: 5}
    return await bound({names.LABEL_POD_APART: "true"}, ("actor", limits), ("learner", limits))


def of_node(*pods_: Pod) -> list[list[str]]:
    """The lines of ``-d`` from the heading of the pods on, in cells."""
    there = node("n", "10.0.0.1", [device(0), device(1)])
    lines = details(seen([there], pods_)).splitlines()
    return [re.split(" {2,}", line) for line in lines[3 : 4 + len(pods_)]]


def with_gpus(name: str, devices: dict[str, list[Device]]) -> Pod:
    """A pod whose containers have 2 units each of some GPUs of the node ``n``."""
    made = pod(name, "n", 2)
    its = {container: tuple(share_of(one, 15, 2, 0) for one in some) for container, some in devices.items()}
    every = tuple(dict.fromkeys(share for shares in its.values() for share in shares))
    assert made.metadata.annotations is not None
    made.metadata.annotations[names.ANN_SHARE] = _record(Allocation(every, its, MemoryUnit.GIB))
    return made


async def test_why_shows_which_container_has_which_gpu() -> None:
    world = await pair()

    text = why(cluster(world), options("--why", "pod"), PLAIN).text
    document = both(lambda form: why(cluster(world), options("--why", "pod", "-o", form), PLAIN))

    assert (
        "Holds on node n1:\n"
        "  GPU 0  5120 MiB  5 units  GPU-n1-0  container actor\n"
        "  GPU 1  5120 MiB  5 units  GPU-n1-1  container learner\n" in text
    )
    assert [(one["index"], one["containers"]) for one in document["record"]["holds"]["gpus"]] == [
        (0, ["actor"]),
        (1, ["learner"]),
    ]


async def test_why_shows_on_which_node_shares_are_not_enforced() -> None:
    limits = {names.GPU_MEM: 4}
    world = await bound({}, ("main", limits))

    def lines_of_why() -> tuple[str, str]:
        document = both(lambda form: why(cluster(world), options("--why", "pod", "-o", form), PLAIN))
        text = why(cluster(world), options("--why", "pod"), PLAIN).text
        return document["record"]["holds"]["notHeld"], text

    trusts = "mode share does not enforce shares"
    assert lines_of_why()[0] == trusts
    # It may have its share from a time at which the node enforced it: then nothing is reported.
    assert f"Node n1 does not enforce the shares of new containers: {trusts}. " in lines_of_why()[1]
    assert "It is not held" not in lines_of_why()[1]
    held = msgspec.structs.replace(THERE, mode=NodeMode.CGPU, isolation="preload (by CDI): mode cgpu")
    world.add_node(held)
    assert (lines_of_why()[0], "not enforce" in lines_of_why()[1]) == ("", False)


@pytest.mark.parametrize(
    ("mode", "isolation", "expected"),
    [
        (NodeMode.SHARE, "", "mode share does not enforce shares"),
        (NodeMode.CGPU, "none: libraries are switched off", "libraries are switched off"),
        (NodeMode.CGPU, "preload (by CDI): mode cgpu", ""),
        (NodeMode.CGPU, "", ""),
    ],
)
def test_without_the_scheduler_annotations_of_pod_and_node_show_it(
    mode: NodeMode, isolation: str, expected: str
) -> None:
    there = node("n", "10.0.0.1", [device(0)], mode=mode)
    assert there.metadata.annotations is not None
    there.metadata.annotations[names.ANN_ISOLATION] = isolation
    its = msgspec.to_builtins(placed("pod", "n", device(0), 2))
    known: dict[str, Any] = {
        "/api/v1/namespaces/default/pods/pod": its,
        "/api/v1/nodes/n": msgspec.to_builtins(there),
    }

    def explained(form: str | None = None) -> Shown:
        return why(Answers(**known), options("--why", "pod", *(("-o", form) if form else ())), PLAIN)

    assert both(explained)["pod"].get("notHeld", "") == expected
    line = f"\n\n{not_held_text('n', expected)}\n"
    assert (line in explained().text, "not enforce the shares" in explained().text) == (
        bool(expected),
        bool(expected),
    )
    for answer in ({"metadata": "broken"}, "Error from server (Forbidden): no"):
        known["/api/v1/nodes/n"] = answer
        assert "not enforce the shares" not in explained().text


async def test_why_adds_nothing_if_all_containers_have_the_same_gpus() -> None:
    limits = {names.GPU_MEM: 4}
    world = await bound({names.LABEL_POD_GPU_COUNT: "2"}, ("actor", limits), ("learner", limits))

    text = why(cluster(world), options("--why", "pod"), PLAIN).text
    document = both(lambda form: why(cluster(world), options("--why", "pod", "-o", form), PLAIN))

    assert "  GPU 1  4096 MiB  4 units  GPU-n1-1\n" in text
    assert ["containers" in one for one in document["record"]["holds"]["gpus"]] == [False, False]


async def test_pods_and_nodes_show_which_container_has_which_gpu_if_they_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = [device(0), device(1)]
    apart = with_gpus("apart", {"actor": gpus[:1], "learner": gpus[1:]})
    uniform = with_gpus("alike", {"actor": gpus, "learner": gpus})

    def outputs(*pods_: Pod) -> tuple[list[str], Any, Any]:
        cluster_ = seen([node("n", "10.0.0.1", gpus)], pods_)
        use = RealUse({}, {}, frozenset({"n"}))
        monkeypatch.setattr(
            "gpushare.inspect.views.pods.rows", lambda *_: Rows(_rows(cluster_, use, None), ())
        )

        def written(form: str) -> Shown:
            return pods(Kubectl(), options("--pods", "-o", form), PLAIN)

        table = pods(Kubectl(), options("--pods"), PLAIN).text.splitlines()
        document = both(lambda form: encoded(cluster_, "json" if form == "json" else "yaml"))
        return table, both(written)["pods"], document["nodes"][0]["pods"]

    table, rows, of_node = outputs(apart, uniform)
    assert [line.split("  ")[-1].strip() for line in table] == [
        "CONTAINERS",
        *("actor", "learner"),
        *("0", "0"),  # the use of each ends the lines of the other
    ]
    assert [one.get("containers") for one in rows] == [["actor"], ["learner"], None, None]
    assert {pod["name"]: [one.get("containers") for one in pod["shares"]] for pod in of_node} == {
        "apart": [["actor"], ["learner"]],
        "alike": [None, None],
    }
    table, rows, of_node = outputs(uniform)
    assert table[0].endswith("USED(%)")


def test_details_show_which_container_has_which_gpu_only_for_such_a_pod() -> None:
    gpus = [device(0), device(1)]
    apart = with_gpus("apart", {"actor": gpus[:1], "learner": gpus[1:]})
    some = with_gpus("some", {"main": gpus, "sidecar": gpus[1:]})
    uniform = with_gpus("alike", {"actor": gpus, "learner": gpus})
    heading = ["NAME", "NAMESPACE", "GPU0(Allocated)", "GPU1(Allocated)"]

    assert of_node(apart, some, uniform) == [
        [*heading, "CONTAINERS"],
        ["apart", "default", "2", "2", "GPU0 actor; GPU1 learner"],
        ["some", "default", "2", "2", "GPU0 main; GPU1 main, sidecar"],
        ["alike", "default", "2", "2"],
    ]
    assert of_node(uniform) == [heading, ["alike", "default", "2", "2"]]
