"""A node in mode ``dra``: usage by containers through claims, in metrics and by the watchdog."""

import re
from pathlib import Path
from typing import Any

from gpushare.nodeagent.isolation.watchdog.cgroups import Owner
from gpushare.nodeagent.isolation.watchdog.violations import GpuProcess
from tests.integration.nodeagent.conftest import World
from tests.integration.nodeagent.isolation.test_watchdog import first_gpu, process, uses, watch
from tests.integration.nodeagent.node.scripted_dra_kubelet import DraKubelet, allocated
from tests.integration.nodeagent.node.test_dra import FIRST, SECOND, host_paths, kubelet_of, put, started
from tests.integration.nodeagent.node.test_exporter import usage
from tests.integration.nodeagent.scripted_nvml import gpu

UIDS = {name: f"{number}f1c3a5e-0d6b-4c2a-9a57-0b8f2f1d7e12" for number, name in enumerate("abc")}


def container_id(pod: str, container: str) -> str:
    return (pod + container).encode().hex().ljust(64, "0")


def put_pod(world: World, name: str, claim: str, *, template: bool = False) -> None:
    """A running pod with containers ``main`` and ``side``, of which ``main`` uses the claim, as the API
    server has it.
    """
    entry = {
        "name": "gpu",
        **({"resourceClaimTemplateName": "t"} if template else {"resourceClaimName": claim}),
    }
    world.api.put_pod(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": "default", "name": name, "uid": UIDS[name]},
            "spec": {
                "nodeName": "n1",
                "resourceClaims": [entry],
                "containers": [
                    {"name": "main", "resources": {"claims": [{"name": "gpu"}]}},
                    {"name": "side"},
                ],
            },
            "status": {
                "phase": "Running",
                "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": claim}] if template else [],
                "containerStatuses": [
                    {"name": container, "containerID": f"containerd://{container_id(name, container)}"}
                    for container in ("main", "side")
                ],
            },
        }
    )


def run(world: World, pid: int, pod: str, container: str = "main") -> None:
    process(world, pid, f"/kubepods/pod{UIDS[pod]}/{container_id(pod, container)}")


def sample(world: World, name: str, **labels: str) -> float | None:
    """A metric of the agent, with these labels among its own."""
    text = world.agent.metrics_pages.exposition().decode()
    for line in re.findall(rf"^{name}{{.*}} .*$", text, re.MULTILINE):
        if all(f'{label}="{value}"' in line for label, value in labels.items()):
            return float(line.rpartition(" ")[2])
    return None


async def prepared(
    world: World, name: str, *shares: tuple[str, str, int]
) -> tuple[DraKubelet, dict[str, Any]]:
    kubelet = await started(world)
    claim = put(world, allocated(name, *shares))
    await kubelet.prepare(claim)
    return kubelet, claim


async def test_metrics_report_claims_allocations_and_their_containers_usage(world: World) -> None:
    watch(world)
    kubelet, claim = await prepared(world, "pair", (FIRST, "3Gi", 30), (SECOND, "1Gi", 0))
    put_pod(world, "a", "pair", template=True)
    run(world, 41, "a")
    uses(world, (41, 1000, 20))
    container = {"namespace": "default", "pod": "a", "container": "main", "UUID": gpu(0).uuid}
    await world.changes.until(
        lambda: sample(world, "gpushare_container_memory_used_bytes", **container) == 1000 << 20
    )
    assert sample(world, "gpushare_container_compute_used_ratio", **container) == 0.2
    assert sample(world, "gpushare_container_memory_allocated_bytes", **container) == 3 << 30
    claim_labels = {"namespace": "default", "claim": "pair"}
    for uuid, memory, compute in ((gpu(0).uuid, 3 << 30, 0.3), (gpu(1).uuid, 1 << 30, 0.0)):
        assert sample(world, "gpushare_claim_memory_allocated_bytes", **claim_labels, UUID=uuid) == memory
        assert sample(world, "gpushare_claim_compute_allocated_ratio", **claim_labels, UUID=uuid) == compute
        assert sample(world, "gpushare_gpu_memory_allocated_bytes", UUID=uuid) == memory
        assert sample(world, "gpushare_gpu_pods", UUID=uuid) == 1
    usage(host_paths(world, claim)["/run/gpushare/usage"])
    charged = {**claim_labels, "UUID": gpu(0).uuid}
    assert sample(world, "gpushare_claim_memory_charged_bytes", **charged) == 1000 * 256
    assert sample(world, "gpushare_claim_gpu_seconds_total", **charged) == 1.5
    # It is nobody's for the agent if it is seen before the pod is.
    await world.changes.until(lambda: first_gpu(world).foreign_mib == 0, "the pod's own")
    await kubelet.unprepare(claim)
    assert sample(world, "gpushare_claim_memory_allocated_bytes", **claim_labels) is None
    assert sample(world, "gpushare_gpu_memory_allocated_bytes", UUID=gpu(0).uuid) == 0


async def test_pods_that_share_a_claim_have_one_limit_and_each_gets_an_event(world: World) -> None:
    watch(world, "kill")
    killed: list[int] = []

    def end(pid: int, whose: Owner, proc: Path) -> str:
        killed.append(pid)
        return ""

    await prepared(world, "shared", (FIRST, "3Gi", 30))
    world.agent._watchdog._end = end
    for number, name in enumerate("abc"):
        put_pod(world, name, "shared")
        run(world, 41 + number, name)
    uses(world, (41, 2000, 0), (42, 1500, 0))
    await world.changes.until(lambda: len(world.api.reported("GPUMemoryKilled")) == 2, "reported")
    exceeded = world.api.reported("GPUMemoryExceeded")
    assert {one["regarding"]["name"] for one in exceeded} == {"a", "b"}, "c uses nothing"
    assert {one["note"] for one in exceeded} == {
        "ResourceClaim default/shared uses 3500 MiB of GPU 0, its share is 3072 MiB (processes 41, 42 on the node); "
        "it will be killed if this continues for 0.05 s"
    }
    assert world.api.reported("GPUMemoryKilled")[0]["note"].endswith("; killed by the node agent: 41, 42")
    assert set(killed) == {41, 42}


async def test_a_claim_is_watched_by_the_agent_that_follows(world: World) -> None:
    watch(world)
    await prepared(world, "share", (FIRST, "3Gi", 0))
    put_pod(world, "a", "share")
    await world.stop()
    run(world, 41, "a")
    uses(world, (41, 4000, 0))
    kubelet = kubelet_of(world)
    await world.start(ready=False)
    await kubelet.register()
    await world.changes.until(lambda: world.api.reported("GPUMemoryExceeded"), "reported")
    assert "ResourceClaim default/share uses 4000 MiB" in world.api.reported("GPUMemoryExceeded")[0]["note"]


async def test_containers_without_the_claim_are_unmanaged_and_claims_get_less(world: World) -> None:
    watch(world)
    await prepared(world, "share", (FIRST, "3Gi", 0))
    put_pod(world, "a", "share")
    run(world, 41, "a", "side")
    world.nvml.running = [GpuProcess(gpu(1).uuid, 41, 1000, 0, "C")]
    await world.changes.until(lambda: world.api.reported("UnmanagedGPUUsage"), "reported")

    def memory() -> str:
        (one,) = (item for (kind, _), item in world.api.objects.items() if kind == "resourceslices")
        found: str = one["spec"]["devices"][1]["capacity"]["memory"]["value"]
        return found

    await world.changes.until(lambda: memory() == f"{15360 - 1024}Mi", "a smaller device")
