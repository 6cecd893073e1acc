"""PodGroups, the gangs of kube-scheduler itself, with its own gang logic and our filter: together or not at all."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpushare_playground.cluster.real import RealControl
from tests.e2e.cluster import build
from tests.integration.whole.cluster import Json, is_running, node_of, waits_because
from tests.integration.whole.world import CHECKOUT, World, gpu_pod, shared_node, until, world

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "helm")
#: 15 GiB on each of four GPUs, and 16 on one: five pods of 8, and a sixth next to the fifth.
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
async def gangs(cluster: World) -> AsyncIterator[World]:
    yield cluster
    await cluster.delete_all()
    cluster.assert_sound()


async def group(gangs: World, name: str, least: int) -> None:
    """Create the PodGroup."""
    policy = {"gang": {"minCount": least}}
    body = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": policy},
    }
    await gangs.session.request("POST", GROUPS, body=json.dumps(body).encode())


def members(name: str, count: int, units: int = 8) -> list[Json]:
    pods = [gpu_pod(f"{name}-{number}", units) for number in range(count)]
    for pod in pods:
        pod["spec"]["schedulingGroup"] = {"podGroupName": name}
    return pods


def names_of(name: str, count: int) -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


async def nothing_is_held(gangs: World) -> None:
    async def free() -> bool:
        return (await gangs.metrics())["memory_allocated_bytes"] == 0

    await until(free, "nothing is allocated or reserved")


async def test_a_group_that_fits_runs_completely(gangs: World) -> None:
    await group(gangs, "fits", 6)
    await gangs.create(*members("fits", 6))
    await gangs.run_all(*names_of("fits", 6))


async def test_a_group_that_does_not_fit_holds_nothing_and_runs_once_there_is_room(gangs: World) -> None:
    await gangs.create(gpu_pod("first", 15))
    await gangs.run_all("first")
    await group(gangs, "large", 6)
    large = names_of("large", 6)
    await gangs.create(*members("large", 6))
    await gangs.pods.until(
        lambda: all(waits_because(gangs.pod(name)) for name in large), "kube-scheduler refused the group"
    )

    async def only_the_first_is_held() -> bool:
        return (await gangs.metrics())["allocated_pods"] == 1

    await until(only_the_first_is_held, "the group holds nothing")
    assert not any(node_of(gangs.pod(name)) for name in large)
    # Others get what it does not hold.
    await gangs.create(*(gpu_pod(f"other-{number}", 8) for number in range(3)))
    await gangs.run_all(*(f"other-{number}" for number in range(3)))
    assert not any(node_of(gangs.pod(name)) for name in large)
    await gangs.delete("first", *(f"other-{number}" for number in range(3)))
    await gangs.run_all(*large)


async def test_of_two_competing_groups_one_runs_completely_and_the_other_follows(gangs: World) -> None:
    for name in ("x", "y"):
        await group(gangs, name, 4)
    await gangs.create(*members("x", 4), *members("y", 4))
    sides = (names_of("x", 4), names_of("y", 4))

    def running() -> list[list[str]]:
        return [[name for name in side if is_running(gangs.pod(name))] for side in sides]

    await gangs.pods.until(lambda: sorted(map(len, running())) == [0, 4], "one group runs", detail=running)
    gone, pending = sides if running()[0] else sides[::-1]
    assert not any(node_of(gangs.pod(name)) for name in pending)
    await gangs.delete(*gone)
    await gangs.run_all(*pending)


async def test_a_group_that_lacks_cpu_releases_its_shares(gangs: World) -> None:
    """kube-scheduler's own filters refuse the last pod, and no extender is called for it."""
    await group(gangs, "busy", 3)
    pods = members("busy", 3)
    pods[2]["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1000"}
    await gangs.create(*pods)
    await gangs.pods.until(
        lambda: all(waits_because(gangs.pod(name)) for name in names_of("busy", 3)), "the group is refused"
    )
    await nothing_is_held(gangs)
    assert not any(node_of(gangs.pod(name)) for name in names_of("busy", 3))
