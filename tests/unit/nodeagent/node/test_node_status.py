"""A node that stops sharing is never left with a count and no description, which reads as another agent's."""

import asyncio
import json
from collections.abc import Mapping

import pytest
from msgspec.structs import asdict

from gpushare.api import names
from gpushare.kube.client.errors import Unreachable
from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.nodeagent.node.condition import Condition
from gpushare.nodeagent.node.node_handler import ReportingNode, decode_reporting_node
from gpushare.nodeagent.node.node_status import Advertised, NodeStatus

STOPPED = "the node agent has stopped; last known state: all well"
SHARES, BROKEN = Condition("True", "Sharing", "all well"), Condition("False", "DriverNotFound", "no driver")


class Writer:
    """Records what was written, in order."""

    def __init__(self) -> None:
        self.writes: list[tuple[str, str | None]] = []
        self.conditions: list[Mapping[str, str] | None] = []

    async def annotate_node(
        self,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        devices = annotations[names.ANN_DEVICES]
        assert labels is not None
        self.labelled = labels[names.LABEL_DESCRIBED] == "true"
        self.writes.append(("description", devices))

    async def patch_node_capacity(self, name: str, resources: Mapping[str, str | None]) -> None:
        self.writes.append(("count", resources[names.GPU_COUNT]))

    async def set_node_condition(self, name: str, kind: str, condition: Mapping[str, str] | None) -> None:
        assert kind == names.CONDITION_READY
        self.writes.append(("condition", None if condition is None else condition["status"]))
        self.conditions.append(condition)


def node(shown: Advertised, label: str | None = None) -> ReportingNode:
    """``label``: that of a described node, if it differs from the correct one."""
    label = label or ("true" if shown.labelled else "")
    conditions = (
        [] if shown.condition is None else [{"type": names.CONDITION_READY, **asdict(shown.condition)}]
    )
    _, made = decode_reporting_node(
        json.dumps(
            {
                "metadata": {
                    "name": "n1",
                    "labels": {names.LABEL_DESCRIBED: label} if label else {},
                    "annotations": {names.ANN_DEVICES: shown.devices} if shown.devices else {},
                },
                "status": {
                    "capacity": {names.GPU_COUNT: shown.gpu_count} if shown.gpu_count else {},
                    "conditions": [{"type": "Ready", "status": "True"}, *conditions],
                },
            }
        ).encode()
    )
    return made


@pytest.mark.parametrize(
    ("before", "after", "order"),
    [
        (Advertised("{}", "4"), Advertised(), [("count", None), ("description", None)]),
        (Advertised(), Advertised("{}", "4"), [("description", "{}"), ("count", "4")]),
        (Advertised("{}", "4"), Advertised("[]", "4"), [("description", "[]")]),
        (Advertised("{}", "4"), Advertised("[]"), [("count", None), ("description", "[]")]),
        # The agent's pod exists for as long as the label: what the agent must remove goes before that.
        (
            Advertised("{}", "4", condition=SHARES),
            Advertised(),
            [("count", None), ("condition", None), ("description", None)],
        ),
        (
            Advertised(),
            Advertised("{}", "4", condition=SHARES),
            [("description", "{}"), ("count", "4"), ("condition", "True")],
        ),
        (Advertised(), Advertised(condition=BROKEN), [("description", None), ("condition", "False")]),
    ],
)
async def test_description_and_count_are_written_in_the_safe_order(
    before: Advertised, after: Advertised, order: list[tuple[str, str | None]]
) -> None:
    writer = Writer()
    status = NodeStatus("n1", writer, SYSTEM_CLOCK)
    status.seen(node(before))
    status.want(after)
    await status._write(after, before)
    assert writer.writes == order
    status.seen(node(after))
    assert status.settled


@pytest.mark.parametrize(
    ("shown", "label", "description"),
    [
        (Advertised("{}", "4"), "false", "{}"),  # foreign: the agent's pod would leave too early
        (Advertised(), "true", None),  # left over: the agent's pod would stay forever
    ],
)
async def test_the_label_is_removed_with_the_description(
    shown: Advertised, label: str, description: str | None
) -> None:
    writer = Writer()
    status = NodeStatus("n1", writer, SYSTEM_CLOCK)
    status.want(shown)
    status.seen(node(shown, label))
    assert not status.settled
    await status._write(shown, shown)
    assert writer.writes == [("description", description)]
    status.seen(node(shown))
    assert status.settled


async def test_a_condition_contains_since_when_it_holds_and_is_no_heartbeat() -> None:
    writer = Writer()
    status = NodeStatus("n1", writer, SYSTEM_CLOCK)
    shares = Advertised("{}", "4", condition=SHARES)
    otherwise = Advertised("{}", "4", condition=Condition("True", "SomeGPUsUnhealthy", "GPU 1 is lost"))
    broken = Advertised("{}", "4", condition=BROKEN)
    for before, after in ((shares, shares), (shares, otherwise), (otherwise, broken)):
        await status._write(after, before)
    first, second = writer.conditions
    assert first is not None
    assert second is not None
    assert (first["reason"], "lastTransitionTime" in first) == ("SomeGPUsUnhealthy", False)
    assert second["lastTransitionTime"] == second["lastHeartbeatTime"]
    assert second["lastTransitionTime"].endswith("Z")


async def test_a_node_with_only_the_condition_keeps_its_agent_until_that_is_gone() -> None:
    writer = Writer()
    status = NodeStatus("n1", writer, SYSTEM_CLOCK)
    status.want(Advertised(condition=BROKEN))
    status.seen(node(Advertised()))
    assert not status.settled
    await status._write(Advertised(condition=BROKEN), Advertised())
    assert writer.labelled
    status.seen(node(Advertised(condition=BROKEN)))
    assert status.settled


class Failing(Writer):
    """An API server that is unreachable."""

    async def set_node_condition(self, name: str, kind: str, condition: Mapping[str, str] | None) -> None:
        raise Unreachable("/api/v1/nodes/n1/status", "no connection", sent=False)


async def test_an_agent_that_stops_marks_the_node_unattended_and_writes_nothing_after_that() -> None:
    writer = Writer()
    status = NodeStatus("n1", writer, SYSTEM_CLOCK)
    wanted = Advertised("described", "1", None, SHARES)
    status.want(wanted)
    status.seen(node(wanted))
    await status.end()
    (condition,) = writer.conditions
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("Unknown", "AgentStopped")
    assert condition["message"] == STOPPED
    assert condition["lastTransitionTime"] == condition["lastHeartbeatTime"]
    status.want(Advertised("described", "2", None, SHARES))
    assert not status.settled


class Slow(Writer):
    """Takes a description only when the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.released = asyncio.Event(), asyncio.Event()

    async def annotate_node(
        self,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        self.started.set()
        await self.released.wait()


@pytest.mark.parametrize("before", [None, Condition("Unknown", "AgentStopped", STOPPED)])
async def test_an_agent_that_stops_during_a_write_writes_its_last_condition_after_it(
    before: Condition | None,
) -> None:
    writer = Slow()
    status = NodeStatus("n1", writer, SYSTEM_CLOCK)
    status.want(Advertised("described", "1", None, SHARES))
    status.seen(node(Advertised(condition=before)))
    writing = asyncio.create_task(status.run())
    await writer.started.wait()
    ending = asyncio.create_task(status.end())
    # It has begun to stop before the server answers.
    await asyncio.sleep(0)
    writer.released.set()
    await ending
    writing.cancel()
    await asyncio.wait([writing])
    assert [condition and condition["status"] for condition in writer.conditions] == ["True", "Unknown"]


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        (None, True),
        (Advertised("described", "1"), True),
        (Advertised("described", "1", None, SHARES), False),
        (Advertised("described", "1", None, BROKEN), True),
    ],
    ids=["another agent looks after it", "it has no condition", "there is no node", "it was not ready"],
)
async def test_an_agent_that_stops_writes_nothing_where_there_is_no_condition(
    wanted: Advertised | None, seen: bool
) -> None:
    writer = Writer()
    status = NodeStatus("n1", writer, SYSTEM_CLOCK)
    status.want(wanted)
    if seen:
        status.seen(node(wanted or Advertised()))
    await status.end()
    assert writer.writes == []


async def test_an_agent_also_stops_while_the_server_is_unreachable(caplog: pytest.LogCaptureFixture) -> None:
    status = NodeStatus("n1", Failing(), SYSTEM_CLOCK)
    wanted = Advertised("described", "1", None, SHARES)
    status.want(wanted)
    status.seen(node(wanted))
    await status.end()
    assert "cannot set the condition of node n1 at shutdown" in caplog.text
