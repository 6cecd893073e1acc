"""Which GPU of a node gets a pod, in the playground: a cordoned GPU, caps on pods, and placement by fragmentation."""

import pytest

from gpushare.api import names
from tests.integration.whole.cluster import is_running, record_of, waits_because
from tests.integration.whole.world import World, gpu_pod, shared_node

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: 15 units on each of four GPUs.
NODES = (shared_node("four", "core-mem-4"),)


_TRIES = 4


async def runs_on(cluster: World, name: str, units: int, index: int, *, node: str = "") -> None:
    """The pod gets that GPU, at the latest once the scheduler has processed the last change of the node."""
    found: list[list[int]] = []
    while len(found) < _TRIES:
        await cluster.create(gpu_pod(name, units, node=node))
        await cluster.run_all(name)
        found.append([share["index"] for share in record_of(cluster.pod(name))])
        if found[-1] == [index]:
            return
        await cluster.delete(name)
        await cluster.pods.until(lambda: f"default/{name}" not in cluster.pods.items, f"{name} is gone")
    pytest.fail(f"{name} came to GPUs {found}, not to {index}")


async def waits(cluster: World, name: str, units: int, reason: str) -> None:
    await cluster.create(gpu_pod(name, units))
    await cluster.pods.until(
        lambda: reason in waits_because(cluster.pod(name)),
        f"{name} waits because {reason}",
        detail=lambda: waits_because(cluster.pod(name)),
    )


async def test_a_cordoned_gpu_keeps_its_pod_and_gets_no_other(cluster: World) -> None:
    await runs_on(cluster, "stays", 3, 0)
    assert (await cluster.kubectl("annotate", "node", "four", f"{names.ANN_CORDONED}=0,2")).code == 0
    await runs_on(cluster, "next", 3, 1)
    await runs_on(cluster, "third", 15, 3)
    await waits(cluster, "large", 13, "0/1 nodes are available")
    assert is_running(cluster.pod("stays"))
    assert (await cluster.metrics())["memory_allocated_bytes"] > 0
    assert (await cluster.kubectl("annotate", "node", "four", f"{names.ANN_CORDONED}-")).code == 0
    await cluster.run_all("large")
    assert [share["index"] for share in record_of(cluster.pod("large"))] == [2]
    await runs_on(cluster, "beside", 3, 0)
    await cluster.delete_all()


async def test_a_gpu_and_a_node_get_at_most_as_many_pods_as_their_labels_allow(cluster: World) -> None:
    await cluster.label("four", {names.LABEL_MAX_PODS: "1", names.LABEL_MAX_NODE_PODS: "2"})
    await runs_on(cluster, "a", 2, 0)
    await runs_on(cluster, "b", 2, 1)
    await waits(cluster, "c", 2, "0/1 nodes are available")
    await cluster.label("four", {names.LABEL_MAX_NODE_PODS: None})
    await cluster.run_all("c")
    assert [share["index"] for share in record_of(cluster.pod("c"))] == [2]
    await cluster.label("four", {names.LABEL_MAX_PODS: None})
    await runs_on(cluster, "d", 2, 0)
    await cluster.delete_all()


async def test_by_fragmentation_the_rest_of_a_gpu_fits_the_workload_mix(cluster: World) -> None:
    await cluster.label("four", {names.LABEL_PLACEMENT: "fragmentation"})
    # The workload mix requests 8 units: four have a GPU each, the others are pending, and count all the same.
    arriving = [f"comes-{number}" for number in range(8)]
    await cluster.create(*(gpu_pod(name, 8) for name in arriving))
    await cluster.pods.until(
        lambda: (
            sum(is_running(cluster.pod(name)) for name in arriving) == 4
            and sum(bool(waits_because(cluster.pod(name))) for name in arriving) == 4
        ),
        "as many run as there are GPUs, and the others were asked about",
    )
    await cluster.delete_all()
    await runs_on(cluster, "five", 5, 0)
    # Next to it 7 units would be left, which would be of no use; an empty GPU still has space for one of
    # 8 next to it.
    await runs_on(cluster, "three", 3, 1)
    await cluster.label("four", {names.LABEL_PLACEMENT: None})
    await runs_on(cluster, "tight", 3, 0)
