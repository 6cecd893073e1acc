"""Elastic quotas and pods without our GPU resources: which of them count, and from when."""

import asyncio
import json
from typing import Any

import pytest

from gpushare.api import names
from gpushare.api.node.device import Placement
from gpushare.kube.client.errors import ApiError, Unreachable
from gpushare.scheduler.cache.pod_records import counted_record_of, decoder_of, record_of
from gpushare.scheduler.framework.binder import BindRefused
from gpushare.scheduler.plugins.elastic_quota.counted_pods import CountedPods, counting_decoder
from gpushare.scheduler.plugins.elastic_quota.watch import status_of
from gpushare.scheduler.plugins.preemption.extender_preempt import preempt_pods
from gpushare.scheduler.server.protocol import read_preemption
from tests.unit.scheduler.elastic_quota.test_quotas import HALVES, ask, bind, create, tree
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
    status = status_of(world.quotas, world.quotas.trees["tree"])
    return next(one["used"] for one in status["quotas"] if one["name"] == name)


# --- which pods count ---------------------------------------------------------------------------------


def test_every_pod_with_a_node_counts_with_its_request_as_in_kubernetes(world: World) -> None:
    named = {"cpu": 8, "memory": "8Gi", OTHER_GPU: 8}
    leaf = {"name": "a", "namespaces": ["x"], "max": named}
    world.quotas.upsert(tree({"name": "root", "min": named, "max": named, "children": [leaf]}))
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
    assert status_of(world.quotas, world.quotas.trees["tree"])["message"] == ""


def test_a_pod_counts_until_it_has_ended_and_never_before_it_has_a_node(world: World) -> None:
    world.quotas.upsert(tree(processors(a=4, b=4)))
    come(world, plain("x", "p", cpu=1))
    assert used(world, "a") == {"cpu": "0"}
    world.api.pods["x/p"]["spec"]["nodeName"] = "n1"
    world.see("p")
    assert used(world, "a") == {"cpu": "1"}
    world.api.pods["x/p"]["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    world.see("p")
    assert used(world, "a") == {"cpu": "1"}, "it runs still"
    assert world.quotas.books.staying(1, "cpu") == 0
    world.view.remove_pod(world.view.bound_non_gpu["uid-p"])
    assert used(world, "a") == {"cpu": "0"}


def test_a_gpu_pod_waits_for_processors_used_by_others_of_its_quota(world: World) -> None:
    world.quotas.upsert(tree(processors(a=4, b=4)))
    come(world, plain("x", "p", node="n1", scheduler="default-scheduler", cpu=3))
    gpu = pod_object("q", 4, namespace="x")
    gpu["spec"]["containers"][0]["resources"]["requests"] = {"cpu": 2}
    come(world, gpu)
    fits, refused = ask(world, "x", "q")
    assert not fits
    assert refused == {"n1": "elastic quota root/a: 3 of 4 cpu used (max), 2 requested"}
    world.retries.refused("uid-q")
    world.view.remove_pod(world.view.bound_non_gpu["uid-p"])
    assert ask(world, "x", "q")[0] == ["n1"]
    assert world.retries._woken.is_set(), "a pod that was refused a moment ago is tried again"


def test_pods_counted_by_processors_hide_nothing_from_a_claim_on_gpus(world: World) -> None:
    world.quotas.upsert(tree(processors(a=4, b=4)))
    come(world, plain("x", "p", node="n1", cpu=3))
    come(world, plain("elsewhere", "q", node="n1", cpu=3))
    books = world.quotas.books
    assert (books.charged_to(1), books.non_gpu_pods(1), books.of_no_quota()) == (set(), {"uid-p"}, set())


# --- what is followed -----------------------------------------------------------------------------------


def decoded(world: World, pod: dict[str, Any], **more: Any) -> Any:
    return counting_decoder(world.quotas, decoder_of(**{"read": record_of, **more}))(json.dumps(pod).encode())


def test_pods_that_no_quota_counts_are_not_stored(world: World) -> None:
    there = plain("x", "p", node="n1", cpu=1)
    assert decoded(world, there) is None, "there is no tree"
    world.quotas.upsert(tree(HALVES))
    assert decoded(world, there) is None, "it names GPU memory alone"
    world.quotas.upsert(tree(processors(a=4, b=4), generation=2))
    key, record = decoded(world, there)
    assert (key, record.bystander, record.amounts) == ("x/p", True, {"cpu": 1000})
    assert decoded(world, plain("elsewhere", "p", node="n1", cpu=1)) is None
    finished = plain("x", "p", node="n1", cpu=1)
    finished["status"]["phase"] = "Succeeded"
    assert decoded(world, finished) is None
    assert decoded(world, plain("x", "p", scheduler="default-scheduler", cpu=1)) is None
    assert decoded(world, plain("x", "p", cpu=1)) is not None, "this scheduler will be asked about it"


def test_if_processors_are_counted_anyway_the_pods_count_without_being_read_again() -> None:
    world = World(policy=Placement.FRAGMENTATION)
    _, record = decoded(world, plain("x", "p", node="n1", cpu=2), read=counted_record_of)
    world.view.upsert_pod(record)
    world.quotas.upsert(tree(processors(a=4, b=4)))
    assert used(world, "a") == {"cpu": "2"}


class Listed:
    """A watch of pods whose lists end when the test releases them."""

    def __init__(self) -> None:
        self.lists: list[asyncio.Future[None]] = []

    async def relist(self) -> None:
        self.lists.append(asyncio.get_running_loop().create_future())
        await self.lists[-1]


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_no_pod_is_admitted_before_the_pods_of_a_new_namespace_were_read(world: World) -> None:
    pods, read = Listed(), asyncio.Event()
    reading = CountedPods(world.quotas, pods.relist, read)
    hurried: list[list[str]] = []
    world.quotas.retry_wanted.subscribe(lambda uids: hurried.append(sorted(uids)))
    running = asyncio.create_task(reading.run())
    begun = asyncio.create_task(reading.begin())
    await turns()
    assert not begun.done(), "it is not known yet which pods are to be watched"
    world.quotas.upsert(tree(processors(a=4, b=4)))
    read.set()
    await begun
    create(world, "x", "p", 4)
    create(world, "w", "q", 4)
    assert ask(world, "x", "p")[0] == ["n1"], "the first list is read with them"
    more = processors(a=4, b=4)
    more["children"].append({"name": "c", "namespaces": ["w"]})
    world.quotas.upsert(tree(more, generation=2))
    await turns()
    assert ask(world, "x", "p")[0] == ["n1"]
    assert ask(world, "w", "q")[1] == {"n1": "elastic quota root/c: its pods have not been loaded yet"}
    # Named again while a list is under way, which may have missed some of its pods.
    world.quotas.upsert(tree(processors(a=4, b=4), generation=3))
    world.quotas.upsert(tree(more, generation=4))
    pods.lists[0].set_result(None)
    await turns()
    assert ask(world, "w", "q")[1] == {"n1": "elastic quota root/c: its pods have not been loaded yet"}
    hurried.clear()
    pods.lists[1].set_result(None)
    await turns()
    assert (ask(world, "w", "q")[0], hurried, len(pods.lists)) == (["n1"], [["uid-q"]], 2)
    running.cancel()


async def test_namespaces_removed_from_a_tree_delay_no_pod(world: World) -> None:
    pods, read = Listed(), asyncio.Event()
    read.set()
    reading = CountedPods(world.quotas, pods.relist, read)
    await reading.begin()
    world.quotas.upsert(tree(processors(a=4, b=4)))
    assert world.quotas.unread == {"x", "z"}
    world.quotas.upsert(tree(HALVES, generation=2))
    create(world, "x", "p", 4)
    assert ask(world, "x", "p")[0] == ["n1"]


# --- who is held back -----------------------------------------------------------------------------------


async def bound(world: World, namespace: str, name: str, cpu: int, **more: Any) -> None:
    """It comes, and this scheduler binds it; the informer shows that."""
    come(world, plain(namespace, name, cpu=cpu, **more))
    assert ask(world, namespace, name)[0] == ["n1"]
    await bind(world, namespace, name)
    world.see(name)


async def test_a_pod_without_a_gpu_waits_above_the_max_until_another_of_its_quota_ends(world: World) -> None:
    world.quotas.upsert(tree(processors(a=4, b=4)))
    await bound(world, "x", "p", 3)
    come(world, plain("x", "q", cpu=2))
    reason = "elastic quota root/a: 3 of 4 cpu used (max), 2 requested"
    assert ask(world, "x", "q") == ([], {"n1": reason})
    with pytest.raises(BindRefused, match=r"elastic quota root/a: 3 of 4 cpu used"):
        await bind(world, "x", "q")
    running = asyncio.create_task(world.retries.run())
    world.view.remove_pod(world.view.bound_non_gpu["uid-p"])
    await turns()
    await world.clock.turn(2)
    await turns()
    assert [name for name, _ in world.api.annotated] == ["q"], "it is tried again"
    assert ask(world, "x", "q")[0] == ["n1"]
    running.cancel()


async def test_a_changed_tree_has_pods_without_a_gpu_retried(world: World) -> None:
    hurried: list[list[str]] = []
    world.quotas.retry_wanted.subscribe(lambda uids: hurried.append(list(uids)))
    world.quotas.upsert(tree(processors(a=1, b=4)))
    come(world, plain("x", "p", cpu=2))
    assert not ask(world, "x", "p")[0]
    world.quotas.upsert(tree(processors(a=2, b=4), generation=2))
    assert hurried[-1] == ["uid-p"]
    assert ask(world, "x", "p")[0] == ["n1"]


async def test_a_pod_about_to_be_bound_counts_before_the_informer_shows_it(world: World) -> None:
    world.quotas.upsert(tree(processors(a=4, b=4)))
    for name in ("p", "q"):
        world.api.create(plain("x", name, cpu=3))
        assert ask(world, "x", name)[0] == ["n1"], "the informer has shown neither"
    world.api.gate = asyncio.Event()
    first = asyncio.create_task(bind(world, "x", "p"))
    await turns()
    with pytest.raises(BindRefused, match="3 of 4 cpu used"):
        await bind(world, "x", "q")
    assert ask(world, "x", "p")[0] == ["n1"], "its own promise does not stand against it"
    assert used(world, "a") == {"cpu": "0"}, "the status says what is bound"
    world.api.gate.set()
    await first
    assert world.reservations.deadlines
    world.see("p")
    assert used(world, "a") == {"cpu": "3"}
    assert not world.reservations.deadlines
    assert not world.quotas.is_reserved("uid-p")


async def test_a_refused_binding_frees_its_promise(world: World) -> None:
    world.quotas.upsert(tree(processors(a=4, b=4)))
    come(world, plain("x", "p", cpu=3))

    def refuse() -> None:
        raise ApiError(403, "Forbidden", "no", "")

    world.api.before = [refuse]
    with pytest.raises(BindRefused):
        await bind(world, "x", "p")
    assert world.quotas.books.held(1, "cpu") == 0
    assert not world.reservations.deadlines


def lose_answer() -> None:
    raise Unreachable("API server", "connection reset", sent=None)


async def test_a_binding_of_unknown_outcome_counts_until_the_pod_was_read(world: World) -> None:
    world.quotas.upsert(tree(processors(a=4, b=4)))
    come(world, plain("x", "p", cpu=3))
    world.api.before = [lose_answer]
    with pytest.raises(BindRefused):
        await bind(world, "x", "p")
    assert world.quotas.books.held(1, "cpu") == 3000, "it may arrive yet"
    await world.binder.settle("uid-p", "x/p")
    assert world.quotas.books.held(1, "cpu") == 0
    assert world.events.notes == [], "no share was reserved"
    # Once more, and it was written: it counts until the informer shows it, and then as bound.
    world.api.after = [lose_answer]
    await bind(world, "x", "p")
    await world.binder.settle("uid-p", "x/p")
    assert world.quotas.books.held(1, "cpu") == 3000
    assert world.reservations.deadlines, "the informer has not shown it"
    world.see("p")
    assert (used(world, "a"), world.reservations.deadlines) == ({"cpu": "3"}, {})


async def test_a_pending_outcome_counts_although_another_binding_was_refused(world: World) -> None:
    world.quotas.upsert(tree(processors(a=4, b=4)))
    come(world, plain("x", "p", cpu=3))

    def refuse() -> None:
        raise ApiError(403, "Forbidden", "no", "")

    for failure in (lose_answer, refuse):
        world.api.before = [failure]
        with pytest.raises(BindRefused):
            await bind(world, "x", "p")
        assert world.quotas.books.held(1, "cpu") == 3000


async def test_a_pod_gone_before_it_was_seen_bound_is_no_longer_charged(world: World) -> None:
    world.quotas.upsert(tree(processors(a=4, b=4)))
    for name in ("p", "q"):
        world.api.create(plain("x", name, cpu=2))
        await bind(world, "x", name)
    world.api.pods["x/p"]["status"]["phase"] = "Succeeded"
    del world.api.pods["x/q"]
    assert world.quotas.books.held(1, "cpu") == 4000
    for name in ("p", "q"):
        await world.binder.settle(f"uid-{name}", f"x/{name}")
    assert world.quotas.books.held(1, "cpu") == 0
    assert not world.reservations.deadlines


async def test_a_tree_that_no_longer_counts_the_pod_ends_its_promise(world: World) -> None:
    world.quotas.upsert(tree(processors(a=4, b=4)))
    world.api.create(plain("x", "p", cpu=2))
    await bind(world, "x", "p")
    world.quotas.upsert(tree(HALVES, generation=2))
    await world.binder.settle("uid-p", "x/p")
    assert not world.reservations.deadlines, "no watch would ever show it bound"


async def test_pods_that_no_quota_counts_are_bound_without_a_promise(world: World) -> None:
    world.quotas.upsert(tree(processors(a=1, b=1)))
    world.api.create(plain("elsewhere", "p", cpu=9))
    assert ask(world, "elsewhere", "p")[0] == ["n1"]
    await bind(world, "elsewhere", "p")
    world.quotas.upsert(tree(HALVES, generation=2))
    world.api.create(plain("x", "q", cpu=9))
    assert ask(world, "x", "q")[0] == ["n1"]
    await bind(world, "x", "q")
    assert world.api.bindings == [("elsewhere/p", "n1"), ("x/q", "n1")]
    assert not world.reservations.deadlines


# --- kube-scheduler's own preemption ----------------------------------------------------------------------


def left_of(world: World, namespace: str, name: str, *victims: str) -> bool:
    """Whether kube-scheduler may evict ``victims`` on n1 for a pod."""
    meta_victims = {"Pods": [{"UID": f"uid-{one}"} for one in victims], "NumPDBViolations": 0}
    body = {"Pod": world.api.pods[f"{namespace}/{name}"], "NodeNameToMetaVictims": {"n1": meta_victims}}
    args = read_preemption(json.dumps(body).encode())
    answer = preempt_pods(world.view, args, world.preemptor.left_to_scheduler, quotas=world.quotas)
    return "n1" in json.loads(answer)["NodeNameToMetaVictims"]


def test_kube_scheduler_evicts_for_cpu_no_pod_within_its_quotas_min(world: World) -> None:
    leaves = [
        {"name": name, "namespaces": [space], "min": {"cpu": 4}, "max": {"cpu": 8}}
        for name, space in (("a", "x"), ("b", "z"))
    ]
    world.quotas.upsert(tree({"name": "root", "min": {"cpu": 8}, "max": {"cpu": 8}, "children": leaves}))
    for name in ("p", "q", "r"):
        come(world, plain("z", name, node="n1", cpu=2))
    come(world, plain("x", "claims", cpu=2, priority=10))
    assert left_of(world, "x", "claims", "p"), "b holds 6 of its min of 4"
    assert not left_of(world, "x", "claims", "p", "q")
    come(world, plain("x", "greedy", cpu=5, priority=10))
    assert not left_of(world, "x", "greedy", "p"), "above its own min it takes nothing back"
    come(world, plain("z", "own", cpu=2, priority=10))
    assert left_of(world, "z", "own", "p", "q"), "within one quota priorities decide"


# --- gangs ------------------------------------------------------------------------------------------------


async def test_a_gang_waits_for_a_non_gpu_member_that_its_quota_holds_back(world: World) -> None:
    world.quotas.upsert(tree(processors(a=4, b=4)))
    come(world, plain("x", "there", node="n1", cpu=3))
    labels = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "2"}
    leader = plain("x", "leader", cpu=2)
    leader["metadata"]["labels"] = labels
    come(world, leader)
    come(world, pod_object("worker", 4, namespace="x", labels=labels))
    assert not ask(world, "x", "leader")[0]
    assert not ask(world, "x", "worker")[0], "alone it is no gang"
    world.view.remove_pod(world.view.bound_non_gpu["uid-there"])
    assert ask(world, "x", "leader")[0] == ["n1"]
    await bind(world, "x", "leader")
    world.see("leader")
    assert used(world, "a") == {"cpu": "2"}
    assert ask(world, "x", "worker")[0] == ["n1"]
