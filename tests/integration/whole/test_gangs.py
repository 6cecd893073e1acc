"""Gangs through the whole playground: together or not at all, and never two halves."""

import pytest

from gpushare.api import names
from tests.integration.whole.cluster import Json, is_running, node_of, waits_because
from tests.integration.whole.world import World, gpu_pod, shared_node

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: 15 GiB on each of four GPUs, and 16 on one.
NODES = (shared_node("four", "core-mem-4"), shared_node("single", "v100-16384"))


def member(name: str, gang: str, least: int, units: int = 8) -> Json:
    labels = {names.LABEL_GANG_NAME: gang, names.LABEL_GANG_LEAST: str(least)}
    return gpu_pod(name, units, labels=labels)


async def all_wait(cluster: World, reason: str, *pod_names: str) -> None:
    await cluster.pods.until(
        lambda: all(reason in waits_because(cluster.pod(name)) for name in pod_names),
        f"{pod_names} wait because {reason}",
        detail=lambda: {name: waits_because(cluster.pod(name)) for name in pod_names},
    )


async def test_pods_wait_for_the_last_of_their_gang_and_run_together(cluster: World) -> None:
    await cluster.create(member("a-0", "a", 3), member("a-1", "a", 3))
    # A pod that is scheduled before the other one is known is counted alone; it is retried when the last
    # one arrives.
    await all_wait(cluster, "gang default/a needs 3 pods together: there ", "a-0", "a-1")
    assert (await cluster.metrics())["memory_allocated_bytes"] == 0
    await cluster.create(member("a-2", "a", 3))
    await cluster.run_all("a-0", "a-1", "a-2")
    await cluster.delete_all()


async def test_of_two_gangs_that_only_fit_one_at_a_time_one_runs_and_the_other_follows(
    cluster: World,
) -> None:
    # Each of five GPUs holds one pod of 8, except that one of 16 GiB holds two; the second of them would
    # be a part of a gang.
    first = [f"x-{number}" for number in range(4)]
    second = [f"y-{number}" for number in range(4)]
    await cluster.create(
        *(member(name, "x", 4) for name in first), *(member(name, "y", 4) for name in second)
    )

    def running() -> list[list[str]]:
        return [[name for name in part if is_running(cluster.pod(name))] for part in (first, second)]

    await cluster.pods.until(lambda: sorted(map(len, running())) == [0, 4], "one gang runs", detail=running)
    gone, pending = (first, second) if running()[0] else (second, first)
    assert not any(node_of(cluster.pod(name)) for name in pending)
    await all_wait(cluster, "pods at once and there is room for", *pending)
    await cluster.delete(*gone)
    await cluster.run_all(*pending)
    await cluster.delete_all()


async def test_a_gang_that_is_too_large_leaves_its_memory_to_others(cluster: World) -> None:
    many = [f"z-{number}" for number in range(7)]
    await cluster.create(*(member(name, "z", 7) for name in many))
    await all_wait(cluster, "gang default/z needs room for 7 pods at once and there is room for 6", *many)
    await cluster.create(*(gpu_pod(f"other-{number}", 8) for number in range(6)))
    await cluster.run_all(*(f"other-{number}" for number in range(6)))
    assert not any(node_of(cluster.pod(name)) for name in many)
    await cluster.delete_all()
