"""Moves that would help pending pods: the page shows the same as ``kubectl inspect cgpu --fragmentation``."""

import json
from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.objects import Affinity, Node, Pod
from gpushare.api.quantity import MemoryUnit
from gpushare.dashboard.data.records import decode_seen, seen_node_decoder
from gpushare.dashboard.server.app import Query
from gpushare.inspect.views.fragmentation import fragments_document
from gpushare.scheduler.cache.cache import NodeReader
from tests.unit.dashboard.live_pages import Shown
from tests.unit.inspect.clusters import device, node, placed, pod, required, seen

HOST = "kubernetes.io/hostname"
NAMES = ("m", "n", "o")
DECODE_NODE = seen_node_decoder(NodeReader(unit=MemoryUnit.GIB, isolated_cap=16))


def nodes_with_hosts() -> list[Node]:
    nodes = [
        node("n", "10.0.0.1", [device(0), device(2)]),
        node("m", "10.0.0.2", [device(1)]),
        node("o", "10.0.0.3", [device(3), device(4)]),
    ]
    for one in nodes:
        assert one.metadata.labels is not None
        one.metadata.labels[HOST] = one.metadata.name
    return nodes


def feed(shown: Shown, *objects: Node | Pod) -> None:
    """Adds objects as the watches do."""
    for one in objects:
        raw = msgspec.json.encode(one)
        found = DECODE_NODE(raw) if isinstance(one, Node) else decode_seen(raw)
        assert found is not None
        shown.add(found[1])


async def way(shown: Shown) -> tuple[str, list[str]]:
    """Whether the pending pod fits, and which pods move for it."""
    await shown.live.tick()
    await shown.clock.turn(60)
    _, body = await shown.live.answer("fragmentation", Query({}))
    [way] = json.loads(body)["ways"]
    moves = [move.partition(" ")[0] for move in way["moves"]]
    return ("once moved" if moves else "now" if way["goes_to"] else "not"), moves


async def ways(nodes: Sequence[Node], pods: Sequence[Pod], waiting: Pod) -> tuple[str, list[str]]:
    shown = Shown()
    feed(shown, *nodes, *pods, waiting)
    return await way(shown)


def shown_by_kubectl(nodes: Sequence[Node], pods: Sequence[Pod], waiting: Pod) -> tuple[str, list[str]]:
    [pod] = fragments_document(seen(nodes, pods), nodes, pods, [waiting])["waiting"]
    return pod["fits"], [move["pod"] for move in pod["moves"]]


async def test_a_node_whose_labels_change_matches_other_pods() -> None:
    nodes, shown = nodes_with_hosts()[:1], Shown()
    feed(shown, *nodes, waiting := pod("waits", "", 12, node_selector={"pool": "x"}))
    assert await way(shown) == ("not", [])
    nodes[0].metadata.labels = {**(nodes[0].metadata.labels or {}), "pool": "x"}
    feed(shown, *nodes)
    assert await way(shown) == ("now", [])
    waiting.spec.node_selector = {"pool": "y"}
    feed(shown, waiting)
    assert await way(shown) == ("not", [])


async def test_a_cordoned_node_is_no_target_and_its_free_memory_does_not_count() -> None:
    nodes, shown = nodes_with_hosts()[:2], Shown()
    feed(shown, *nodes, placed("p", "n", device(0), 8), placed("q", "n", device(2), 8))
    feed(shown, pod("waits", "", 14))
    assert await way(shown) == ("now", [])
    nodes[1].spec.unschedulable = True
    feed(shown, *nodes)
    assert await way(shown) == ("not", [])
    _, body = await shown.live.answer("fragmentation", Query({}))
    assert json.loads(body)["free_mib"] == 2 * (15360 - 8192)
    nodes[1].spec.unschedulable = False
    feed(shown, *nodes)
    assert await way(shown) == ("now", [])


def affinities() -> st.SearchStrategy[Affinity | None]:
    def affinity(operator: str, names: list[str]) -> Affinity:
        return required({"matchExpressions": [{"key": HOST, "operator": operator, "values": names}]})

    some = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True)
    return st.none() | st.builds(affinity, st.sampled_from(["In", "NotIn"]), some)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9), affinities()), max_size=8),
    st.integers(1, 15),
    affinities(),
)
async def test_the_page_and_kubectl_agree(
    held: list[tuple[int, int, Affinity | None]], units: int, wanted: Affinity | None
) -> None:
    nodes, on = nodes_with_hosts(), {0: "n", 2: "n", 1: "m", 3: "o", 4: "o"}
    pods: list[Pod] = []
    left = dict.fromkeys(on, 15)
    for number, (gpu, size, affinity) in enumerate(held):
        if size <= left[gpu]:
            left[gpu] -= size
            pods.append(placed(f"p{number}", on[gpu], device(gpu), size))
            pods[-1].spec.affinity = affinity
    waiting = pod("waits", "", units, affinity=wanted)
    fits, moves = shown_by_kubectl(nodes, pods, waiting)
    found, moved = await ways(nodes, pods, waiting)
    assert (found, len(moved)) == (fits, len(moves))
