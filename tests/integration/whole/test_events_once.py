"""One fault is one event, whichever component sees it and however often that restarts, in ``kubectl get events``."""

import signal
from collections import Counter
from dataclasses import replace

import pytest

from gpushare.api import names
from gpushare_playground import gpus
from tests.integration.whole.seen import Json, annotations_of
from tests.integration.whole.world import World, gpu_pod, shared_node, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

MISTAKES = ["InvalidGPULabel", "UnknownGPUMode"]
# Labelled, so that no other test shares the cluster: events of nodes are counted here.
NODES = (shared_node("four", "core-mem-4", "share", ("test", "events")), shared_node("single", "v100-16384"))


async def of_node(seen: World, node: str) -> list[str]:
    """The reasons of the node's events that are ours, as kubectl shows them, sorted: their times are whole seconds."""
    ran = await seen.kubectl(
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


def condition(seen: World, node: str) -> Json:
    found = seen.nodes.items[node]["status"].get("conditions") or []
    return next((one for one in found if one["type"] == names.CONDITION_READY), {})


async def says(seen: World, node: str, status: str, reason: str) -> str:
    """Wait for the node's condition; its message."""
    await seen.nodes.until(
        lambda: (
            (condition(seen, node).get("status"), condition(seen, node).get("reason")) == (status, reason)
        ),
        f"{node} says {status} {reason}",
        tell=lambda: condition(seen, node),
    )
    return str(condition(seen, node)["message"])


async def events_are(seen: World, node: str, *reasons: str) -> None:
    async def reached() -> bool:
        return await of_node(seen, node) == sorted(reasons)

    await until(reached, f"{node} has just these events: {reasons}", tell=lambda: seen.events_of(node))


async def killed(seen: World, node: str, offers: int) -> None:
    """The node's agent and the scheduler by SIGKILL; both start again."""
    seen.cluster.kill(f"node-agent {node}")
    await seen.offers(node, 0)
    await seen.offers(node, offers)
    seen.cluster.kill("extender")
    await seen.cluster.extender_ready()


async def test_a_lost_gpu_is_one_event_of_its_node_also_after_everybody_was_killed(seen: World) -> None:
    await seen.create(gpu_pod("waits", 16, node="four"))
    file = seen.cluster.gpu_file("four")
    good = seen.cluster.gpus_of("four")
    gpus.write(file, replace(good, gpus=(good.gpus[0], replace(good.gpus[1], fault="lost"), *good.gpus[2:])))
    await events_are(seen, "four", "GPUUnhealthy")
    assert (await says(seen, "four", "True", "SomeGPUsUnhealthy")).startswith("GPU 1: GPU is lost; mode ")
    await seen.offers("four", 45)
    # A pending pod gets its own event.
    await seen.event("waits", "GPUSchedulingPending")

    for _ in range(2):
        await killed(seen, "four", 45)
        assert "GPU is lost" in annotations_of(seen.nodes.items["four"])[names.ANN_DEVICES], (
            "it stays described"
        )
        await says(seen, "four", "True", "SomeGPUsUnhealthy")
    await events_are(seen, "four", "GPUUnhealthy")

    # Recovered while no agent runs: the next one reports it. A running one might be killed before it reports.
    seen.cluster.parts["node-agent four"].kill(signal.SIGSTOP)
    gpus.write(file, good)
    await killed(seen, "four", 60)
    await events_are(seen, "four", "GPUUnhealthy", "GPURecovered")
    gpus.write(file, replace(good, gpus=(good.gpus[0], replace(good.gpus[1], fault="lost"), *good.gpus[2:])))
    await events_are(seen, "four", "GPUUnhealthy", "GPURecovered", "GPUUnhealthy")
    gpus.write(file, good)
    await events_are(seen, "four", "GPUUnhealthy", "GPURecovered", "GPUUnhealthy", "GPURecovered")
    reasons = [one for one in seen.events_of("waits") if one.startswith("GPUSchedulingPending")]
    assert len(reasons) == len(set(reasons)), "once for each kind of reason"
    await seen.delete_all()


async def test_a_mistake_in_a_label_is_one_event_of_the_component_that_sees_it_first(seen: World) -> None:
    before = await of_node(seen, "single")
    await seen.label("single", {names.LABEL_MODE: "shrae", names.LABEL_PLACEMENT: "sprad"})
    await events_are(seen, "single", *before, *MISTAKES)
    note = await says(seen, "single", "False", "UnknownGPUMode")
    assert note.endswith("; until then the node shares no GPU")
    await seen.events.until(
        lambda: f"UnknownGPUMode: {note}" in seen.events_of("single"), "the event says the same"
    )
    for part in ("node-agent single", "extender"):
        seen.cluster.kill(part)
    await seen.cluster.extender_ready()
    await seen.label("single", {names.LABEL_MODE: "share", names.LABEL_PLACEMENT: None})
    await seen.offers("single", 16)
    await says(seen, "single", "True", "Sharing")
    assert new_of(await of_node(seen, "single"), before) == MISTAKES


async def test_what_went_on_left_no_trace_of_a_fault(seen: World) -> None:
    seen.assert_sound()
