"""One fault is one event, whichever component detects it and however often that restarts, in ``kubectl get
events``.
"""

import signal
from collections import Counter
from dataclasses import replace

import pytest

from gpushare.api import names
from gpushare_playground import gpus
from tests.integration.whole.cluster import Json, annotations_of
from tests.integration.whole.world import World, gpu_pod, shared_node, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

MISTAKES = ["InvalidGPULabel", "UnknownGPUMode"]
# Labelled, so that no other test shares the cluster: events of nodes are counted here.
NODES = (shared_node("four", "core-mem-4", "share", ("test", "events")), shared_node("single", "v100-16384"))


async def of_node(cluster: World, node: str) -> list[str]:
    """The reasons of the node's events that are ours, as kubectl shows them, sorted, since their times are
    whole seconds.
    """
    ran = await cluster.kubectl(
        "get",
        "events",
        f"--field-selector=involvedObject.kind=Node,involvedObject.name={node}",
        "-o=custom-columns=R:.reason,C:.reportingComponent",
        "--no-headers",
    )
    assert ran.code == 0, ran.err
    rows = [line.split() for line in ran.out.splitlines() if "gpushare.dev/" in line]
    return sorted(reason for reason, _ in rows)


def new_of(now: list[str], before: list[str]) -> list[str]:
    """Those of ``now`` that were not there ``before``."""
    return sorted((Counter(now) - Counter(before)).elements())


def condition(cluster: World, node: str) -> Json:
    found = cluster.nodes.items[node]["status"].get("conditions") or []
    return next((one for one in found if one["type"] == names.CONDITION_READY), {})


async def condition_message(cluster: World, node: str, status: str, reason: str) -> str:
    """Wait for the node's condition; returns its message."""
    await cluster.nodes.until(
        lambda: (
            (condition(cluster, node).get("status"), condition(cluster, node).get("reason"))
            == (status, reason)
        ),
        f"{node} says {status} {reason}",
        detail=lambda: condition(cluster, node),
    )
    return str(condition(cluster, node)["message"])


async def events_are(cluster: World, node: str, *reasons: str) -> None:
    async def reached() -> bool:
        return await of_node(cluster, node) == sorted(reasons)

    await until(reached, f"{node} has just these events: {reasons}", detail=lambda: cluster.events_of(node))


def registrations(cluster: World, node: str) -> int:
    """How often agents of the node have registered with its kubelet."""
    return cluster.logs()[f"node-agent-{node}"].count(f"{names.GPU_MEM} is registered with the kubelet")


async def killed(cluster: World, node: str, offers: int) -> None:
    """Kill the node's agent and the scheduler by SIGKILL; both restart."""
    before = registrations(cluster, node)
    cluster.playground.kill(f"node-agent {node}")

    async def registered_again() -> bool:
        return registrations(cluster, node) > before

    # The node need not be seen without anything to offer: the next agent may be there before its kubelet
    # has written that.
    await until(registered_again, f"the next agent of {node} has registered")
    await cluster.offers(node, offers)
    cluster.playground.kill("extender")
    await cluster.playground.extender_ready()


async def test_a_lost_gpu_is_one_event_of_its_node_also_after_all_components_were_killed(
    cluster: World,
) -> None:
    await cluster.create(gpu_pod("waits", 16, node="four"))
    file = cluster.playground.gpu_file("four")
    good = cluster.playground.gpus_of("four")
    gpus.write(file, replace(good, gpus=(good.gpus[0], replace(good.gpus[1], fault="lost"), *good.gpus[2:])))
    await events_are(cluster, "four", "GPUUnhealthy")
    assert (await condition_message(cluster, "four", "True", "SomeGPUsUnhealthy")).startswith(
        "GPU 1: GPU is lost; mode "
    )
    await cluster.offers("four", 45)
    # A pending pod gets its own event.
    await cluster.event("waits", "GPUSchedulingPending")

    for _ in range(2):
        await killed(cluster, "four", 45)
        assert "GPU is lost" in annotations_of(cluster.nodes.items["four"])[names.ANN_DEVICES], (
            "it stays described"
        )
        await condition_message(cluster, "four", "True", "SomeGPUsUnhealthy")
    await events_are(cluster, "four", "GPUUnhealthy")

    # Recovered while no agent runs: the next one reports it. A running one might be killed before it reports.
    cluster.playground.parts["node-agent four"].kill(signal.SIGSTOP)
    gpus.write(file, good)
    await killed(cluster, "four", 60)
    await events_are(cluster, "four", "GPUUnhealthy", "GPURecovered")
    gpus.write(file, replace(good, gpus=(good.gpus[0], replace(good.gpus[1], fault="lost"), *good.gpus[2:])))
    await events_are(cluster, "four", "GPUUnhealthy", "GPURecovered", "GPUUnhealthy")
    gpus.write(file, good)
    await events_are(cluster, "four", "GPUUnhealthy", "GPURecovered", "GPUUnhealthy", "GPURecovered")
    reasons = [one for one in cluster.events_of("waits") if one.startswith("GPUSchedulingPending")]
    assert len(reasons) == len(set(reasons)), "once for each kind of reason"
    await cluster.delete_all()


async def test_a_mistake_in_a_label_is_one_event_of_the_component_that_detects_it_first(
    cluster: World,
) -> None:
    before = await of_node(cluster, "single")
    await cluster.label("single", {names.LABEL_MODE: "shrae", names.LABEL_PLACEMENT: "sprad"})
    await events_are(cluster, "single", *before, *MISTAKES)
    note = await condition_message(cluster, "single", "False", "UnknownGPUMode")
    assert note.endswith("; until then the node shares no GPU")
    await cluster.events.until(
        lambda: f"UnknownGPUMode: {note}" in cluster.events_of("single"), "the event says the same"
    )
    for part in ("node-agent single", "extender"):
        cluster.playground.kill(part)
    await cluster.playground.extender_ready()
    await cluster.label("single", {names.LABEL_MODE: "share", names.LABEL_PLACEMENT: None})
    await cluster.offers("single", 16)
    await condition_message(cluster, "single", "True", "Sharing")
    assert new_of(await of_node(cluster, "single"), before) == MISTAKES


async def test_no_fault_is_left_in_the_end(cluster: World) -> None:
    cluster.assert_sound()
