"""The record of decisions: the reason of each node, why a pod waits, what would let it in, and the bounds of all that."""

import asyncio
import json
from typing import Any

import pytest

from gpushare.api.names import LABEL_GANG_LEAST, LABEL_GANG_NAME, LABEL_POD_GPU_COUNT
from gpushare.api.node.modes import NodeMode
from gpushare.ledger import Verdict
from gpushare.reasons.categories import Category
from gpushare.scheduler.cache.pod_records import record_of
from gpushare.scheduler.plugins.explain import decision_log as room
from gpushare.scheduler.plugins.explain import decisions_api
from tests.unit.scheduler.server.test_app import Browser, filter_body
from tests.unit.scheduler.world import World, gpu_node, pod_object

GIB = 1024


async def get(browser: Browser, path: str = "") -> Any:
    status, body = await browser.call("GET", f"/gpushare/decisions{path}")
    assert status == 200, body
    return json.loads(body)


async def ask(browser: Browser, world: World, name: str, *nodes: str, mem: Any = 8, **settings: Any) -> None:
    """Create a pod, and have the nodes filtered for it."""
    world.create(name, mem, **settings)
    await ask_again(browser, world, name, *nodes)


async def ask_again(browser: Browser, world: World, name: str, *nodes: str) -> None:
    await browser.post("filter", filter_body(world.api.pods[f"default/{name}"], *nodes))


async def bind(browser: Browser, name: str, node: str) -> str:
    body = {"PodNamespace": "default", "PodName": name, "PodUID": f"uid-{name}", "Node": node}
    answer = await browser.post("bind", body)
    return str(answer["Error"])


async def give(browser: Browser, world: World, name: str, node: str, mem: int, **settings: Any) -> None:
    """A pod that is bound, and seen so."""
    await ask(browser, world, name, node, mem=mem, **settings)
    assert not await bind(browser, name, node)
    world.see(name)


def suggestion(world: World, name: str = "waits") -> str:
    """The suggestion for a pending pod of namespace ``default``."""
    return next(one.suggestion for one in world.decisions.waiting() if one.key == f"default/{name}")


async def test_a_pod_without_room_on_any_gpu_is_shown_the_nearest_one(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 11 * GIB))
    world.add_node(gpu_node("n2", 2 * GIB))
    await give(browser, world, "there", "n1", 7)
    await ask(browser, world, "waits", "n1", "n2")

    (one,) = world.decisions.waiting()

    assert (one.key, one.asks, one.category) == ("default/waits", "aliyun.com/gpu-mem: 8", "memory")
    assert one.reason == (
        "none of 2 nodes fits; 1 node: no single GPU has 8 GiB free; 1 node: requests 8 GiB, but the largest GPU has 2 GiB"
    )
    assert one.suggestion == (
        "a GPU with 8 GiB free: the closest has 4 GiB free, GPU 0 of node n1; deleting pod default/there (7 GiB) would be "
        "enough"
    )


async def test_of_many_pending_pods_those_pending_longest_can_be_read_with_the_numbers_of_all(
    browser: Browser, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions_api, "MOST_LISTED", 2)
    world.add_node(gpu_node("n1", 4 * GIB))
    for name in ("a", "b", "c"):
        await ask(browser, world, name, "n1")
    await ask(browser, world, "bad", "n1", mem="x")

    oldest, every = await get(browser, "/oldest"), await get(browser)

    assert (oldest["count"], oldest["byCategory"]) == (4, {"size": 3, "request": 1})
    assert len(every["waiting"]) == 4
    assert oldest["waiting"] == every["waiting"][:2]


async def test_room_on_a_node_that_was_not_offered_is_not_promised(browser: Browser, world: World) -> None:
    for name, free in (("n1", 11 * GIB), ("n2", 16 * GIB), ("n3", 4 * GIB)):
        world.add_node(gpu_node(name, free))
    await give(browser, world, "there", "n1", 7)
    await ask(browser, world, "waits", "n1")
    await ask(browser, world, "waits-too", "n3", mem=4)
    await give(browser, world, "then", "n3", 4)
    await ask_again(browser, world, "waits-too", "n3")

    one, other = world.decisions.waiting()

    apart = "; node n2 has capacity, but the pod's node selector, affinity or tolerations exclude it"
    assert (
        one.suggestion == f"a GPU with 8 GiB free: the closest has 4 GiB free, GPU 0 of node n1; "
        f"deleting pod default/there (7 GiB) would be enough{apart}"
    )
    assert other.key == "default/waits-too"
    assert other.suggestion.startswith("a GPU with 4 GiB free")
    assert other.suggestion.endswith(apart)
    finished = record_of(world.api_pod("default", "there"))
    assert finished is not None
    world.view.remove_pod(finished)
    assert world.decisions.waiting()[0].suggestion == (
        "node n1 has enough capacity now; kube-scheduler retries automatically"
    )


async def test_a_pod_that_would_fit_only_into_scattered_room_is_pointed_to_moves(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB, 8 * GIB))
    await give(browser, world, "a", "n1", 5)
    await give(browser, world, "b", "n1", 4)
    await ask(browser, world, "waits", "n1", mem=6)

    (one,) = world.decisions.waiting()

    assert one.reason == "no single GPU has 6 GiB free (largest free: 4 GiB on GPU 1)"
    assert (
        "node n1 has that much in total, on several GPUs: `kubectl inspect cgpu --fragmentation`"
        in one.suggestion
    )


@pytest.mark.parametrize(
    ("settings", "category", "suggestion"),
    [
        ({"mem": 99}, "size", "a node with larger GPUs"),
        ({"mem": 2, "core": 20}, "node", "node n1 is in mode share: `kubectl label node n1 "),
        ({"mem": "x"}, "request", "another request: change the pod's template"),
    ],
)
async def test_each_kind_of_refusal_has_its_own_suggestion(
    browser: Browser, world: World, settings: dict[str, Any], category: str, suggestion: str
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await ask(browser, world, "waits", "n1", **settings)

    (one,) = world.decisions.waiting()

    assert one.category == category
    assert one.suggestion.startswith(suggestion)


@pytest.mark.parametrize(
    ("settings", "suggestion"),
    [
        (
            {"mem": 2, "core": 20},
            "the pod's node selector, affinity or tolerations leave only node asked, which is in mode cgpu: `kubectl label "
            "node asked ack.node.gpu.schedule=core_mem --overwrite`; or other rules: node both has capacity",
        ),
        (
            {"mem": 99, "core": 20},
            "a node in mode core_mem with larger GPUs; or request less",
        ),
    ],
)
async def test_a_pod_whose_rules_leave_only_nodes_in_the_wrong_mode_gets_the_right_advice(
    browser: Browser, world: World, settings: dict[str, Any], suggestion: str
) -> None:
    world.add_node(gpu_node("asked", 8 * GIB, mode=NodeMode.CGPU))
    world.add_node(gpu_node("both", 8 * GIB, mode=NodeMode.CORE_MEM))
    await ask(browser, world, "waits", "asked", **settings)

    (one,) = world.decisions.waiting()

    assert one.category == "node"
    assert one.suggestion == suggestion


async def test_a_node_whose_mode_would_be_changed_for_a_pod_may_have_to_be_emptied_first(
    browser: Browser, world: World
) -> None:
    for name, mode in (("a", NodeMode.CGPU), ("b", NodeMode.SHARE), ("c", NodeMode.TOPOLOGY)):
        world.add_node(gpu_node(name, 8 * GIB, 8 * GIB, mode=mode))
    world.add_node(gpu_node("d", 8 * GIB, mode=NodeMode.CORE_MEM))
    await give(browser, world, "there", "a", 2)
    await ask(browser, world, "first", "a", mem=2, core=20)
    world.decisions.waiting()  # of many simultaneous answers some are dropped before they are summed up
    await give(browser, world, "beside", "b", 8)
    await give(browser, world, "beside-too", "b", 2)
    await ask(browser, world, "second", "a", "b", mem=2, core=30)
    await ask(browser, world, "third", "a", "c", mem=2, core=40)

    shown = {one.key.partition("/")[2]: one.suggestion for one in world.decisions.waiting()}

    once = "--overwrite`, which helps once its 1 pod with GPU memory only has ended; or other rules: node d has capacity"
    assert shown["first"].endswith(f"label node a ack.node.gpu.schedule=core_mem {once}")
    assert "leave 2 nodes (1 in mode cgpu, 1 in mode share): " in shown["second"]
    assert shown["second"].endswith(f"label node a ack.node.gpu.schedule=core_mem {once}")
    assert shown["third"].endswith(
        "label node c ack.node.gpu.schedule=core_mem --overwrite`; or other rules: node d has capacity"
    )


async def test_if_the_offered_nodes_are_not_stored_none_is_named(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB, mode=NodeMode.CGPU))
    for name in ("first", "a", "b", "c", "d"):
        await ask(browser, world, name, "n1", mem=2, core=20)
    shown = {one.key.partition("/")[2]: one.suggestion for one in world.decisions.waiting()}
    assert shown["first"].startswith("a node with the label ack.node.gpu.schedule=share (core_mem for")
    assert shown["d"].startswith(
        "node n1 is in mode cgpu: `kubectl label node n1 ack.node.gpu.schedule=core_mem"
    )


async def test_a_mode_that_would_not_help_is_not_blamed(browser: Browser, world: World) -> None:
    mps = gpu_node("mps", 8 * GIB, 8 * GIB, mode=NodeMode.MPS)
    world.add_node(mps)
    world.add_node(gpu_node("bare"))
    world.add_node(gpu_node("whole", 8 * GIB, mode=NodeMode.TOPOLOGY))
    await ask(browser, world, "several", "mps", mem=4, labels={LABEL_POD_GPU_COUNT: "2"})
    await ask(browser, world, "none", "bare", "unknown", mem=2)
    whole = pod_object("gpus")
    whole["spec"]["containers"][0]["resources"]["limits"] = {"aliyun.com/gpu": 1}
    world.api.create(whole)
    world.see("gpus")
    await browser.post("filter", filter_body(whole, "mps", "whole"))
    assert not await bind(browser, "gpus", "whole")
    world.see("gpus")
    whole["metadata"] |= {"name": "more", "uid": "uid-more"}
    whole["spec"]["nodeName"] = ""
    world.api.create(whole)
    world.see("more")
    await browser.post("filter", filter_body(whole, "mps", "bare"))

    shown = {one.key.partition("/")[2]: (one.category, one.suggestion) for one in world.decisions.waiting()}

    assert (
        "leave only node mps, which is in mode mps: `kubectl label node mps ack.node.gpu.schedule=share "
        in (shown["several"][1])
    )
    assert shown["none"] == ("node", shown["none"][1])
    assert shown["none"][1].startswith("a node with the label ack.node.gpu.schedule=share (core_mem for")
    assert "`kubectl label node mps ack.node.gpu.schedule=topology --overwrite`" in shown["more"][1]


async def test_a_pod_of_a_gang_waits_for_this_many_more(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    labels = {LABEL_GANG_NAME: "g", LABEL_GANG_LEAST: "3"}
    await ask(browser, world, "one", "n1", mem=2, labels=labels)

    (one,) = world.decisions.waiting()

    assert one.category == "gang"
    assert one.suggestion == "2 more pods of gang default/g: 1 of 3 is there"

    for name in ("two", "three"):
        world.create(name, 4, labels=labels)
    await ask_again(browser, world, "one", "n1")

    one = world.decisions.waiting()[0]
    assert one.category == "gang"
    assert one.suggestion.startswith("capacity for 3 pods of gang default/g at once")


async def test_the_gpus_of_a_gangs_pod_are_known_before_kube_scheduler_offers_it(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB, 8 * GIB))
    world.add_node(gpu_node("n2", 4 * GIB))
    labels = {LABEL_GANG_NAME: "g", LABEL_GANG_LEAST: "2"}
    world.create("two", 3, labels=labels)
    await ask(browser, world, "one", "n1", "n2", mem=6, labels=labels)

    first = await get(browser, "/default/one/nodes")
    second = await get(browser, "/default/two")

    assert first["answer"]["leftOut"] == 1
    assert first["leftOut"] == "the plan for its gang assigns it to another node"
    assert [one["node"] for one in first["nodes"]] == ["n1", "n2"]
    assert second["state"] == "waiting"
    assert second["choice"]["node"] == "n2"
    assert second["answer"] is None


async def test_the_record_of_a_bound_pod_contains_its_gpu_and_the_preference(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB, 8 * GIB, 4 * GIB))
    await give(browser, world, "before", "n1", 3)
    world.add_node(gpu_node("n2", 2 * GIB))
    world.create("pod", 5)
    body = filter_body(world.api.pods["default/pod"], "n1", "n2")
    await browser.post("filter", body)
    await browser.post("prioritize", body)
    assert not await bind(browser, "pod", "n1")
    world.see("pod")

    record = await get(browser, "/default/pod")

    assert (record["state"], record["waiting"], record["said"]) == ("bound", None, "")
    assert (record["answer"]["nodes"], record["answer"]["fits"]) == (2, 1)
    assert record["answer"]["groups"][0]["examples"] == [
        {"node": "n2", "reason": "requests 5 GiB, but the largest GPU has 2 GiB"}
    ]
    assert record["scores"] == {"nodes": 2, "equals": 1, "best": [["n1", 10]]}
    choice = record["choice"]
    assert choice["why"] == "the GPU on which the least is left over, then the lower index"
    assert choice["gpus"] == [
        {
            "index": 0,
            "freeMiB": 8 * GIB,
            "leftMiB": 3 * GIB,
            "pods": 0,
            "grown": 0,
            "chosen": True,
            "uuid": "GPU-n1-0",
        },
        {
            "index": 1,
            "freeMiB": 8 * GIB,
            "leftMiB": 3 * GIB,
            "pods": 0,
            "grown": 0,
            "chosen": False,
            "uuid": "GPU-n1-1",
        },
    ]
    assert [gpu["index"] for gpu in choice["gpus"] if gpu["chosen"]] == [
        gpu["index"] for gpu in record["holds"]["gpus"]
    ]
    assert record["bind"]["error"] == ""


async def test_a_bind_that_failed_is_why_the_pod_waits(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await ask(browser, world, "pod", "n1", mem=6)
    await give(browser, world, "quicker", "n1", 6)
    assert await bind(browser, "pod", "n1")

    (one,) = world.decisions.waiting()

    assert one.category == "memory"
    assert one.reason == "node n1: no single GPU has 6 GiB free (largest free: 2 GiB on GPU 0)"


async def test_a_pod_that_has_room_is_left_to_kube_scheduler(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await ask(browser, world, "pod", "n1")

    (one,) = world.decisions.waiting()
    assert (one.category, one.reason) == (
        "scheduler",
        "there is capacity on 1 node (n1): waiting for its Binding",
    )

    await world.clock.turn(31)
    (one,) = world.decisions.waiting()
    assert one.reason == "there is capacity on 1 node (n1): kube-scheduler has not bound it"


async def test_a_pod_that_kube_scheduler_never_offered_is_reported_so(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    world.create("pod", 2)

    (one,) = world.decisions.waiting()
    record = await get(browser, "/default/pod")

    assert one.category == "unasked"
    assert record["said"].startswith("kube-scheduler has not called this replica since it started")
    assert (await get(browser))["scheduler"]["firstAsked"] is None

    await ask(browser, world, "other", "n1")
    record = await get(browser, "/default/pod")
    assert (
        record["said"]
        == "kube-scheduler has not called the extender for this pod since this replica became the leader"
    )


async def test_a_new_leader_reports_that_the_pod_was_bound_before_its_time(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await give(browser, world, "pod", "n1", 2)
    world.decisions.forget("uid-pod")

    record = await get(browser, "/default/pod")

    assert record["said"] == (
        "the pod was bound before this replica became the leader; only the pod's own allocation record is available"
    )
    assert record["holds"]["gpus"][0]["index"] == 0


async def test_missing_objects_are_reported_plainly(browser: Browser, world: World) -> None:
    assert (await get(browser, "/default/unknown"))["state"] == "unknown"
    for path in ("/default", "/default/x/y", "x", "//x"):
        status, body = await browser.call("GET", f"/gpushare/decisions{path}")
        assert status == 404
        assert b"/gpushare/decisions/NAMESPACE/NAME" in body
    browser.missing = "pods not read yet"
    assert (await browser.call("GET", "/gpushare/decisions"))[0] == 503


async def test_records_are_dropped_with_their_pods(browser: Browser, world: World) -> None:
    await ask(browser, world, "pod", "n1")
    world.decisions.forget("uid-pod")
    world.decisions.forget("uid-pod")
    assert len(world.decisions) == 0
    assert world.decisions.of("uid-pod") is None


async def test_another_pod_of_the_same_name_has_its_own_record(browser: Browser, world: World) -> None:
    await ask(browser, world, "pod", "n1")
    await browser.post("filter", filter_body(pod_object("pod", 3, uid="new"), "n1"))
    world.decisions.forget("uid-pod")
    assert world.decisions.of("new") is not None


async def test_records_are_bounded_in_number_and_in_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MOST_PODS", 20)
    monkeypatch.setattr(room, "EACH_BYTES", 5000)
    nodes = [f"n{number}" for number in range(100)]
    reasons = {name: f"reason {name}" for name in nodes}
    for number in range(50):
        world.decisions.filtered(f"uid-{number}", f"default/p{number}", None, nodes, Verdict([], reasons, {}))
        world.decisions.of(f"uid-{number}")

    assert len(world.decisions) == 20
    assert world.decisions.of("uid-29") is None
    stored = [one for number in range(50) if (one := world.decisions.of(f"uid-{number}")) and one.each]
    assert 1 <= len(stored) <= 4
    assert all(len(one.summary.groups) == 17 for one in stored if one.summary is not None)


async def test_without_time_some_nodes_stand_for_all(world: World) -> None:
    nodes = [f"n{number}" for number in range(1000)]
    reasons = dict.fromkeys(nodes, "no single GPU has 8 GiB free (every GPU is full)")
    for number in range(9):
        world.decisions.filtered(f"uid-{number}", f"default/p{number}", None, nodes, Verdict([], reasons, {}))
        world.decisions.scored(f"uid-{number}", [(node, 1) for node in nodes], 1000)

    first, last = world.decisions.of("uid-0"), world.decisions.of("uid-8")

    assert first is not None
    assert first.summary is not None
    assert (first.summary.nodes, first.summary.sampled) == (1000, 32)
    assert first.each is None
    assert first.scores is not None
    assert (len(first.scores.best), first.scores.nodes) == (5, 1000)
    assert last is not None
    assert last.summary is not None
    assert last.summary.sampled == 1000


async def test_answers_about_many_nodes_are_summed_up_when_idle(world: World) -> None:
    nodes = [f"n{number}" for number in range(1000)]
    running = asyncio.create_task(world.decisions.run())
    for names in (nodes, ["n1"]):
        world.decisions.filtered("uid", "default/p", None, names, Verdict(list(names), {}, {}))
        one = world.decisions.get("uid")
        assert one is not None
        while one.raw is not None:
            await asyncio.sleep(0)
            await world.clock.turn(0.01)
        assert one.summary is not None
        assert one.summary.fits == len(names)
    running.cancel()


async def test_hundreds_of_different_reasons_are_grouped(world: World) -> None:
    nodes = [f"n{number}" for number in range(3000)]
    reasons = {name: f"reason {name}" for name in nodes}
    world.decisions.filtered("uid", "default/p", None, nodes, Verdict([], reasons, {}))
    one = world.decisions.of("uid")
    assert one is not None
    assert one.summary is not None
    assert one.each is not None
    assert one.summary.groups[-1].reason == "other reasons"
    assert sum(group.nodes for group in one.summary.groups) == 3000
    answers = list(one.each.answers(""))
    assert answers[5].reason == "reason n5"
    assert answers[-1].reason == "too many different reasons: not stored"


def test_every_category_is_recognized_by_how_its_reasons_begin() -> None:
    from gpushare.api.request.gpu_selection import UUID_EXCLUDE, GpuSelection
    from gpushare.api.request.request import Request
    from gpushare.ledger.fit import reasons
    from gpushare.reasons.categories import category_of

    model = 1
    selection = GpuSelection(models=("A10",))
    plain, core = Request(8, 0, ()), Request(8, 20, ())
    several, whole = Request(8, 0, (), 2), Request(8, 0, (), 2, whole_device=True)
    expected = {
        reasons.UNKNOWN_NODE: Category.NODE,
        NodeMode.MPS.one_gpu_text: Category.NODE,
        "node has no GPU": Category.NODE,
        reasons.too_large(plain, 4, next(iter(reasons.MemoryUnit))): Category.SIZE,
        reasons.other_unit(Request(8, 0, (), unit_mib=128), 1024): Category.UNIT,
        reasons.too_much_core(200): Category.SIZE,
        reasons.only_unhealthy(8192, "GPU 0 is unhealthy"): Category.HEALTH,
        reasons.mixed(plain, 1): Category.KINDS,
        reasons.mixed(core, 2): Category.KINDS,
        reasons.node_at_cap(3): Category.PODS,
        reasons.at_cap(1): Category.PODS,
        reasons.no_room(8192) + reasons.largest_free(0, 0): Category.MEMORY,
        reasons.no_compute(8192, 30) + reasons.nearest(8192, 1, 10): Category.COMPUTE,
        reasons.too_few_gpus(2, 1): Category.SIZE,
        reasons.excluded(selection, (model, model)): Category.SELECTION,
        reasons.excluded(selection, (model, UUID_EXCLUDE, UUID_EXCLUDE)): Category.SELECTION,
        reasons.too_few_allowed(several, 1, reasons.excluded(selection, (model, 0))): Category.SELECTION,
        reasons.too_few_large(several, 8192, (1,)): Category.SIZE,
        reasons.too_few_healthy(several, 8192, "GPU 0 is cordoned"): Category.HEALTH,
        reasons.too_few_free(several, 8192, ()): Category.MEMORY,
        reasons.too_few_free(whole, 8192, (1, 2)): Category.MEMORY,
        reasons.too_few_below_cap(several, 8192, 3, (1,)): Category.PODS,
        reasons.too_few_with_compute(Request(8, 20, (), 2), 8192, (1,)): Category.COMPUTE,
        "gang default/g: this pod is not known yet": Category.GANG,
        "elastic quota root/a: 3 of 4 aliyun.com/gpu-mem used (max), 2 requested": Category.QUOTA,
        "ResourcePolicy default/p: unit 1: full": Category.POLICY,
        "the kubelet offers 3 aliyun.com/gpu-mem less than the node's GPUs have (…)": Category.HEALTH,
        "the kubelet has 3 aliyun.com/gpu-mem left: pods without an allocation record hold 5": Category.HEALTH,
        "the pod is still being bound to node n1": Category.BINDING,
    }
    assert {text: category_of(text) for text in expected} == expected
    assert category_of(f"node shares no GPU memory (it is in mode {NodeMode.DEFAULT.value})") is Category.NODE
