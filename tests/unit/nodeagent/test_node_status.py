"""A node that stops sharing is never left with a count and no description, which reads as another agent's."""

from collections.abc import Mapping

import pytest

from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.model import names
from gpushare.model.objects import Node, decode_node
from gpushare.nodeagent.node_status import Advertised, NodeStatus


class Writer:
    """Notes what was written, in order."""

    def __init__(self) -> None:
        self.writes: list[tuple[str, str | None]] = []

    async def annotate_node(
        self,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        devices = annotations[names.ANN_DEVICES]
        assert labels == {names.LABEL_DESCRIBED: None if devices is None else "true"}
        self.writes.append(("description", devices))

    async def patch_node_capacity(self, name: str, resources: Mapping[str, str | None]) -> None:
        self.writes.append(("count", resources[names.GPU_COUNT]))


def node(shown: Advertised, label: str | None = None) -> Node:
    """``label``: that of a described node, where it is not what it should be."""
    label = label or ("true" if shown.devices else "")
    return decode_node(
        {
            "metadata": {
                "name": "n1",
                "labels": {names.LABEL_DESCRIBED: label} if label else {},
                "annotations": {names.ANN_DEVICES: shown.devices} if shown.devices else {},
            },
            "status": {"capacity": {names.GPU_COUNT: shown.gpu_count} if shown.gpu_count else {}},
        }
    )


@pytest.mark.parametrize(
    ("before", "after", "order"),
    [
        (Advertised("{}", "4"), Advertised(), [("count", None), ("description", None)]),
        (Advertised(), Advertised("{}", "4"), [("description", "{}"), ("count", "4")]),
        (Advertised("{}", "4"), Advertised("[]", "4"), [("description", "[]")]),
        (Advertised("{}", "4"), Advertised("[]"), [("count", None), ("description", "[]")]),
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
        (Advertised("{}", "4"), "false", "{}"),  # somebody's: the agent's pod would leave too early
        (Advertised(), "true", None),  # left over: the agent's pod would stay for ever
    ],
)
async def test_the_label_goes_with_the_description(
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
