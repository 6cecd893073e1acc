"""Elastic quotas and pods that ask for no GPU of ours: who of them counts, and from when."""

import asyncio
import json
from typing import Any

import pytest

from gpushare.model import names
from gpushare.model.device import Placement
from gpushare.scheduler.quota_pods import QuotaPods, following_decoder
from gpushare.scheduler.quota_watch import status_of
from gpushare.scheduler.records import counted_record_of, record_of
from tests.unit.scheduler.test_quotas import HALVES, ask, create, tree
from tests.unit.scheduler.world import World, gpu_node, pod_object

OTHER_GPU = "nvidia.com/gpu"


@pytest.fixture
def world() -> World:
    made = World()
    made.add_node(gpu_node("n1", 16384))
    return made


def processors(*, a: int, b: int, whole: int = 8) -> dict[str, Any]:
    """A root of ``whole`` processors with the quotas a (namespace x) and b (namespace z), each with a max."""
    children = [
        {"name": name, "namespaces": [space], "max": {"cpu": most}}
        for name, space, most in (("a", "x", a), ("b", "z", b))
    ]
    return {"name": "root", "max": {"cpu": whole}, "children": children}


def plain(
    namespace: str, name: str, *, node: str = "", scheduler: str = names.SCHEDULER_NAME, **requests: Any
) -> dict[str, Any]:
    """A pod without a GPU of ours."""
    pod = pod_object(name, namespace=namespace, node=node, priority=requests.pop("priority", 0))
    pod["spec"]["schedulerName"] = scheduler
    pod["spec"]["containers"][0]["resources"] = {"requests": requests}
    return pod


def come(world: World, pod: dict[str, Any]) -> None:
    """It is created, and the informer shows it."""
    world.api.create(pod)
    world.see(pod["metadata"]["name"])


def used(world: World, name: str) -> dict[str, str]:
    """What the tree's status says of a quota."""
    told = status_of(world.view.quotas, world.view.quotas.trees["tree"])
    return next(one["used"] for one in told["quotas"] if one["name"] == name)


# --- who counts ---------------------------------------------------------------------------------------


def test_every_pod_with_a_node_counts_with_what_kubernetes_says_that_it_requests(world: World) -> None:
    named = {"cpu": 8, "memory": "8Gi", OTHER_GPU: 8}
    leaf = {"name": "a", "namespaces": ["x"], "max": named}
    world.view.quotas.upsert(tree({"name": "root", "min": named, "max": named, "children": [leaf]}))
    come(world, plain("x", "p", node="n1", scheduler="default-scheduler", cpu="500m", memory="1Gi"))
    more = plain("x", "q", node="n1", cpu=1, **{OTHER_GPU: 2})
    more["spec"]["initContainers"] = [
        {"name": "first", "resources": {"requests": {"cpu": 3}}},
        {"name": "beside", "restartPolicy": "Always", "resources": {"requests": {"cpu": "250m"}}},
    ]
    more["spec"]["overhead"] = {"memory": "1Gi"}
    come(world, more)
    come(world, plain("elsewhere", "r", node="n1", cpu=4))
    assert used(world, "a") == {"cpu": "3500m", "memory": "2Gi", OTHER_GPU: "2"}
    assert used(world, "root") == used(world, "a")
    assert status_of(world.view.quotas, world.view.quotas.trees["tree"])["message"] == ""


def test_a_pod_counts_until_it_has_ended_and_never_before_it_has_a_node(world: World) -> None:
    world.view.quotas.upsert(tree(processors(a=4, b=4)))
    come(world, plain("x", "p", cpu=1))
    assert used(world, "a") == {"cpu": "0"}
    world.api.pods["x/p"]["spec"]["nodeName"] = "n1"
    world.see("p")
    assert used(world, "a") == {"cpu": "1"}
    world.api.pods["x/p"]["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    world.see("p")
    assert used(world, "a") == {"cpu": "1"}, "it runs still"
    assert world.view.quotas.books.staying(1, "cpu") == 0
    world.view.remove_pod(world.view.besides["uid-p"])
    assert used(world, "a") == {"cpu": "0"}


def test_a_gpu_pod_waits_for_processors_that_others_of_its_quota_have(world: World) -> None:
    world.view.quotas.upsert(tree(processors(a=4, b=4)))
    come(world, plain("x", "p", node="n1", scheduler="default-scheduler", cpu=3))
    gpu = pod_object("q", 4, namespace="x")
    gpu["spec"]["containers"][0]["resources"]["requests"] = {"cpu": 2}
    come(world, gpu)
    fits, refused = ask(world, "x", "q")
    assert not fits
    assert refused == {"n1": "elastic quota root/a: 3 of 4 cpu used (max), 2 asked for"}
    world.retries.refused("uid-q")
    world.view.remove_pod(world.view.besides["uid-p"])
    assert ask(world, "x", "q")[0] == ["n1"]
    assert world.retries._woken.is_set(), "a pod that was refused a moment ago is tried again"


def test_pods_that_count_with_processors_hide_nothing_from_a_claim_on_gpus(world: World) -> None:
    world.view.quotas.upsert(tree(processors(a=4, b=4)))
    come(world, plain("x", "p", node="n1", cpu=3))
    come(world, plain("elsewhere", "q", node="n1", cpu=3))
    books = world.view.quotas.books
    assert (books.charged_to(1), books.besides(1), books.of_no_quota()) == (set(), {"uid-p"}, set())


# --- what is followed -----------------------------------------------------------------------------------


def decoded(world: World, pod: dict[str, Any], **more: Any) -> Any:
    return following_decoder(world.view.quotas, **{"read": record_of, **more})(json.dumps(pod).encode())


def test_nothing_is_kept_of_pods_that_no_quota_counts(world: World) -> None:
    there = plain("x", "p", node="n1", cpu=1)
    assert decoded(world, there) is None, "there is no tree"
    world.view.quotas.upsert(tree(HALVES))
    assert decoded(world, there) is None, "it names GPU memory alone"
    world.view.quotas.upsert(tree(processors(a=4, b=4), generation=2))
    key, record = decoded(world, there)
    assert (key, record.bystander, record.amounts) == ("x/p", True, {"cpu": 1000})
    assert decoded(world, plain("elsewhere", "p", node="n1", cpu=1)) is None
    ended = plain("x", "p", node="n1", cpu=1)
    ended["status"]["phase"] = "Succeeded"
    assert decoded(world, ended) is None
    assert decoded(world, plain("x", "p", scheduler="default-scheduler", cpu=1)) is None
    assert decoded(world, plain("x", "p", cpu=1)) is not None, "this scheduler will be asked about it"


def test_where_processors_are_counted_anyway_the_pods_count_without_being_read_again() -> None:
    world = World(policy=Placement.FRAGMENTATION)
    _, record = decoded(world, plain("x", "p", node="n1", cpu=2), read=counted_record_of)
    world.view.upsert_pod(record)
    world.view.quotas.upsert(tree(processors(a=4, b=4)))
    assert used(world, "a") == {"cpu": "2"}


class Listed:
    """A watch of pods whose lists end when the test says so."""

    def __init__(self) -> None:
        self.lists: list[asyncio.Future[None]] = []

    async def read_anew(self) -> None:
        self.lists.append(asyncio.get_running_loop().create_future())
        await self.lists[-1]


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_nobody_is_let_in_before_the_pods_of_a_new_namespace_were_read(world: World) -> None:
    pods, read = Listed(), asyncio.Event()
    reading = QuotaPods(world.view.quotas, pods, read)
    hurried: list[list[str]] = []
    world.view.quotas.on_admitting = lambda uids: hurried.append(sorted(uids))
    running = asyncio.create_task(reading.run())
    begun = asyncio.create_task(reading.begin())
    await turns()
    assert not begun.done(), "nobody knows yet which pods are to be followed"
    world.view.quotas.upsert(tree(processors(a=4, b=4)))
    read.set()
    await begun
    create(world, "x", "p", 4)
    create(world, "w", "q", 4)
    assert ask(world, "x", "p")[0] == ["n1"], "the first list is read with them"
    more = processors(a=4, b=4)
    more["children"].append({"name": "c", "namespaces": ["w"]})
    world.view.quotas.upsert(tree(more, generation=2))
    await turns()
    assert ask(world, "x", "p")[0] == ["n1"]
    assert ask(world, "w", "q")[1] == {"n1": "elastic quota root/c: its pods are not read yet"}
    # Named again while a list is under way, which may have passed over some of its pods.
    world.view.quotas.upsert(tree(processors(a=4, b=4), generation=3))
    world.view.quotas.upsert(tree(more, generation=4))
    pods.lists[0].set_result(None)
    await turns()
    assert ask(world, "w", "q")[1] == {"n1": "elastic quota root/c: its pods are not read yet"}
    hurried.clear()
    pods.lists[1].set_result(None)
    await turns()
    assert (ask(world, "w", "q")[0], hurried, len(pods.lists)) == (["n1"], [["uid-q"]], 2)
    running.cancel()


async def test_namespaces_that_a_tree_names_no_more_hold_nobody_up(world: World) -> None:
    pods, read = Listed(), asyncio.Event()
    read.set()
    reading = QuotaPods(world.view.quotas, pods, read)
    await reading.begin()
    world.view.quotas.upsert(tree(processors(a=4, b=4)))
    assert world.view.quotas.unread == {"x", "z"}
    world.view.quotas.upsert(tree(HALVES, generation=2))
    create(world, "x", "p", 4)
    assert ask(world, "x", "p")[0] == ["n1"]
