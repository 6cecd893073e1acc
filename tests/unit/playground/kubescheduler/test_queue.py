import asyncio

import pytest

from gpushare_playground.kubescheduler.queue import Event, Place, SchedulingQueue, Waiting
from tests.unit.playground.kubescheduler.pods import a_pod


class Watch:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def queue(watch: Watch) -> SchedulingQueue:
    return SchedulingQueue(watch)


async def take(queue: SchedulingQueue) -> Waiting:
    return await asyncio.wait_for(queue.take(), 1.0)


async def fail(
    queue: SchedulingQueue, name: str = "p", *, error: bool = False, by_extender: bool = False
) -> Waiting:
    waiting = await take(queue)
    assert waiting.uid == f"uid-{name}"
    queue.failed(waiting, waiting.pod, error=error, refused_by_extender=by_extender)
    return waiting


async def is_empty(queue: SchedulingQueue) -> bool:
    taking = asyncio.ensure_future(queue.take())
    for _ in range(5):
        await asyncio.sleep(0)
    taken = taking.done()
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)
    return not taken


async def test_the_highest_priority_goes_first_then_the_oldest(queue: SchedulingQueue, watch: Watch) -> None:
    queue.add(a_pod("old"))
    watch.now += 1
    queue.add(a_pod("young"))
    queue.add(a_pod("urgent", priority=10))
    assert [(await take(queue)).uid for _ in range(3)] == ["uid-urgent", "uid-old", "uid-young"]


async def test_a_pod_that_fits_nowhere_waits_for_an_event_that_may_help(queue: SchedulingQueue) -> None:
    queue.add(a_pod())
    await fail(queue)
    assert queue.place_of("uid-p") is Place.UNSCHEDULABLE
    queue.happened(Event.POD_PLACED)
    assert queue.place_of("uid-p") is Place.UNSCHEDULABLE
    queue.happened(Event.POD_GONE)
    assert queue.place_of("uid-p") is Place.BACKING_OFF
    assert (await take(queue)).attempts == 2


async def test_a_pod_that_the_extender_refused_is_helped_by_any_event(queue: SchedulingQueue) -> None:
    queue.add(a_pod())
    await fail(queue, by_extender=True)
    queue.happened(Event.POD_PLACED)
    assert (await take(queue)).attempts == 2


async def test_an_event_during_the_attempt_is_not_missed(queue: SchedulingQueue) -> None:
    queue.add(a_pod())
    waiting = await take(queue)
    queue.happened(Event.POD_GONE)
    queue.failed(waiting, waiting.pod, error=False)
    assert queue.place_of("uid-p") is Place.BACKING_OFF
    assert (await take(queue)).attempts == 2


async def test_active_pods_go_before_those_that_back_off(queue: SchedulingQueue) -> None:
    queue.add(a_pod())
    await fail(queue)
    queue.happened(Event.NODE_ADDED)
    queue.add(a_pod("fresh"))
    assert (await take(queue)).uid == "uid-fresh"


async def test_after_an_error_the_back_off_is_waited_out_and_doubles_up_to_ten_seconds(
    queue: SchedulingQueue, watch: Watch
) -> None:
    queue.add(a_pod())
    for wait_s in (1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
        await fail(queue, error=True)
        watch.now += wait_s - 0.01
        assert await is_empty(queue)
        queue.happened(Event.POD_GONE)
        assert await is_empty(queue)
        watch.now += 0.01


async def test_an_unschedulable_pod_is_tried_again_after_five_minutes(
    queue: SchedulingQueue, watch: Watch
) -> None:
    queue.add(a_pod())
    await fail(queue)
    watch.now += 299
    assert await is_empty(queue)
    watch.now += 32
    assert (await take(queue)).attempts == 2


async def test_a_gated_pod_is_not_tried_before_its_gates_are_gone(queue: SchedulingQueue) -> None:
    queue.add(a_pod(), gated=True)
    assert await is_empty(queue)
    queue.happened(Event.NODE_ADDED)
    assert await is_empty(queue)
    queue.update(a_pod(), gated=False, worth=True)
    assert (await take(queue)).uid == "uid-p"


async def test_a_relevant_change_of_the_pod_itself_queues_it_again(queue: SchedulingQueue) -> None:
    queue.add(a_pod())
    await fail(queue)
    queue.update(a_pod(), gated=False, worth=False)
    assert queue.place_of("uid-p") is Place.UNSCHEDULABLE
    changed = a_pod(nodeSelector={"a": "b"})
    queue.update(changed, gated=False, worth=True)
    assert (await take(queue)).pod is changed


async def test_a_change_during_the_attempt_counts_as_an_event(queue: SchedulingQueue) -> None:
    queue.add(a_pod())
    waiting = await take(queue)
    queue.update(a_pod(nodeSelector={"a": "b"}), gated=False, worth=True)
    queue.failed(waiting, waiting.pod, error=False)
    assert queue.place_of("uid-p") is Place.BACKING_OFF


async def test_a_deleted_pod_does_not_come_back(queue: SchedulingQueue) -> None:
    queue.add(a_pod())
    waiting = await take(queue)
    queue.remove("uid-p")
    queue.failed(waiting, waiting.pod, error=True)
    assert len(queue) == 0
    assert queue.place_of("uid-p") is None


async def test_a_waiting_consumer_is_woken_by_a_new_pod(queue: SchedulingQueue) -> None:
    taking = asyncio.ensure_future(queue.take())
    await asyncio.sleep(0)
    queue.add(a_pod())
    assert (await asyncio.wait_for(taking, 1.0)).uid == "uid-p"
