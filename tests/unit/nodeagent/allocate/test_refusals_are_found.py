"""A refusal is in the log of every pod that it may concern, by UID and name."""

import logging
import random

import pytest

from gpushare.api import names
from gpushare.nodeagent.errors import AllocationRefused
from tests.unit.nodeagent.allocate.test_equal_pods_in_any_order import EQUAL, Node


async def refused(node: Node, caplog: pytest.LogCaptureFixture, *on: int) -> list[tuple[str, str, str, str]]:
    """Pods for which the log reports that a container with an ID of each of these GPUs is refused."""
    taken = enumerate(on)
    ids = [node.book.ids.memory_ids(node.node.devices[gpu], node.node.unit)[at] for at, gpu in taken]
    with caplog.at_level(logging.ERROR), pytest.raises(AllocationRefused):
        await node.allocator.allocate(names.GPU_MEM, [ids])
    return [record.__dict__["about"] for record in caplog.records if "refused: " in record.getMessage()]


async def test_a_refusal_that_may_concern_several_pods_is_logged_for_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node(random.Random(0))
    uids = {name: node.bind(name, EQUAL, gpu) for gpu, name in enumerate(("a", "b"))}
    reported = await refused(node, caplog, 0, 0, 1)
    assert sorted(reported) == [(f"default/{name}", uid, "", uid) for name, uid in uids.items()]


async def test_a_refusal_about_no_known_pod_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    assert await refused(Node(random.Random(0)), caplog, 0) == [("", "", "", "")]
