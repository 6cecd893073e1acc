"""What is true again in a moment is no fault: kubelets take seconds to tell of what an agent has said."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from gpushare.doctor.cluster.checks.nodes import node_capacity
from gpushare.doctor.cluster.facts import ClusterFacts, SeenNode
from gpushare.doctor.findings import Unread


async def settled(
    facts: ClusterFacts,
    nodes: Callable[[], Awaitable[list[SeenNode] | Unread]],
    patience_s: float,
    again_s: float,
) -> ClusterFacts:
    """The facts, with the nodes read again every ``again_s`` seconds until no kubelet is behind its agent, or for ``patience_s``."""
    for _ in range(round(patience_s / again_s)):
        if not any(True for _ in node_capacity(facts)):
            break
        await asyncio.sleep(again_s)
        seen = await nodes()
        if isinstance(seen, Unread):
            break  # what was seen before is the best that is known
        facts = msgspec.structs.replace(facts, nodes=seen)
    return facts
