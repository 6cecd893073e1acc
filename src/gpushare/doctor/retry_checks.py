"""Repeats checks that fail only for a moment: kubelets take seconds to publish what an agent has reported."""

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
    """The facts, with nodes read again every ``again_s`` seconds until no kubelet lags behind its agent, for at most ``patience_s``."""
    for _ in range(round(patience_s / again_s)):
        if not any(True for _ in node_capacity(facts)):
            break
        await asyncio.sleep(again_s)
        reread = await nodes()
        if isinstance(reread, Unread):
            break  # the earlier state is the best that is known
        facts = msgspec.structs.replace(facts, nodes=reread)
    return facts
