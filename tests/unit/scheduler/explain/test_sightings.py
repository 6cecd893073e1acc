"""A pod's life in the scheduler's log: by its UID, from its first sighting to its end, and nothing twice."""

import logging

import pytest

from gpushare.api import names
from gpushare.api.objects import decode_pod
from gpushare.api.request.unit_conversion import Counting, requested_text
from gpushare.scheduler.cache.pod_records import record_of
from gpushare.scheduler.framework.binder import BindRefused
from gpushare.scheduler.framework.runtime import Pods
from gpushare.scheduler.plugins.explain.pod_lifecycle_log import PodLifecycleLog
from tests.unit.scheduler.defragmentation.moving import INTERVAL_S, Moving
from tests.unit.scheduler.framework.test_bind import LOST, args, fail
from tests.unit.scheduler.preemption.test_preemption import ask, bound, look
from tests.unit.scheduler.world import World, pod_object

LogContext = tuple[str, str, str, str]


class Watched:
    """Delivers the pods of ``world`` as the watch would."""

    def __init__(self, world: World) -> None:
        self._world = world
        log = PodLifecycleLog(world.view, world.decisions)
        self._pods = Pods(world.view, before=[log], after=[world.nominated, world.decisions])

    def see(self, name: str) -> None:
        record = record_of(decode_pod(self._world.api.pods[f"default/{name}"]))
        if record is not None:
            self._pods.upsert(record)

    def lose(self, name: str) -> None:
        record = record_of(decode_pod(self._world.api.pods.pop(f"default/{name}")))
        if record is not None:
            self._pods.remove(record.pod, record)


@pytest.fixture
def watched(world: World) -> Watched:
    return Watched(world)


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gpushare.scheduler")


def logged(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    """The result of a search for the pod's UID."""
    found = []
    for record in caplog.records:
        about: LogContext = record.__dict__.get("about", ("", "", "", ""))
        if about[3] == f"uid-{name}":
            assert about[:2] == (f"default/{name}", f"uid-{name}")
            found.append(record.getMessage())
    return found


async def bind(world: World, name: str) -> None:
    """As in the verb, which records the outcome."""
    error = ""
    try:
        await world.binder.bind(args(name))
    except BindRefused as refused:
        error = str(refused)
    world.decisions.bind_ended(f"uid-{name}", f"default/{name}", "n1", error)


async def test_a_pending_pod_is_logged_once_and_its_end_too(
    world: World, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    pod = pod_object("a", 4)
    pod["spec"]["schedulerName"] = "ack-co-scheduler"
    world.api.create(pod)
    for _ in range(2):
        watched.see("a")
    await bind(world, "a")
    for phase in ("Pending", "Running"):
        pod["status"]["phase"] = phase
        watched.see("a")
    pod["status"]["phase"] = "Succeeded"
    for _ in range(2):
        watched.see("a")
    watched.lose("a")
    assert logged(caplog, "a") == [
        "pod default/a: pending for ack-co-scheduler, requests aliyun.com/gpu-mem: 4",
        "pod default/a: has succeeded",
    ]


@pytest.mark.parametrize("bind_first", [True, False], ids=["bound", "waiting"])
async def test_a_deleted_pod_is_logged_as_gone(
    world: World, watched: Watched, caplog: pytest.LogCaptureFixture, bind_first: bool
) -> None:
    world.api.create(pod_object("a", 4))
    watched.see("a")
    if bind_first:
        await bind(world, "a")
        watched.see("a")
    watched.lose("a")
    assert logged(caplog, "a")[1:] == ["pod default/a: is gone"]


async def test_the_amounts_of_admission_are_logged_when_a_pod_is_first_seen(
    world: World, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    pod = pod_object("counted", 6)
    (container,) = (one["name"] for one in pod["spec"]["containers"])
    note = requested_text(Counting(), {container: "6144Mi"})
    pod["metadata"]["annotations"] = {names.ANN_REQUESTED: note}
    world.api.create(pod)
    watched.see("counted")
    (line,) = logged(caplog, "counted")
    assert line.endswith(
        f"requests gpushare.dev/gpu-memory: 6 GiB (gpushare.dev/requested: {container} 6144Mi)"
    )


async def test_gates_and_unreadable_requests_are_logged_when_a_pod_is_first_seen(
    world: World, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    gated = pod_object("gated", 4)
    gated["spec"]["schedulingGates"] = [{"name": "quota"}]
    world.api.create(gated)
    world.api.create(pod_object("wrong", 4, core=7))
    for name in ("gated", "wrong"):
        watched.see(name)
    (gated_line,), (first, second) = logged(caplog, "gated"), logged(caplog, "wrong")
    assert gated_line.endswith("requests aliyun.com/gpu-mem: 4, held back by quota")
    assert first.endswith("requests an unreadable amount")
    assert second.startswith("pod default/wrong cannot be placed: ")


async def test_a_binding_without_an_answer_is_logged_when_the_watch_shows_it(
    world: World, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    world.api.create(pod_object("a", 4))
    watched.see("a")
    world.api.after.append(fail(LOST))
    world.api.reading.append(fail(LOST))
    await bind(world, "a")
    assert logged(caplog, "a")[1:] == [f"pod default/a may or may not be bound to node n1: {LOST}"]
    watched.see("a")
    watched.see("a")
    assert logged(caplog, "a")[2:] == ["pod default/a: observed on node n1"]


async def test_a_binding_by_another_scheduler_is_logged(
    world: World, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    pod = pod_object("a", 4)
    world.api.create(pod)
    watched.see("a")
    pod["spec"]["nodeName"] = "n1"
    watched.see("a")
    assert logged(caplog, "a")[1:] == ["pod default/a: observed on node n1"]


async def test_a_binding_seen_before_its_answer_is_not_logged_twice(
    world: World, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    world.api.create(pod_object("a", 4))
    watched.see("a")
    world.api.after.append(lambda: watched.see("a"))
    await bind(world, "a")
    watched.see("a")
    assert len(logged(caplog, "a")) == 1


async def test_existing_and_foreign_pods_are_not_logged(
    world: World, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    world.api.create(pod_object("ended", 4, phase="Failed"))
    world.api.create(pod_object("plain"))
    gang = {
        "pod-group.scheduling.sigs.k8s.io/name": "g",
        "pod-group.scheduling.sigs.k8s.io/min-available": "2",
    }
    world.api.create(pod_object("bystander", labels=gang))
    await bound(world, "bound", 4)
    for name in ("ended", "plain", "bystander", "bound"):
        watched.see(name)
    watched.lose("bystander")
    assert caplog.messages == []


async def test_a_victim_is_found_by_its_own_uid_too(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await bound(world, "low", 16, priority=1)
    world.create("high", 8, priority=9)
    ask(world, "high")
    await look(world)
    assert logged(caplog, "low") == ["pod default/low: eviction requested, to make room for pod default/high"]
    (line,) = logged(caplog, "high")
    assert line.endswith("preemption on node n1 evicts default/low (priority 1)")


async def test_a_moved_pod_is_found_by_either_uid(moving: Moving, caplog: pytest.LogCaptureFixture) -> None:
    moving.node("m", 16)
    await moving.bound("c", 6, "m", owner="")
    moving.made("wide", 12, "")
    moving.ask("wide")
    await moving.look(INTERVAL_S)
    (moved,) = moving.api.evicted
    assert any(line.startswith(f"pod default/{moved} is moved off ") for line in logged(caplog, moved))
    assert any(f": pod default/{moved} is moved off " in line for line in logged(caplog, "wide"))
