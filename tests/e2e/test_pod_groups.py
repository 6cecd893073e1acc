"""PodGroups, the gangs of kube-scheduler itself, with its own logic of gangs and our filter: together or not at all."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpushare_playground.cluster.real import RealControl
from tests.e2e.cluster import build
from tests.integration.whole.seen import Json, is_running, node_of, waits_because
from tests.integration.whole.world import CHECKOUT, World, gpu_pod, shared_node, until, world

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "helm")
#: 15 GiB on each of four GPUs, and 16 on one: five pods of 8, and a sixth beside the fifth.
NODES = (shared_node("four", "core-mem-4"), shared_node("single", "v100-16384"))
GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
_GATE = "--feature-gates=GenericWorkload=true"
FLAGS = {
    "kube-apiserver": [_GATE, "--runtime-config=scheduling.k8s.io/v1beta1=true"],
    "kube-controller-manager": [_GATE],
    "kube-scheduler": [_GATE],
}


@pytest.fixture(scope="module")
def programs(k8s: str) -> Path:
    if tuple(map(int, k8s.split("."))) < (1, 37):
        pytest.skip("PodGroups are served from Kubernetes 1.37 on")
    return build(k8s, COMPONENTS)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cluster(programs: Path) -> AsyncIterator[World]:
    control = RealControl(programs, chart=CHECKOUT / "charts" / "ack-ai-installer", flags=FLAGS)
    async with world(*NODES, control=control) as made:
        await made.offers("four", 60)
        await made.offers("single", 16)
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def seen(cluster: World) -> AsyncIterator[World]:
    yield cluster
    await cluster.delete_all()
    cluster.assert_sound()


async def group(seen: World, name: str, least: int) -> None:
    """Create the PodGroup."""
    policy = {"gang": {"minCount": least}}
    body = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": policy},
    }
    await seen.session.request("POST", GROUPS, body=json.dumps(body).encode())


def members(name: str, count: int, units: int = 8) -> list[Json]:
    pods = [gpu_pod(f"{name}-{number}", units) for number in range(count)]
    for pod in pods:
        pod["spec"]["schedulingGroup"] = {"podGroupName": name}
    return pods


def names_of(name: str, count: int) -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


async def nothing_is_held(seen: World) -> None:
    async def free() -> bool:
        return (await seen.metrics())["memory_allocated_bytes"] == 0

    await until(free, "nothing is allocated or reserved")


async def test_a_group_that_fits_runs_whole(seen: World) -> None:
    await group(seen, "fits", 6)
    await seen.create(*members("fits", 6))
    await seen.run_all(*names_of("fits", 6))


async def test_a_group_that_does_not_fit_holds_nothing_and_runs_once_there_is_room(seen: World) -> None:
    await seen.create(gpu_pod("first", 15))
    await seen.run_all("first")
    await group(seen, "large", 6)
    large = names_of("large", 6)
    await seen.create(*members("large", 6))
    await seen.pods.until(
        lambda: all(waits_because(seen.pod(name)) for name in large), "kube-scheduler refused the group"
    )

    async def only_the_first_is_held() -> bool:
        return (await seen.metrics())["allocated_pods"] == 1

    await until(only_the_first_is_held, "the group holds nothing")
    assert not any(node_of(seen.pod(name)) for name in large)
    # What it does not hold others get.
    await seen.create(*(gpu_pod(f"other-{number}", 8) for number in range(3)))
    await seen.run_all(*(f"other-{number}" for number in range(3)))
    assert not any(node_of(seen.pod(name)) for name in large)
    await seen.delete("first", *(f"other-{number}" for number in range(3)))
    await seen.run_all(*large)


async def test_of_two_groups_that_compete_one_runs_whole_and_the_other_follows(seen: World) -> None:
    for name in ("x", "y"):
        await group(seen, name, 4)
    await seen.create(*members("x", 4), *members("y", 4))
    sides = (names_of("x", 4), names_of("y", 4))

    def running() -> list[list[str]]:
        return [[name for name in side if is_running(seen.pod(name))] for side in sides]

    await seen.pods.until(lambda: sorted(map(len, running())) == [0, 4], "one group runs", tell=running)
    gone, kept = sides if running()[0] else sides[::-1]
    assert not any(node_of(seen.pod(name)) for name in kept)
    await seen.delete(*gone)
    await seen.run_all(*kept)


async def test_a_group_for_which_cpu_is_lacking_gives_its_shares_back(seen: World) -> None:
    """kube-scheduler's own filters refuse the last pod, and no extender is asked about it."""
    await group(seen, "busy", 3)
    pods = members("busy", 3)
    pods[2]["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1000"}
    await seen.create(*pods)
    await seen.pods.until(
        lambda: all(waits_because(seen.pod(name)) for name in names_of("busy", 3)), "the group is refused"
    )
    await nothing_is_held(seen)
    assert not any(node_of(seen.pod(name)) for name in names_of("busy", 3))
