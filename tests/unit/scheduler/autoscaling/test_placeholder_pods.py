"""A pod that fits a node's sum but no GPU gets one placeholder pod of the right kind for as long as needed; no other pod does."""

import asyncio
from typing import Any

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.crd.placeholder_pod import MOST_NAMED, decode_placeholder
from gpushare.api.node.modes import NodeMode
from gpushare.kube.client.errors import ApiError
from gpushare.scheduler.plugins.autoscaling.placeholder_pods import LOOK_S, SETTLE_S, Marks
from gpushare.scheduler.plugins.autoscaling.settings import INSTANCE_TYPE, PlaceholderLimits
from tests.unit.scheduler.autoscaling.scaling import WAIT_S, Scaling
from tests.unit.scheduler.world import gpu_node, pod_object


@pytest.fixture
async def scaling() -> Scaling:
    """Two nodes of two GPUs, six units free on each; and a pending pod of eight."""
    made = Scaling()
    for node in ("n1", "n2"):
        made.node(node, 16, 16)
        for number in range(2):
            await made.bound(f"{node}-{number}", 10, node)
    made.create("large", 8)
    assert not made.ask("large")
    return made


BOTH = ({"host-n1", "host-n2"}, {"two"})


async def test_it_is_created_after_a_wait_and_deleted_once_the_pod_has_a_node(scaling: Scaling) -> None:
    await scaling.look(WAIT_S - 1)
    assert not scaling.there()
    await scaling.look(1)
    assert scaling.there() == {"large": BOTH}
    assert scaling.recorded_events() == [("large", "ScaleUpRequested")]
    assert "status" not in scaling.api.pods["placeholders/stand-in-uid-large"]
    await scaling.look(1)
    (condition,) = scaling.api.pods["placeholders/stand-in-uid-large"]["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "PodScheduled",
        "False",
        "Unschedulable",
    )
    for _ in range(10):
        assert not scaling.ask("large")
        await scaling.look(60)
    assert scaling.there() == {"large": BOTH}
    assert scaling.scaling_api.made == 1
    scaling.node("n3", 16, 16)
    assert scaling.ask("large") == ["n3"]
    await scaling.bind("large", "n3")
    await scaling.look(1)
    assert not scaling.there()
    assert scaling.placeholders.count == 0


async def test_it_is_neither_our_pod_nor_in_the_report(scaling: Scaling) -> None:
    await scaling.look(WAIT_S)
    scaling.api.pods["default/s"] = scaling.api.pods["placeholders/stand-in-uid-large"]
    waiting = set(scaling.view.waiting)
    scaling.see("s")
    assert set(scaling.view.waiting) == waiting


async def test_it_is_deleted_with_its_pod(scaling: Scaling) -> None:
    await scaling.look(WAIT_S)
    scaling.end("large")
    await scaling.look(1)
    assert not scaling.there()
    await scaling.look(60)
    assert not scaling.placeholders._refused


async def test_it_is_deleted_when_room_is_made_or_a_quota_holds_its_pod_back(scaling: Scaling) -> None:
    await scaling.look(WAIT_S)
    request = scaling.view.waiting["uid-large"].request
    assert request is not None
    scaling.end("n1-0")
    plan = scaling.ledger.evictions.plan(request, ("n1",), lambda uid: None)
    assert plan is not None
    scaling.ledger.nominations.add("uid-large", request, plan)
    await scaling.look(1)
    assert not scaling.there()


async def test_a_full_sum_or_existing_room_needs_none(scaling: Scaling) -> None:
    scaling.create("wide", 13)
    assert not scaling.ask("wide")
    scaling.create("small", 7)
    assert not scaling.ask("small")
    scaling.end("n1-0")
    await scaling.look(WAIT_S)
    assert not scaling.there(), "a GPU is free by now, and no node's sum is 13 but that one's"


async def test_no_unsuitable_node_is_requested(scaling: Scaling) -> None:
    scaling.node("four", 15, 15, 15, 15, kind="four")
    scaling.node("big", 32, 32, kind="big")
    for number in range(2):
        await scaling.bound(f"big-{number}", 20, "big")
    scaling.create("huge", 20)
    assert not scaling.ask("huge")
    await scaling.look(WAIT_S)
    assert scaling.there()["huge"] == ({"host-big"}, {"big"})
    # Not even if the sum would suffice and the kind is unknown, or all of its kind are too small.
    scaling.create("vast", 24)
    assert not scaling.ask("vast", "four")
    await scaling.look(WAIT_S)
    assert "vast" not in scaling.there()


async def test_nodes_without_an_instance_type_are_reported_once() -> None:
    scaling = Scaling()
    scaling.node("n", 16, 16, kind="")
    for number in range(2):
        await scaling.bound(f"p{number}", 10, "n")
    scaling.create("large", 8)
    assert not scaling.ask("large")
    for _ in range(3):
        await scaling.look(WAIT_S)
        assert not scaling.ask("large")
    assert scaling.recorded_events() == [("large", "ScaleUpNotPossible")]
    assert INSTANCE_TYPE in scaling.events.notes[0][2]
    assert not scaling.there()


async def test_a_new_node_that_others_filled_is_followed_by_another_placeholder(
    scaling: Scaling,
) -> None:
    await scaling.look(WAIT_S)
    scaling.node("n3", 16, 16)
    for number in range(2):
        await scaling.bound(f"n3-{number}", 10, "n3")
    assert not scaling.ask("large")
    for _ in range(4):
        await scaling.look(SETTLE_S / 4)
        assert not scaling.ask("large"), "kube-scheduler asks again and again"
    assert scaling.there() == {"large": BOTH}, "a refusal may pass"
    for _ in range(4):
        await scaling.look(SETTLE_S / 4)
        assert not scaling.ask("large")
    assert scaling.scaling_api.deleted == ["s1"]
    await scaling.look(1)
    assert scaling.there() == {"large": ({*BOTH[0], "host-n3"}, {"two"})}


async def test_an_unsuitable_node_is_excluded_too_and_a_new_one_is_not(
    scaling: Scaling,
) -> None:
    cordoned = gpu_node("n3", 16384, 16384)
    devices = tuple(msgspec.structs.replace(one, cordoned=True) for one in cordoned.devices)
    scaling.add_node(msgspec.structs.replace(cordoned, devices=devices))
    scaling.add_node(gpu_node("n4"))
    scaling.marks |= {name: Marks(f"host-{name}", "two") for name in ("n3", "n4", "unknown")}
    assert not scaling.ask("large")
    await scaling.look(WAIT_S)
    assert scaling.there() == {"large": ({*BOTH[0], "host-n3"}, {"two"})}


async def test_there_are_no_more_than_allowed_the_highest_priority_first(scaling: Scaling) -> None:
    scaling.clock.now_s += 1
    for name, priority in (("a", 0), ("b", 7), ("c", 5)):
        scaling.create(name, 8, priority=priority)
        assert not scaling.ask(name)
    await scaling.look(WAIT_S)
    assert set(scaling.there()) == {"b", "c"}
    scaling.end("b")
    await scaling.look(1)
    await scaling.look(1)
    assert set(scaling.there()) == {"c", "large"}


async def test_there_are_no_more_than_allowed_while_the_watch_lags_behind(scaling: Scaling) -> None:
    for name in "abc":
        scaling.create(name, 8)
        assert not scaling.ask(name)
    scaling.clock.now_s += WAIT_S
    for _ in range(3):
        await scaling.placeholders.look()
        scaling.clock.now_s += SETTLE_S
    assert scaling.scaling_api.made == 2
    scaling.watch()
    assert not scaling.placeholders._unshown
    await scaling.placeholders.look()
    assert scaling.scaling_api.made == 2


async def test_a_placeholder_that_the_watch_never_shows_does_not_count_forever(scaling: Scaling) -> None:
    scaling.clock.now_s += WAIT_S
    await scaling.placeholders.look()
    del scaling.api.pods["placeholders/stand-in-uid-large"]
    for _ in range(3):
        scaling.clock.now_s += 60.0
        await scaling.placeholders.look()
    assert scaling.scaling_api.made == 2


async def test_only_the_replica_with_the_leading_kube_scheduler_writes_and_the_next_continues(
    scaling: Scaling,
) -> None:
    scaling.scaling_api.holder = "elsewhere_1"
    await scaling.look(WAIT_S)
    assert not scaling.there()
    scaling.scaling_api.holder = "here_1"
    await scaling.look(1)
    assert scaling.there()
    # A restarted process knows what it reads, and nothing of refusals.
    successor = Scaling(scaling.scaling_api)
    successor.read = False
    successor.watch()
    await successor.look(1)
    assert not scaling.scaling_api.deleted, "nothing was read yet"
    for name in ("n1", "n2"):
        successor.node(name, 16, 16)
    for pod in list(scaling.api.pods):
        if pod.startswith("default/"):
            successor.see(pod.removeprefix("default/"))
    successor.read = True
    await successor.look(WAIT_S)
    assert successor.there() == {"large": BOTH}
    (placeholder,) = successor.placeholders._existing.values()
    assert placeholder.unschedulable, "what the last one did not come to is done"
    assert not successor.ask("large", "n1")
    for _ in range(3):
        await successor.look(WAIT_S)
    assert successor.scaling_api.made == 1, "what it names beside that was right, and stays"
    successor.end("large")
    await successor.look(1)
    assert not successor.there()


async def test_a_pod_with_other_demands_on_a_node_gets_an_event_and_no_placeholder(scaling: Scaling) -> None:
    scaling.api.pods["default/large"]["spec"]["hostNetwork"] = True
    for _ in range(3):
        await scaling.look(WAIT_S)
    assert not scaling.there()
    assert scaling.recorded_events() == [("large", "ScaleUpNotPossible")]


async def test_gangs_whole_gpus_and_pods_being_bound_get_none(scaling: Scaling) -> None:
    gang = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "1"}
    scaling.create("member", 8, labels=gang)
    assert not scaling.ask("member")
    whole = pod_object("whole")
    whole["spec"]["containers"][0]["resources"]["limits"] = {names.GPU_WHOLE: 1}
    scaling.api.create(whole)
    scaling.see("whole")
    scaling.placeholders.refused("uid-whole", ["n1"])
    scaling.placeholders.refused("uid-member", ["n1"])
    await scaling.look(WAIT_S)
    assert set(scaling.there()) == {"large"}


async def test_several_gpus_are_handled_like_one(scaling: Scaling) -> None:
    scaling.create("pair", 16, labels={names.LABEL_POD_GPU_COUNT: "2"})
    for name in ("n1", "n2"):
        scaling.end(f"{name}-0")
    assert not scaling.ask("pair")
    await scaling.look(WAIT_S)
    assert scaling.there()["pair"] == BOTH


async def test_an_exhausted_sum_of_compute_needs_none() -> None:
    for core, made in ((60, True), (90, False)):
        scaling = Scaling()
        scaling.node("n", 16, 16, mode=NodeMode.CORE_MEM)
        for number in range(2):
            scaling.create(f"p{number}", 10, core=60)
            await scaling.bind(f"p{number}", "n")
        scaling.create("wide", 4, core=core)
        assert not scaling.ask("wide")
        await scaling.look(WAIT_S)
        assert bool(scaling.there()) is made


async def test_the_compute_of_a_gpu_per_container_is_summed() -> None:
    """40% and 20% are free: twice 30% is as much in all, so that cluster-autoscaler sees room; twice 40% is not."""
    for core, made in ((30, True), (40, False)):
        scaling = Scaling()
        scaling.node("n", 16, 16, mode=NodeMode.CORE_MEM)
        for number, used in enumerate((60, 80)):
            scaling.create(f"p{number}", 10, core=used)
            await scaling.bind(f"p{number}", "n")
        waiting = pod_object("apart", 2, core=core, labels={names.LABEL_POD_APART: "true"})
        (main,) = waiting["spec"]["containers"]
        waiting["spec"]["containers"].append({**main, "name": "other"})
        scaling.api.create(waiting)
        scaling.see("apart")
        assert not scaling.ask("apart")
        await scaling.look(WAIT_S)
        assert bool(scaling.there()) is made


async def test_a_failed_request_is_retried_and_a_forbidden_one_reported(scaling: Scaling) -> None:
    scaling.scaling_api.failing.append(ApiError(500, "InternalError", "no", ""))
    with pytest.raises(ApiError):
        await scaling.look(WAIT_S)
    scaling.scaling_api.failing.append(ApiError(403, "Forbidden", "pods is forbidden", ""))
    await scaling.look(SETTLE_S)
    assert scaling.recorded_events() == [("large", "ScaleUpNotPossible")]
    assert "forbidden" in scaling.events.notes[0][2]
    await scaling.look(1)
    assert not scaling.there(), "not at once"
    await scaling.look(4 * SETTLE_S)
    assert scaling.there()
    # One exists already that the watch has not shown: the name is the same, so none is created twice.
    scaling.placeholders._existing.clear()
    await scaling.placeholders.look()
    scaling.clock.now_s += 600
    await scaling.placeholders.look()
    assert scaling.scaling_api.made == 1
    scaling.watch()
    scaling.scaling_api.failing.append(ApiError(500, "InternalError", "no", ""))
    with pytest.raises(ApiError):
        await scaling.look()
    scaling.scaling_api.failing.append(ApiError(404, "NotFound", "gone", ""))
    await scaling.look()


async def test_a_pod_that_is_gone_replaced_or_bound_when_it_is_read_gets_none(scaling: Scaling) -> None:
    pod = scaling.api.pods["default/large"]

    def gone() -> None:
        del scaling.api.pods["default/large"]

    def another() -> None:
        scaling.api.pods["default/large"] = {**pod, "metadata": {**pod["metadata"], "uid": "uid-new"}}

    def broken() -> None:
        raise ApiError(500, "InternalError", "no", "")

    scaling.api.reading.append(broken)
    with pytest.raises(ApiError):
        await scaling.look(WAIT_S)
    for change in (gone, another):
        scaling.api.reading.append(change)
        await scaling.look(WAIT_S)
        assert not scaling.there()
        scaling.api.pods["default/large"] = pod
    await scaling.placeholders._make("uid-unknown", 0.0)
    assert not scaling.there()


async def test_more_nodes_than_a_pod_may_name_are_reported(scaling: Scaling) -> None:
    for number in range(MOST_NAMED):
        scaling.marks[f"m{number}"] = Marks(f"host-m{number}", "two")
    refused = scaling.placeholders._refused["uid-large"]
    refused.hosts.update(f"host-m{number}" for number in range(MOST_NAMED))
    await scaling.look(WAIT_S)
    assert not scaling.there()
    assert str(MOST_NAMED) in scaling.events.notes[0][2]


async def test_the_label_for_the_kind_of_nodes_is_configurable(scaling: Scaling) -> None:
    await scaling.look(WAIT_S)
    other = PlaceholderLimits("placeholders", kind_label="pool", wait_s=WAIT_S)
    scaling.placeholders._limits = other
    assert not scaling.ask("large")
    await scaling.look(SETTLE_S + 1)
    await scaling.look(SETTLE_S + 1)
    await scaling.look(60)
    (one,) = scaling.placeholders._existing.values()
    assert one.likeness.key == "pool"


async def test_the_number_of_remembered_pods_is_bounded_and_a_replaced_placeholder_stays() -> None:
    scaling = Scaling()
    scaling.refused("uid-x", [])
    assert not scaling.placeholders._refused
    for number in range(300):
        scaling.refused(f"uid-{number}", ["n"])
    assert len(list(scaling.placeholders._nodes)) == 256
    scaling.placeholders.synced()
    raw = msgspec.json.encode(
        {
            "metadata": {
                "name": "s",
                "namespace": "placeholders",
                "uid": "s2",
                "labels": {names.LABEL_STANDS_FOR: "u"},
            }
        }
    )
    found = decode_placeholder(raw)
    assert found is not None
    scaling.placeholders.upsert(found[1])
    scaling.placeholders.remove("", msgspec.structs.replace(found[1], uid="s1"))
    assert scaling.placeholders.count == 1


@pytest.mark.no_cover  # would take several times as long; other tests cover the same lines
async def test_with_very_many_repeated_refusals_a_node_is_requested_all_the_same(
    scaling: Scaling,
) -> None:
    pods = [f"large-{number}" for number in range(300)]
    for name in pods:
        scaling.create(name, 12)
    for _ in range(int(WAIT_S / 10) + 1):
        for name in pods:
            assert not scaling.ask(name)
        await scaling.look(10.0)
    assert scaling.there()


async def test_it_waits_while_no_pod_is_refused() -> None:
    scaling = Scaling()
    running = asyncio.create_task(scaling.placeholders.run())
    for _ in range(5):
        await asyncio.sleep(0)
    scaling.refused("uid-gone", ["n"])
    for _ in range(3):
        for _ in range(5):
            await asyncio.sleep(0)
        await scaling.clock.turn(WAIT_S)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not scaling.placeholders._refused, "who is never seen is forgotten"
    running.cancel()


async def test_it_runs_by_itself_and_continues_after_a_failure(scaling: Scaling) -> None:
    scaling.scaling_api.failing.append(ApiError(500, "InternalError", "no", ""))
    running = asyncio.create_task(scaling.placeholders.run())
    for seconds in (WAIT_S, LOOK_S, LOOK_S, SETTLE_S):
        for _ in range(30):
            await asyncio.sleep(0)
        await scaling.clock.turn(seconds)
    for _ in range(30):
        await asyncio.sleep(0)
    running.cancel()
    assert scaling.scaling_api.made == 1


@pytest.mark.parametrize(
    ("limits", "option"),
    [
        ({"namespace": "No"}, "--placeholder-pods "),
        ({"namespace": "n", "kind_label": "a b"}, "group-label"),
    ],
)
def test_limits_out_of_range_are_refused_by_name(limits: dict[str, Any], option: str) -> None:
    with pytest.raises(ValueError, match=option):
        PlaceholderLimits(**limits)
