"""``kubectl inspect cgpu --why`` and ``--pending`` through the whole playground: they report what happened."""

import json

import pytest

from gpushare.api import names
from gpushare.kube.client.session import MERGE_PATCH
from gpushare_playground.cluster.embedded import EmbeddedControl
from tests.integration.whole.cluster import Json, node_of, record_of, waits_because
from tests.integration.whole.world import PODS, World, gpu_pod, shared_node

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: 15 GiB on each of four GPUs, and 16 on one.
NODES = (shared_node("four", "core-mem-4"), shared_node("single", "v100-16384"))


async def why(cluster: World, pod: str, *flags: str) -> Json:
    ran = await cluster.kubectl("inspect", "cgpu", "--why", pod, "-o", "json", *flags)
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out))


async def refused(cluster: World, name: str) -> None:
    await cluster.pods.until(lambda: bool(waits_because(cluster.pod(name))), f"{name} was refused")


async def test_a_bound_pod_is_explained_with_its_gpu_and_the_reason_for_it(cluster: World) -> None:
    await cluster.create(gpu_pod("second", 16))
    await cluster.run_all("second")

    document = await why(cluster, "second", "-d")
    text = (await cluster.kubectl("inspect", "cgpu", "--why", "second", "-d")).out

    if not isinstance(cluster.playground.control, EmbeddedControl):
        assert document["source"] == "annotations"  # a real API server forwards nothing to loopback
        return
    record = document["record"]
    assert document["source"] == "scheduler"
    assert record["state"] == "bound"
    assert record["holds"]["node"] == node_of(cluster.pod("second")) == "single"
    chosen = [gpu["index"] for gpu in record["choice"]["gpus"] if gpu["chosen"]]
    assert chosen == [one["index"] for one in record_of(cluster.pod("second"))]
    assert {one["node"]: one["reason"] for one in record["nodes"]} == {
        "four": "asks for 16 GiB, the largest GPU has 15 GiB",
        "single": "",
    }
    assert "default/second is on node single" in text
    assert "asks for 16 GiB, the largest GPU has 15 GiB" in text


async def test_why_a_pod_is_pending_and_what_would_let_it_in(cluster: World) -> None:
    # One on each of four GPUs, and two on the fifth: one node has 28 GiB free, 7 of them together, the
    # other none.
    there = [f"there-{number}" for number in range(6)]
    await cluster.create(*(gpu_pod(name, 8) for name in there))
    await cluster.run_all(*there)
    labels = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "3"}
    await cluster.create(gpu_pod("waits", 9), gpu_pod("large", 99), gpu_pod("gang", 2, labels=labels))
    await refused(cluster, "large")
    await refused(cluster, "waits")
    await refused(cluster, "gang")

    ran = await cluster.kubectl("inspect", "cgpu", "--pending", "-o", "json")
    assert ran.code == 0, ran.err
    listed = {one["key"]: one for one in json.loads(ran.out)["waiting"]}
    assert set(listed) == {"default/waits", "default/large", "default/gang"}
    table = (await cluster.kubectl("inspect", "cgpu", "--pending")).out
    assert "default    waits" in table

    if not isinstance(cluster.playground.control, EmbeddedControl):
        assert "gang default/g needs 3 pods together" in listed["default/gang"]["reason"]
        return
    assert listed["default/large"]["category"] == "size"
    assert listed["default/large"]["reason"].startswith("none of 2 nodes takes it; 1 node: asks for 99 GiB")
    assert listed["default/waits"]["category"] == "memory"
    reason = listed["default/waits"]["reason"]
    assert reason.startswith("none of 2 nodes takes it: ")
    assert "no single GPU has 9 GiB free" in reason
    assert "node four has that much in total, on several GPUs" in listed["default/waits"]["suggestion"]
    assert listed["default/gang"]["suggestion"] == "2 more pods of gang default/g: 1 of 3 is there"
    document = await why(cluster, "waits")
    assert document["record"]["waiting"]["reason"] == listed["default/waits"]["reason"]
    assert (document["record"]["answer"]["nodes"], document["record"]["answer"]["fits"]) == (2, 0)

    await cluster.delete(there[0], there[1])
    await cluster.run_all("waits")
    assert (await why(cluster, "waits"))["record"]["holds"]["node"] == node_of(cluster.pod("waits"))


async def waiting(cluster: World, name: str) -> Json:
    return dict((await why(cluster, name))["record"]["waiting"])


async def test_a_restarted_scheduler_reports_what_it_cannot_know(cluster: World) -> None:
    await cluster.create(gpu_pod("before", 2))
    await cluster.run_all("before")
    cluster.playground.kill("extender")
    await cluster.playground.extender_ready()

    ran = await cluster.kubectl("inspect", "cgpu", "--why", "before")

    assert ran.code == 0, ran.err
    assert f"default/before is on node {node_of(cluster.pod('before'))}" in ran.out
    if isinstance(cluster.playground.control, EmbeddedControl):
        assert "the pod was bound before this scheduler led: of that decision there is" in ran.out


async def test_pods_that_kube_scheduler_never_sends_get_an_event_and_an_explanation(cluster: World) -> None:
    selects, gated, lost = (gpu_pod(name, 2) for name in ("selects", "gated", "lost"))
    selects["spec"]["nodeSelector"] = {"disk": "fast"}
    gated["spec"]["schedulingGates"] = [{"name": "example.com/later"}]
    lost["spec"]["schedulerName"] = "absent"
    # One that goes: since then the scheduler knows who asks.
    await cluster.create(gpu_pod("goes", 2), selects, gated, lost)
    await cluster.run_all("goes")

    messages = {
        "selects": (
            "didn't match Pod's node affinity/selector",
            "a node with what its nodeSelector wants, disk=fast: ",
        ),
        "gated": ("scheduling gates block it: example.com/later", "their removal"),
        "lost": ("none seems to run for schedulerName absent", "the pod recreated with schedulerName "),
    }
    notes = {
        name: await cluster.event(name, "GPUSchedulingPending: waits for aliyun.com/gpu-mem: 2: ", *parts)
        for name, parts in messages.items()
    }

    if isinstance(cluster.playground.control, EmbeddedControl):
        ran = await cluster.kubectl("inspect", "cgpu", "--pending", "-o", "json")
        listed = {one["key"].partition("/")[2]: one for one in json.loads(ran.out)["waiting"]}
        assert {name: one["category"] for name, one in listed.items()} == {
            "selects": "rules",
            "gated": "gates",
            "lost": "unserved",
        }
        for name, note in notes.items():
            record = (await why(cluster, name))["record"]["waiting"]
            assert record == listed[name]
            assert note.endswith(f"{record['reason']}. What would help: {record['suggestion']}")

    # The suggestion helps.
    body = b'{"spec":{"schedulingGates":null}}'
    await cluster.session.request("PATCH", f"{PODS}/gated", body=body, content_type=MERGE_PATCH)
    await cluster.label("four", {"disk": "fast"})
    await cluster.run_all("gated", "selects")
    await cluster.label("four", {"disk": None})
    assert sum("GPUSchedulingPending" in one for one in cluster.events_of("selects")) == 1
