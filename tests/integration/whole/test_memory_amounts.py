"""Requests in MiB and in percent of a GPU become units when pods are submitted, and every reader finds units."""

import json

import pytest

from gpushare.api import names
from gpushare.api.quantity import MemoryUnit
from tests.integration.whole.cluster import Json, is_running, node_of, record_of, waits_because
from tests.integration.whole.world import World, gpu_pod, shared_node

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: 16384 MiB on one GPU, and 16160 on each of four: percent refers to the smaller one, 15 units.
NODES = (shared_node("four", "core-mem-4"), shared_node("single", "v100-16384"))
MEMORY, PERCENT = names.GPU_MEMORY, names.GPU_MEMORY_PERCENT


def resources_of(pod: Json, container: str = "main") -> Json:
    """Stored limits and requests of a container, without resources that are not ours."""
    listed = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())]
    return next(dict(one["resources"]) for one in listed if one["name"] == container)


def units(amount: int) -> Json:
    return {which: {names.GPU_MEM: str(amount)} for which in ("limits", "requests")}


def mib_of(pod: Json) -> list[int]:
    """Its allocation of each of its GPUs, by its record."""
    return [share["mib"] for share in record_of(pod)]


def note(unit_mib: int, **containers: str) -> Json:
    return {"unitMib": unit_mib, "cardMib": 16160, "containers": containers}


async def test_a_deployment_in_mib_runs_in_units_and_keeps_its_own_request(cluster: World) -> None:
    spec = gpu_pod("x", None, limits={MEMORY: "6144Mi"}, node="single")["spec"]
    template = {"metadata": {"labels": {"app": "mib"}}, "spec": {**spec, "restartPolicy": "Always"}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "mib", "namespace": "default"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "mib"}}, "template": template},
    }
    try:
        assert (await cluster.apply(deployment)).code == 0
        pods = await cluster.pods.until(
            lambda: (found := [one for one in cluster.pods.items.values() if is_running(one)])[1:] and found,
            "both pods run",
        )
        for pod in pods:
            assert resources_of(pod) == units(6)
            assert mib_of(pod) == [6144]
            assert pod["spec"]["schedulerName"] == names.SCHEDULER_NAME
            assert json.loads(pod["metadata"]["annotations"][names.ANN_REQUESTED]) == note(
                1024, main="6144Mi"
            )
            described = (await cluster.kubectl("describe", "pod", pod["metadata"]["name"])).out
            assert f"{names.GPU_MEM}:  6" in described
            assert f"{MEMORY}:" not in described
        written = json.loads((await cluster.kubectl("get", "deployment", "mib", "-o", "json")).out)
        assert written["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {MEMORY: "6Gi"}
        shown = (await cluster.kubectl("inspect", "cgpu", "single")).out
        assert "12/16" in shown
    finally:
        await cluster.kubectl("delete", "deployment", "mib")


async def test_when_the_unit_changes_no_pod_gets_less_than_it_requested(cluster: World) -> None:
    """20 units of 1 GiB fit on no GPU; 20 units of 128 MiB would, and are not what was requested."""
    large = gpu_pod("large", None, limits={MEMORY: "20Gi"}, node="single")
    await cluster.create(large, gpu_pod("there", None, limits={MEMORY: "6Gi"}, node="single"))
    await cluster.run_all("there")
    try:
        await cluster.playground.set_unit(MemoryUnit.MIB_128)
        await cluster.offers("single", 128)
        reason = "the request for 20 GiB was counted in units of 1 GiB when it was submitted, the node counts in 128 MiB"
        await cluster.pods.until(
            lambda: reason in waits_because(cluster.pod("large")),
            "it waits, and says so",
            detail=lambda: waits_because(cluster.pod("large")),
        )
        await cluster.create(gpu_pod("new", None, limits={MEMORY: "6Gi"}, node="single"))
        await cluster.run_all("new")
        assert resources_of(cluster.pod("new")) == units(48)
        assert mib_of(cluster.pod("there")) == mib_of(cluster.pod("new")) == [6144]
        assert node_of(cluster.pod("large")) == ""
    finally:
        await cluster.playground.set_unit(MemoryUnit.GIB)
        await cluster.offers("single", 16)
