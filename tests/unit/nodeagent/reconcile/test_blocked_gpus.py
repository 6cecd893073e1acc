"""GPUs that are kept back because of allocations of others."""

import random

from gpushare.api.node.modes import NodeMode
from gpushare.nodeagent.allocate.exclusive_pods import ExclusivePods
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.modes.rules import rules_of
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare.nodeagent.reconcile.pod_resources import DeviceListing
from gpushare.nodeagent.reconcile.reconciler import Reconciler
from tests.unit.nodeagent.allocate.allocated_pods import node_of
from tests.unit.nodeagent.allocate.test_equal_pods_in_any_order import Node, Quiet


class Listing:
    """A kubelet that lists no device of ours, and what other device plugins have allocated."""

    def __init__(self) -> None:
        self.held_by_others: dict[str, str] = {}

    async def read(self, timeout_s: float) -> DeviceListing:
        return {}


async def test_a_reader_between_two_rounds_does_not_hide_that_they_changed() -> None:
    node, listing, calls = node_of(15 * 1024, mode=NodeMode.SHARE), Listing(), 0

    def blocked() -> None:
        nonlocal calls
        calls += 1

    quiet = Quiet()
    reconciler = Reconciler(
        NodeAllocations(node),
        ExclusivePods(),
        listing,
        Node(random.Random(1)),
        events=quiet,
        metrics=Metrics(),
        clock=quiet,
        on_blocked=blocked,
    )
    await reconciler.once()
    assert calls == 0
    held = {node.devices[0].uuid: "held by pod default/other"}
    listing.held_by_others = held
    assert reconciler.blocked(rules_of(NodeMode.SHARE)) == held, "as a scrape reads them"
    await reconciler.once()
    assert calls == 1
    reconciler.take_blocked(rules_of(NodeMode.SHARE))
    await reconciler.once()
    assert calls == 1
