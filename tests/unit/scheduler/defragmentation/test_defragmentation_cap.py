"""Reserved places count for a node's cap of pods, and the pods that they replace do not."""

import msgspec

from tests.unit.scheduler.defragmentation.moving import INTERVAL_S, Moving


async def test_a_pod_that_moves_within_its_node_is_not_counted_twice_for_the_nodes_cap() -> None:
    moving = Moving()
    moving.node("n", 16, 16)
    devices = moving.ledger.node("n")
    assert devices is not None
    moving.add_node(msgspec.structs.replace(devices, max_node_pods=4))
    for name, units in (("a", 8), ("b", 4), ("c", 6)):
        await moving.bound(name, units, "n")
    moving.made("wide", 12, "")
    assert not moving.ask("wide", "n")
    await moving.look(INTERVAL_S)
    assert moving.api.evicted == ["a"]
    moving.end("a")
    moving.made("thief", 1, "")
    assert not moving.ask("thief", "n"), "four pods are as good as there"
    moving.made("a2", 8)
    assert moving.ask("a2", "n") == ["n"]
    assert moving.ask("wide", "n") == ["n"]
