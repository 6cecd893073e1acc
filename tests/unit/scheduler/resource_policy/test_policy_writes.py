"""Status and deletion costs: written once, only by the leader, and again if they are not seen."""

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.crd.resource_policy import policy_pod_of
from gpushare.api.objects import Pod, decode_pod
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.scheduler.plugins.resource_policy.plugin import Policies
from gpushare.scheduler.plugins.resource_policy.status_writer import PolicyWriter
from tests.unit.scheduler.resource_policy.policy_samples import pod, policy
from tests.unit.scheduler.world import TurnedClock, pod_object

COST, MARK = names.ANN_DELETION_COST, names.ANN_COST_WRITTEN


class Api:
    """Records writes; ``fails`` are raised one after the other instead."""

    def __init__(self) -> None:
        self.statuses: list[tuple[str, Any]] = []
        self.annotated: list[tuple[str, Any]] = []
        self.fails: list[KubeError] = []
        self.holder = ""
        self.pods: list[dict[str, Any]] = []
        self.before_list: Any = lambda: None

    def _fail(self) -> None:
        if self.fails:
            raise self.fails.pop(0)

    async def write_policy_status(self, namespace: str, name: str, status: object) -> None:
        self._fail()
        self.statuses.append((f"{namespace}/{name}", status))

    async def annotate_pod(
        self, namespace: str, name: str, annotations: Any, *, uid: str, labels: Any = None
    ) -> None:
        self._fail()
        self.annotated.append((name, annotations))

    async def lease_holder(self, namespace: str, name: str) -> str:
        self._fail()
        assert (namespace, name) == ("kube-system", "ack-co-scheduler")
        return self.holder

    async def list_pods(self, *, namespace: str | None = None) -> list[Pod]:
        self.before_list()
        return [decode_pod(one) for one in self.pods]

    async def get_pod(self, namespace: str, name: str) -> Pod:
        raise NotImplementedError

    async def bind(self, **arguments: Any) -> None:
        raise NotImplementedError


class Desk:
    def __init__(self, lease: tuple[str, str] | None = None) -> None:
        self.clock = TurnedClock()
        self.api = Api()
        self.policies = Policies(self.clock)
        self.is_ready = True
        self.writer = PolicyWriter(
            self.policies, self.api, self.clock, ready=lambda: self.is_ready, lease=lease
        )
        for node in ("a1", "b1"):
            self.policies.census.set_node(node, {"pool": node[0]})

    def rules(self, *units: dict[str, Any], **more: Any) -> None:
        self.policies.upsert_policy(policy(*units, **more))
        self.policies.unread.clear()

    def see(self, name: str, node: str, **more: Any) -> None:
        self.policies.upsert_pod(pod(name, node, **more))


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_the_status_counts_each_unit_s_pods_and_is_written_once(desk: Desk) -> None:
    desk.rules({"max": 2}, {"resource": "eci"})
    desk.see("p", "a1", annotations={COST: "1"})
    await desk.writer.write_due()
    status = {
        "observedGeneration": 1,
        "pods": 1,
        "units": [{"resource": "ecs", "pods": 1}, {"resource": "eci", "pods": 0}],
        "summary": "1/2, 0 (no node)",
    }
    assert desk.api.statuses == [("default/p", status)]
    await desk.writer.write_due()
    assert len(desk.api.statuses) == 1
    await desk.clock.turn(20.0)
    await desk.writer.write_due()
    assert len(desk.api.statuses) == 2


async def test_a_unit_without_nodes_is_in_the_status_until_it_has_one(desk: Desk) -> None:
    desk.rules(
        {"nodeSelector": {"pool": "c"}}, {"max": 3}, {"resource": "elastic", "nodeSelector": {"pool": "c"}}
    )
    await desk.writer.write_due()
    desk.policies.census.set_node("c1", {"pool": "c"})
    await desk.writer.write_due()
    assert [status["summary"] for _, status in desk.api.statuses] == ["0 (no node), 0/3, 0", "0, 0/3, 0"]


async def test_pods_of_other_schedulers_are_in_the_status_until_none_is_left(desk: Desk) -> None:
    desk.rules({"max": 1})
    desk.see("ours", "a1")
    desk.see("bound", "a1", strays=True)
    desk.see("waits", "", strays=True)
    await desk.writer.write_due()
    ((_, status),) = desk.api.statuses
    assert status["message"] == (
        "2 pods that it selects name another scheduler, which applies neither its order nor its max"
    )
    (book,) = desk.policies.census.books()
    book.policy = msgspec.structs.replace(book.policy, status=status)
    desk.policies.remove_pod(pod("waits", strays=True))
    desk.see("bound", "a1", strays=True, labels={"app": "other"})
    await desk.writer.write_due()
    _, (_, after) = desk.api.statuses
    assert after["message"] == ""
    book.policy = msgspec.structs.replace(book.policy, status=after)
    await desk.clock.turn(20.0)
    await desk.writer.write_due()
    assert len(desk.api.statuses) == 2, "what is there already is not written"


async def test_unchanged_values_are_not_written(desk: Desk) -> None:
    status = {"observedGeneration": 1, "pods": 0, "units": [{"resource": "ecs", "pods": 0}], "summary": "0"}
    desk.policies.upsert_policy(msgspec.structs.replace(policy({}), status=status))
    desk.policies.unread.clear()
    await desk.writer.write_due()
    assert not desk.api.statuses


async def test_nothing_is_written_before_everything_was_read(desk: Desk) -> None:
    desk.rules({})
    desk.see("p", "a1")
    desk.policies.unread.add("default")
    await desk.writer.write_due()
    desk.policies.unread.clear()
    desk.is_ready = False
    await desk.writer.write_due()
    assert not desk.api.statuses
    assert not desk.api.annotated


async def test_pods_get_their_cost_once_and_again_when_it_is_not_seen(desk: Desk) -> None:
    desk.rules({}, {})
    for number in range(10):
        desk.see(f"p{number}", "b1")
    await desk.writer.write_due()
    assert len(desk.api.annotated) == 10
    assert desk.api.annotated[0][1] == {COST: "100", MARK: "100"}
    await desk.writer.write_due()
    assert len(desk.api.annotated) == 10
    await desk.clock.turn(20.0)
    for number in range(1, 10):
        desk.see(f"p{number}", "b1", annotations={COST: "100", MARK: "100"})
    await desk.writer.write_due()
    assert [name for name, _ in desk.api.annotated[10:]] == ["p0"]


async def test_not_more_than_a_handful_is_written_at_once(desk: Desk) -> None:
    desk.rules({})
    for number in range(100):
        desk.see(f"p{number}", "a1")
    await desk.writer.write_due()
    assert len(desk.api.annotated) == 64
    await desk.writer.write_due()
    assert len(desk.api.annotated) == 100


async def test_a_cost_that_is_right_by_its_turn_is_left(desk: Desk) -> None:
    desk.rules({})
    desk.see("p", "a1")
    desk.policies.census.remove_pod("uid-p")
    await desk.writer._write_cost("uid-p", 0.0)
    assert not desk.api.annotated


@pytest.mark.parametrize(("holder", "written"), [("other_1", 0), (f"{socket.gethostname()}_1", 1), ("", 0)])
async def test_only_next_to_the_leading_kube_scheduler_something_is_written(
    holder: str, written: int
) -> None:
    desk = Desk(("kube-system", "ack-co-scheduler"))
    desk.rules({})
    desk.api.holder = holder
    await desk.writer.write_due()
    assert len(desk.api.statuses) == written


async def test_permanent_errors_do_not_stop_the_rest_and_transient_ones_are_retried(
    desk: Desk,
) -> None:
    desk.rules({})
    desk.see("p", "a1")
    gone = ApiError(404, "NotFound", "gone", "")
    desk.api.fails = [gone, gone]
    await desk.writer.write_due()
    assert desk.api.fails == []
    busy = ApiError(503, "", "busy", "")
    for _ in range(2):
        await desk.clock.turn(20.0)
        desk.api.fails = [busy]
        with pytest.raises(ApiError, match="busy"):
            await desk.writer.write_due()
        desk.policies.remove_policy("default/p")
        desk.rules({})
        desk.api.fails = [gone, busy]
        desk.see("p", "a1")
        with pytest.raises(ApiError, match="busy"):
            await desk.writer.write_due()


async def test_costs_of_a_policy_that_went_unseen_are_removed_and_those_of_others_stay(desk: Desk) -> None:
    ours = pod_object("ours", annotations={COST: "100", MARK: "100"})
    changed = pod_object("changed", annotations={COST: "5", MARK: "100"})
    theirs = pod_object("theirs", annotations={COST: "5"})
    desk.api.pods = [ours, changed, theirs]
    desk.writer.notice(b'{"metadata": {"namespace": "default"}}')
    assert not desk.policies.strays
    desk.writer.notice(
        b'{"metadata": {"namespace": "default", "annotations": {"gpushare.dev/deletion-cost": "1"}}}'
    )
    assert desk.policies.strays == {"default"}
    await desk.writer.write_due()
    assert desk.api.annotated == [("ours", {COST: None, MARK: None}), ("changed", {MARK: None})]
    assert not desk.policies.strays


async def test_a_pod_bound_with_a_cost_while_its_namespace_is_cleaned_is_handled_next(
    desk: Desk,
) -> None:
    late = pod_object("late", annotations={COST: "100", MARK: "100"})
    desk.api.pods = [pod_object("ours", annotations={COST: "100", MARK: "100"})]
    annotate = desk.api.annotate_pod

    async def slowly(*args: Any, **more: Any) -> None:
        if late not in desk.api.pods:
            # Its Binding was under way when its policy went.
            desk.api.pods.append(late)
            desk.writer.notice(msgspec.json.encode(late))
        await annotate(*args, **more)

    desk.api.annotate_pod = slowly  # type: ignore[method-assign]
    desk.policies.strays.add("default")
    await desk.writer.write_due()
    assert desk.policies.strays == {"default"}
    await desk.writer.write_due()
    assert [name for name, _ in desk.api.annotated][-1] == "late"
    assert not desk.policies.strays


async def test_a_namespace_that_could_not_be_cleaned_is_retried(desk: Desk) -> None:
    desk.api.pods = [pod_object("ours", annotations={COST: "100", MARK: "100"})]
    desk.policies.strays.add("default")
    desk.api.fails = [ApiError(503, "", "busy", "")]
    with pytest.raises(ApiError):
        await desk.writer.write_due()
    await desk.writer.write_due()
    assert desk.api.annotated == [("ours", {COST: None, MARK: None})]
    assert not desk.policies.strays


async def test_a_namespace_that_has_a_policy_again_is_not_cleaned(desk: Desk) -> None:
    desk.policies.strays.add("default")
    desk.api.pods = [pod_object("ours", annotations={COST: "100", MARK: "100"})]
    desk.api.before_list = lambda: desk.rules({})
    await desk.writer.write_due()
    assert not desk.api.annotated
    desk.writer.notice(
        b'{"metadata": {"namespace": "default", "annotations": {"gpushare.dev/deletion-cost": "1"}}}'
    )
    assert not desk.policies.strays


def test_a_pod_s_record_is_read_from_its_json() -> None:
    assert policy_pod_of(decode_pod(pod_object("p"))).key == "default/p"


async def test_it_continues_after_a_failure_with_a_longer_wait(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.rules({})
    desk.api.fails = [ApiError(503, "", "busy", "")]
    running = asyncio.create_task(desk.writer.run())
    async with asyncio.timeout(10.0):
        while not desk.api.statuses:
            await asyncio.sleep(0)
            await desk.clock.turn(1.0)
    running.cancel()
    assert "busy; writing again in" in caplog.text


async def test_of_very_many_policies_a_handful_is_written_at_once(desk: Desk) -> None:
    for number in range(70):
        desk.rules({}, name=f"p{number}")
    await desk.writer.write_due()
    assert len(desk.api.statuses) == 64
    await desk.writer.write_due()
    assert len(desk.api.statuses) == 70
