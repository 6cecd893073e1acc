"""Pods that kube-scheduler never offers: their reason is quoted from their scheduler, with a suggestion."""

from typing import Any

import msgspec
import pytest

from gpushare.reasons.kube_scheduler import description, would_help
from gpushare.reasons.unscheduled import MAX_MESSAGE_LENGTH, Unplaced, unplaced_of
from gpushare.scheduler.plugins.explain.decision_log import PendingPod
from gpushare.scheduler.plugins.explain.pending_pod_events import FromDecisions, PendingPodEvents
from tests.unit.scheduler.explain.test_decisions import GIB, ask, bind, give
from tests.unit.scheduler.server.test_app import Browser, filter_body
from tests.unit.scheduler.world import World, gpu_node, pod_object

OURS = "ack-co-scheduler"


class Leads:
    leads = True


def see(
    world: World, name: str, mem: Any = 2, *, scheduler: str = OURS, message: str = "", gates: Any = None
) -> None:
    """A pod as the watch shows it, with its scheduler's condition."""
    pod = pod_object(name, mem)
    pod["spec"]["schedulerName"] = scheduler
    pod["spec"]["schedulingGates"] = gates
    if message:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}, condition]
    world.api.create(pod)
    world.see(name)


def only(world: World) -> PendingPod:
    (one,) = world.decisions.waiting()
    return one


SELECTOR = (
    "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match Pod's node affinity/selector. "
    "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
)


async def test_the_schedulers_own_rules_are_quoted_with_what_would_help(world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    see(world, "pod", message=SELECTOR)

    one = only(world)

    assert one.category == "rules"
    assert one.reason == (
        "ack-co-scheduler says: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match Pod's node affinity/selector"
    )
    assert one.suggestion == (
        "a node with the labels that its nodeSelector or node affinity requires, or another selector; a node with more free "
        "cpu, or a smaller request"
    )


async def test_an_impossible_label_is_named_in_the_suggestion_to_the_pod_that_waits_for_it(
    world: World,
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    pod = pod_object("pod", 2)
    pod["spec"]["nodeSelector"] = {"ack.node.gpu.schedule": "core-mem"}
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SELECTOR}
    pod["status"]["conditions"] = [condition]
    world.api.create(pod)
    world.see("pod")

    assert only(world).suggestion == (
        "its nodeSelector requires ack.node.gpu.schedule=core-mem, which no node can have: write core_mem; "
        "a node with more free cpu, or a smaller request"
    )


@pytest.mark.parametrize(
    ("selector", "suggestion"),
    [
        (
            {"ack.node.gpu.schedule": "cgpu"},
            "no node is in mode cgpu, which its nodeSelector requires; node n1 is in mode share: "
            "`kubectl label node n1 ack.node.gpu.schedule=cgpu --overwrite`; or another selector",
        ),
        (
            {"ack.node.gpu.schedule": "share"},
            "a node that matches its nodeSelector, ack.node.gpu.schedule=share: "
            "`kubectl label node NODE ack.node.gpu.schedule=share`; or another selector",
        ),
        (
            {"ack.node.gpu.schedule": "cgpu", "pool": "a"},
            "no node is in mode cgpu, which its nodeSelector requires; node n1 is in mode share: "
            "`kubectl label node n1 ack.node.gpu.schedule=cgpu pool=a --overwrite`; or another selector",
        ),
    ],
)
async def test_the_labels_of_a_selector_are_named_with_the_command_that_sets_them(
    world: World, selector: dict[str, str], suggestion: str
) -> None:
    world.add_node(gpu_node("n0", 1 * GIB))
    world.add_node(gpu_node("n1", 8 * GIB))
    pod = pod_object("pod", 2)
    pod["spec"]["nodeSelector"] = selector
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SELECTOR}
    pod["status"]["conditions"] = [condition]
    world.api.create(pod)
    world.see("pod")

    assert only(world).suggestion == f"{suggestion}; a node with more free cpu, or a smaller request"


async def test_the_shortage_of_gpus_is_added_and_stands_alone_if_only_gpus_were_counted(
    world: World,
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    see(world, "pod", 99, message=SELECTOR)
    one = only(world)
    assert one.category == "rules"
    assert one.reason.endswith("; GPU capacity: requests 99 GiB, but the largest GPU has 8 GiB")

    see(world, "pod", 99, message="0/1 nodes are available: 1 Insufficient aliyun.com/gpu-mem.")
    one = only(world)
    assert one.category == "size"
    assert (
        one.reason
        == "kube-scheduler has not offered any node for it; requests 99 GiB, but the largest GPU has 8 GiB"
    )


@pytest.mark.parametrize(
    ("text", "help_text"),
    [
        (
            "0/1 nodes are available: 1 node(s) had untolerated taint {team: ml}. no new claims to deallocate, preemption: x",
            "a toleration of the taint team: ml, or a node without it",
        ),
        (
            "0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }.",
            "a node that is ready, without the taint node.kubernetes.io/unreachable",
        ),
        (
            "0/2 nodes are available: 1 node(s) had untolerated taint {ToBeDeletedByClusterAutoscaler: 17}, "
            "1 node(s) had untolerated taint {team: ml}.",
            "a node that is ready, without the taint ToBeDeletedByClusterAutoscaler: 17; "
            "a toleration of the taint team: ml, or a node without it",
        ),
        (
            "0/1 nodes are available: 1 node(s) had untolerated taint(s).",
            "a toleration of the taint, or a node without it",
        ),
        (
            '0/1 nodes are available: persistentvolumeclaim "data" not found. not found',
            "a PersistentVolumeClaim data in its namespace",
        ),
        (
            "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
            "a volume for its PersistentVolumeClaims (`kubectl get pvc`)",
        ),
        (
            "0/2 nodes are available: 1 Too many pods, 1 node(s) were unschedulable.",
            "`kubectl uncordon` of a node, or a node that is ready; a node with a higher limit of pods",
        ),
        (
            "0/3 nodes are available: 3 Insufficient memory.",
            "a node with more free memory, or a smaller request",
        ),
        ("no nodes available to schedule pods", "a node"),
        ("something new", "see the scheduler's message: `kubectl describe pod` shows all of it"),
    ],
)
def test_each_rule_has_its_own_suggestion(text: str, help_text: str) -> None:
    unplaced = Unplaced(OURS, "", text)
    assert description(unplaced).startswith("ack-co-scheduler says: ")
    assert would_help(unplaced, {OURS}) == help_text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0/2 nodes are available: 1 requests 99 GiB, but the largest GPU has 15 GiB, 1 node(s) were unschedulable.",
        "0/1 nodes are available: 1 node shares no GPU memory (it is in mode default, label ack.node.gpu.schedule).",
        "0/1 nodes are available: 1 no single GPU has 9 GiB free (largest free: 7 GiB on GPU 0).",
    ],
)
async def test_a_refusal_by_an_earlier_leader_of_ours_is_no_rule_of_the_scheduler(
    world: World, text: str
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    see(world, "pod", message=text)

    one = only(world)

    assert one.category == "unasked"


async def test_gates_are_listed_by_name(world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    see(world, "pod", gates=[{"name": "example.com/quota"}, {"name": "b"}])

    one = only(world)

    assert one.category == "gates"
    assert one.reason == "scheduling gates block it: example.com/quota, b"
    assert one.suggestion.startswith("the controller that set them must remove them")


async def test_a_pod_whose_scheduler_does_not_run_is_reported_after_a_while(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    world.clock.now_s = 1_800_000_000.0
    pod = pod_object("pod", 2)
    pod["spec"]["schedulerName"] = "absent"
    pod["metadata"]["creationTimestamp"] = "2027-01-15T08:00:00Z"
    world.api.create(pod)
    world.see("pod")
    assert only(world).category == "unasked"

    await world.clock.turn(11)
    one = only(world)
    assert one.category == "unserved"
    assert one.reason == "no scheduler has handled it: none seems to run for schedulerName absent"
    assert (
        one.suggestion
        == "the pod recreated with schedulerName ack-co-scheduler, or a scheduler that runs for absent"
    )

    # A scheduler of that name offers pods: this pod's turn is still to come.
    other = pod_object("other", 2)
    other["spec"]["schedulerName"] = "absent"
    world.api.create(other)
    await browser.post("filter", filter_body(other, "n1"))
    assert only(world).category == "unasked"


async def test_our_own_scheduler_is_never_reported_as_missing(world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    see(world, "pod")
    await world.clock.turn(60)
    assert only(world).category == "unasked"


async def test_a_pod_with_room_that_its_scheduler_does_not_bind_is_explained(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await ask(browser, world, "pod", "n1", mem=2)
    see(
        world,
        "pod",
        message='running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded',
    )
    assert only(world).category == "scheduler"

    await world.clock.turn(31)

    one = only(world)
    assert one.category == "rules"
    assert one.reason.startswith(
        'there is capacity on 1 node (n1), but ack-co-scheduler says: running PreBind plugin "Vol'
    )


async def test_a_pod_refused_here_shows_so_when_later_its_schedulers_own_rules_refuse_it(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    # The text of an earlier cycle may still be on the pod while this one's outcome is on its way.
    see(world, "pod", 9, message=SELECTOR)
    await browser.post("filter", filter_body(world.api.pods["default/pod"], "n1"))
    assert only(world).category == "size"

    see(world, "pod", 9, message="0/1 nodes are available: 1 requests 9 GiB, but the largest GPU has 8 GiB.")
    await world.clock.turn(3)
    assert only(world).category == "size"

    see(world, "pod", 9, message=SELECTOR)
    one = only(world)

    assert one.category == "rules"
    assert one.reason == (
        "ack-co-scheduler says: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match Pod's node affinity/selector; "
        "GPU capacity: requests 9 GiB, but the largest GPU has 8 GiB"
    )
    assert one.suggestion.startswith("a node with the labels that its nodeSelector or node affinity requires")

    # It is offered again: that counts.
    await browser.post("filter", filter_body(world.api.pods["default/pod"], "n1"))
    assert only(world).category == "size"


@pytest.mark.parametrize(
    "text",
    [
        'Post "http://127.0.0.1/gpushare/filter": context deadline exceeded',
        "0/900 nodes are available: "
        + ", ".join(f"1 node(s) had untolerated taint {{a: {at}}}" for at in range(99)),
    ],
)
async def test_a_text_without_certainty_that_rules_refused_all_nodes_changes_no_reason(
    browser: Browser, world: World, text: str
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await ask(browser, world, "pod", "n1", mem=9)
    see(world, "pod", 9, message=text)
    await world.clock.turn(3)
    assert only(world).category == "size"


async def test_a_failed_binding_is_reported_until_its_schedulers_own_rules_refuse_the_pod(
    browser: Browser, world: World
) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    await ask(browser, world, "pod", "n1", mem=6)
    await give(browser, world, "quicker", "n1", 6)
    assert await bind(browser, "pod", "n1")
    see(
        world,
        "pod",
        6,
        message="binding rejected: node n1: no single GPU has 6 GiB free (largest free: 2 GiB on GPU 0)",
    )
    await world.clock.turn(3)
    assert only(world).category == "memory"

    see(world, "pod", 6, message=SELECTOR)
    assert only(world).category == "rules"


async def test_a_scheduler_that_never_calls_us_is_named(browser: Browser, world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    other = pod_object("other", 2)
    other["spec"]["schedulerName"] = OURS
    await browser.post("filter", filter_body(other, "n1"))
    see(world, "pod", scheduler="default-scheduler", message=SELECTOR)

    assert only(world).suggestion.endswith(
        "; default-scheduler does not use the GPU extender, but ack-co-scheduler does: check the pod's schedulerName"
    )


async def test_each_reason_is_one_event_on_the_pod(world: World) -> None:
    world.add_node(gpu_node("n1", 8 * GIB))
    world.clock.now_s = 2_000_000_000.0
    see(world, "selects", message=SELECTOR)
    see(world, "gated", gates=[{"name": "g"}])
    see(world, "lost", scheduler="absent")
    pending_events = PendingPodEvents(FromDecisions(world.decisions), world.events, world.clock, Leads())

    for _ in range(3):
        await pending_events.look()
        # The number of nodes in the text is another one; the kind of reason is not.
        see(world, "selects", message=SELECTOR.replace("0/2", "0/3"))

    notes = {name: note for name, reason, note in world.events.notes if reason == "GPUSchedulingPending"}
    assert len(world.events.notes) == len(notes) == 3
    assert notes["gated"].startswith(
        "pending, requests aliyun.com/gpu-mem: 2: scheduling gates block it: g. What "
    )
    assert {kind: pending_events.by_reason[kind] for kind in ("rules", "gates", "unserved")} == dict.fromkeys(
        ("rules", "gates", "unserved"), 1
    )


def test_names_of_schedulers_and_messages_are_bounded(world: World) -> None:
    for number in range(100):
        world.decisions.note_scheduler(f"s{number}")
    assert len(world.decisions.asked_by) == 16

    see(world, "pod", message="x" * 10_000)
    assert len(world.view.waiting["uid-pod"].unplaced.condition_message) == MAX_MESSAGE_LENGTH + 1


def test_only_the_condition_of_a_failed_scheduling_is_read() -> None:
    from gpushare.api.objects import decode_pod

    pod = pod_object("pod", 2)
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "message": "x"}]
    pod["spec"]["schedulingGates"] = [{"name": "g"}, "odd"]
    assert unplaced_of(decode_pod(pod)) == Unplaced("", "g", "")


@pytest.mark.parametrize(
    "mistake",
    [
        "label ack.node.gpu.schedule=cgppu is unknown; use one of default, share, cgpu, core_mem, mps, topology, dra",
        "annotation gpushare.dev/cordoned-gpus names no GPU with 'gpu-1': write indices or UUIDs, with commas",
    ],
)
async def test_a_mistake_on_a_node_is_no_rule_of_the_schedulers_and_its_correction_is_suggested(
    browser: Browser, world: World, mistake: str
) -> None:
    wrong = msgspec.structs.replace(gpu_node("n1", 8 * GIB), refusal=mistake, problem=mistake)
    world.add_node(wrong)
    world.add_node(gpu_node("n2", 8 * GIB))
    see(
        world,
        "pod",
        message=f"0/2 nodes are available: 1 {mistake}, 1 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate",
    )
    await browser.post("filter", filter_body(world.api.pods["default/pod"], "n1"))
    await world.clock.turn(5)

    one = only(world)

    assert (one.category, one.reason) == ("node", mistake)
    assert one.suggestion == f"node n1, once its labels and annotations are corrected: {mistake}"


def test_a_misspelt_resource_gets_its_right_name_as_suggestion() -> None:
    unplaced = Unplaced(OURS, "", "0/3 nodes are available: 3 Insufficient aliyun.com/gpu-core.")
    assert would_help(unplaced, {OURS}) == (
        "another name, as no node offers aliyun.com/gpu-core: write aliyun.com/gpu-core.percentage"
    )


async def test_an_unreadable_request_gets_only_a_reason(world: World) -> None:
    see(world, "pod", "-3")
    await PendingPodEvents(FromDecisions(world.decisions), world.events, world.clock, Leads()).look()
    (note,) = [note for _, reason, note in world.events.notes if reason == "GPUSchedulingPending"]
    assert note.startswith("pending: ")
