"""Gangs through the whole playground: together or not at all, and never two halves."""

import json

import pytest

from gpushare.api import names
from gpushare_playground.cluster.embedded import EmbeddedControl
from tests.integration.whole.seen import Json, is_running, node_of, waits_because
from tests.integration.whole.world import World, gpu_pod, shared_node, until

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: 15 GiB on each of four GPUs, and 16 on one.
NODES = (shared_node("four", "core-mem-4"), shared_node("single", "v100-16384"))


def member(name: str, gang: str, least: int, units: int = 8) -> Json:
    labels = {names.LABEL_GANG_NAME: gang, names.LABEL_GANG_LEAST: str(least)}
    return gpu_pod(name, units, labels=labels)


async def all_wait(seen: World, words: str, *pod_names: str) -> None:
    await seen.pods.until(
        lambda: all(words in waits_because(seen.pod(name)) for name in pod_names),
        f"{pod_names} wait because {words}",
        tell=lambda: {name: waits_because(seen.pod(name)) for name in pod_names},
    )


async def test_pods_wait_for_the_last_of_their_gang_and_run_together(seen: World) -> None:
    await seen.create(member("a-0", "a", 3), member("a-1", "a", 3))
    # A pod that is scheduled before the other one is known is counted alone; it is tried again when the last has come.
    await all_wait(seen, "gang default/a needs 3 pods together: there ", "a-0", "a-1")
    assert (await seen.metrics())["memory_allocated_bytes"] == 0
    await seen.create(member("a-2", "a", 3))
    await seen.run_all("a-0", "a-1", "a-2")
    await seen.delete_all()


async def test_of_two_gangs_that_fit_only_one_at_a_time_one_runs_and_the_other_follows(seen: World) -> None:
    # Five GPUs take a pod of 8 each, and the second of them would be a part of a gang: 16 GiB take two.
    first = [f"x-{number}" for number in range(4)]
    second = [f"y-{number}" for number in range(4)]
    await seen.create(*(member(name, "x", 4) for name in first), *(member(name, "y", 4) for name in second))

    def running() -> list[list[str]]:
        return [[name for name in part if is_running(seen.pod(name))] for part in (first, second)]

    await seen.pods.until(lambda: sorted(map(len, running())) == [0, 4], "one gang runs", tell=running)
    gone, kept = (first, second) if running()[0] else (second, first)
    assert not any(node_of(seen.pod(name)) for name in kept)
    await all_wait(seen, "pods at once and there is room for", *kept)
    await seen.delete(*gone)
    await seen.run_all(*kept)
    await seen.delete_all()


async def test_a_gang_that_is_too_large_leaves_its_room_to_others(seen: World) -> None:
    many = [f"z-{number}" for number in range(7)]
    await seen.create(*(member(name, "z", 7) for name in many))
    await all_wait(seen, "gang default/z needs room for 7 pods at once and there is room for 6", *many)
    await seen.create(*(gpu_pod(f"other-{number}", 8) for number in range(6)))
    await seen.run_all(*(f"other-{number}" for number in range(6)))
    assert not any(node_of(seen.pod(name)) for name in many)
    await seen.delete_all()


async def test_who_waits_for_room_that_a_gang_keeps_learns_of_it(seen: World) -> None:
    """One member of a gang can run nowhere, for a reason of kube-scheduler's: what is kept for the other is free in every sum of pods."""
    nowhere = member("k-1", "k", 2, 1)
    nowhere["spec"]["nodeSelector"] = {"no/where": "true"}
    await seen.create(member("k-0", "k", 2, 16), nowhere)
    with_proxy = isinstance(seen.cluster.control, EmbeddedControl)
    await all_wait(
        seen, "gang default/k: 1 of 2 pods has come to be bound, room is kept for the others", "k-0"
    )
    if with_proxy:  # a real API server passes nothing on to loopback
        table = (await seen.kubectl("inspect", "cgpu")).out
        assert (
            "\nKept for gang default/k: 1 GiB on node four GPU 0, 16 GiB on node single GPU 0 (1 of 2 pods"
            in table
        )
    await seen.create(gpu_pod("waits", 16))
    await seen.pods.until(
        lambda: "room there is kept for gang default/k" in waits_because(seen.pod("waits")),
        "its reason names the gang",
        tell=lambda: waits_because(seen.pod("waits")),
    )
    if with_proxy:
        ran = await seen.kubectl("inspect", "cgpu", "--why", "waits")
        assert "; node single has room, but keeps it for gang default/k" in ran.out

    # With the gang goes what was kept for it.
    await seen.delete("k-0", "k-1")
    await seen.run_all("waits")
    assert "Kept for" not in (await seen.kubectl("inspect", "cgpu")).out
    await seen.delete_all()


async def applied(seen: World, *objects: Json) -> None:
    body = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    said: list[str] = []

    async def taken() -> bool:
        # A real API server takes no pod before its namespace has a service account.
        ran = await seen.kubectl("apply", "-f", "-", stdin=body)
        said.append(ran.text)
        return ran.code == 0

    await until(taken, "the objects are taken", tell=lambda: said[-1])


async def test_for_the_sum_of_a_gang_others_end_on_other_nodes_than_it_goes_to(seen: World) -> None:
    """Four pods of another namespace hold all 60 units that the tree has, on one node; the gang has room on the other."""
    all_of_it, half = {names.GPU_MEM: 60}, {names.GPU_MEM: 30}
    tree = {
        "apiVersion": names.QUOTA_GROUP,
        "kind": names.QUOTA_KIND,
        "metadata": {"name": "tree", "namespace": names.QUOTA_NAMESPACE},
        "spec": {
            "root": {
                "name": "root",
                "min": all_of_it,
                "max": all_of_it,
                "children": [
                    {"name": "lends", "namespaces": ["lends"], "min": half, "max": all_of_it},
                    {"name": "takes", "namespaces": ["default"], "min": half, "max": all_of_it},
                ],
            }
        },
    }
    await applied(seen, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "lends"}}, tree)
    lent = [gpu_pod(f"lent-{number}", 15, node="four") for number in range(4)]
    for pod in lent:
        pod["metadata"]["namespace"] = "lends"
    await applied(seen, *lent)

    def running() -> int:
        return sum(key.startswith("lends/") and is_running(pod) for key, pod in seen.pods.items.items())

    await seen.pods.until(lambda: running() == 4, "all that is lent is taken")
    labels = {names.LABEL_GANG_NAME: "q", names.LABEL_GANG_LEAST: "2"}
    await seen.create(*(gpu_pod(f"q-{number}", 8, node="single", labels=labels) for number in range(2)))

    await seen.run_all("q-0", "q-1")

    await seen.pods.until(lambda: running() == 2, "as many ended as its sum needed")
    await seen.kubectl("delete", "elasticquotatree", "tree", "-n", names.QUOTA_NAMESPACE)
    await seen.kubectl("delete", "pods", "--all", "-n", "lends", "--grace-period=1", "--wait=false")
    await seen.delete_all()
