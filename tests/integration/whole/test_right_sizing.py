"""A pod that uses a third of its allocation: the advice reports it, and once it is followed a pending pod fits."""

import json

import pytest

from gpushare.api import names
from tests.integration.whole.cluster import Json, is_running, waits_because
from tests.integration.whole.world import World, gpu_pod, shared_node, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

NODES = (shared_node("four", "core-mem-4"), shared_node("single", "v100-16384"))
CUDA = "registry.cn-beijing.aliyuncs.com/ai-samples/gpushare-sample:cuda-sample-11.0.3"
HELD = ("take-memory", "--piece_mib", "256", "--most_mib", "3584", "--hold_s", "3600")


def deployment(name: str, units: int) -> Json:
    pod = gpu_pod("x", units, *HELD, node="single", labels={"app": name})
    pod["spec"]["containers"][0]["image"] = CUDA
    pod["spec"]["restartPolicy"] = "Always"
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod["spec"]},
        },
    }


async def advice(cluster: World, *options: str) -> Json:
    ran = await cluster.kubectl("inspect", "cgpu", "--recommend", "-o", "json", *options)
    assert ran.code == 0, ran.text
    return dict(json.loads(ran.out))


async def test_unused_memory_is_advised_away_and_a_pending_pod_gets_it(cluster: World) -> None:
    try:
        await _advised_and_followed(cluster)
    finally:
        await cluster.kubectl("delete", "deployment", "third", "--ignore-not-found")


async def _advised_and_followed(cluster: World) -> None:
    applied = await cluster.apply(deployment("third", 12), gpu_pod("idle", 3, node="single"))
    assert applied.code == 0, applied.err
    await cluster.pods.until(lambda: sum(map(is_running, cluster.pods.items.values())) == 2, "both run")
    await cluster.create(gpu_pod("waits", 6, node="single"))
    await cluster.pods.until(lambda: waits_because(cluster.pod("waits")), "it waits")

    too_early = await advice(cluster)
    workloads = {one["name"]: one for one in too_early["workloads"]}
    assert workloads["third"]["memory"]["advisedUnits"] is None
    assert too_early["gain"]["freeMiB"] == 0

    async def enough_seen() -> Json | None:
        document = await advice(cluster, "--min-history", "4s", "--headroom", "10")
        found = {one["name"]: one for one in document["workloads"]}
        memory = found["third"]["memory"]
        return document if memory["advisedUnits"] and memory["peakMiB"] >= 3584 else None

    document = await until(enough_seen, "the agent has seen it for some seconds, with all of its memory")
    assert document["missing"] == []
    third, idle = ({one["name"]: one for one in document["workloads"]}[name] for name in ("third", "idle"))
    assert (third["kind"], third["pods"], third["podsSeen"], third["unit"]) == ("Deployment", 1, 1, "1GiB")
    assert third["memory"]["givenUnits"] == 12
    # 3.5 GiB, the context and a tenth.
    assert third["memory"]["peakMiB"] >= 3584
    assert third["memory"]["advisedUnits"] in (4, 5)
    assert third["memory"]["advisedUnits"] * 1024 >= third["memory"]["peakMiB"]
    assert (idle["memory"]["advisedUnits"], idle["note"]) == (None, "no GPU usage was recorded")
    assert document["gain"]["freeMiB"] == (12 - third["memory"]["advisedUnits"]) * 1024
    assert (document["gain"]["waiting"], document["gain"]["fitNow"], document["gain"]["fitThen"]) == (1, 0, 1)

    table = await cluster.kubectl("inspect", "cgpu", "--recommend", "--min-history=4s", "--headroom=10")
    assert "Deployment third" in table.out
    assert "Pending pods that request a share of one GPU: 1; 1 would fit then, 0 fit now." in table.out

    windowed = await advice(cluster, "--min-history", "4s", "--headroom", "10", "--window", "1h")
    assert (windowed["missing"], windowed["windowSeconds"]) == ([], 3600)
    # All samples are younger than that.
    assert windowed["from"] == document["from"] <= document["since"]
    (same,) = [one for one in windowed["workloads"] if one["name"] == "third"]
    assert same["memory"] == third["memory"]

    # The same command shows current usage next to the allocation.
    async def seen_now() -> list[Json]:
        ran = await cluster.kubectl("inspect", "cgpu", "--pods", "-o", "json")
        assert (ran.code, ran.err) == (0, "")
        found: list[Json] = json.loads(ran.out)["pods"]
        return found if any(one["usedMiB"] for one in found) else []

    now = {one["name"].partition("-")[0]: one for one in await until(seen_now, "an agent has looked")}
    assert (now["third"]["givenMiB"], now["idle"]["usedMiB"]) == (12 * 1024, 0)
    assert 3584 <= now["third"]["usedMiB"] <= third["memory"]["peakMiB"]
    top = (await cluster.kubectl("inspect", "cgpu", "--top")).out.splitlines()
    assert [line.split()[1].partition("-")[0] for line in top] == ["NAME", "third", "idle"]

    # Once followed, it keeps running, and the pending one is bound.
    applied = await cluster.apply(deployment("third", third["memory"]["advisedUnits"]))
    assert applied.code == 0, applied.err
    await cluster.run_all("waits")
    await cluster.pods.until(lambda: sum(map(is_running, cluster.pods.items.values())) == 3, "all three run")


async def test_nodes_forward_only_to_their_own_ports(cluster: World) -> None:
    port = cluster.nodes.items["four"]["metadata"]["labels"][names.LABEL_AGENT_PORT]
    healthy = await cluster.kubectl("get", "--raw", f"/api/v1/nodes/four:{port}/proxy/healthz")
    assert healthy.out == "ok\n"
    for path, message in (
        (f"/api/v1/nodes/none:{port}/proxy/healthz", "NotFound"),
        ("/api/v1/nodes/four:x/proxy/healthz", "address not allowed"),
        (f"/api/v1/nodes/four:{port}/proxy/none", "could not find the requested resource"),
        ("/api/v1/nodes/four:1/proxy/healthz", "error trying to reach service"),
    ):
        refused = await cluster.kubectl("get", "--raw", path)
        assert refused.code != 0
        assert message in refused.text
