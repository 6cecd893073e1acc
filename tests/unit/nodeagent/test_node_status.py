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

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None:
        self.writes.append(("description", annotations[names.ANN_DEVICES]))

    async def patch_node_capacity(self, name: str, resources: Mapping[str, str | None]) -> None:
        self.writes.append(("count", resources[names.GPU_COUNT]))


def node(shown: Advertised) -> Node:
    return decode_node(
        {
            "metadata": {
                "name": "n1",
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
