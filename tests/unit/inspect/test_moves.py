"""Which pods would have to move for one that waits: enough, to where they fit, and the least."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.inspect.fragments import fragments, fragments_document
from gpushare.inspect.hosts import hosts_of
from gpushare.inspect.usage import ClusterUsage
from gpushare.model.device import NodeMode
from gpushare.model.request import ContainerKind, ContainerRequest, Request
from gpushare.moves import Outlook
from gpushare.moves import outlook as outlook_on
from tests.unit.inspect.clusters import device, node, placed, pod, seen
from tests.unit.inspect.schema import faults


def asks(units: int, core_percent: int = 0) -> Request:
    one = ContainerRequest("main", ContainerKind.APP, 0, units, core_percent)
    return Request(units, core_percent, (one,))


def outlook(cluster: ClusterUsage, request: Request) -> Outlook:
    return outlook_on(list(hosts_of(cluster)), request)


def told(found: Outlook) -> tuple[str, list[str]]:
    return str(found.spot), [f"{move.pod} to {move.target}" for move in found.moves]


def test_the_cheapest_pod_moves_within_its_node_where_it_can() -> None:
    gpus = [device(0), device(1)]
    pods = [
        placed("nine", "n", gpus[0], 9),
        placed("three", "n", gpus[0], 3),
        placed("eight", "n", gpus[1], 8),
    ]
    cluster = seen(
        [node("n", "10.0.0.1", gpus), node("m", "10.0.0.2", [device(2)])],
        [*pods, placed("full", "m", device(2), 15)],
    )
    # 3 free on one, 7 on the other.
    assert told(outlook(cluster, asks(8))) == ("None", [])
    assert told(outlook(cluster, asks(6))) == ("GPU 1 of n", [])
    more = [*pods[:2], placed("ten", "n", gpus[1], 10)]
    cluster = seen([node("n", "10.0.0.1", gpus)], more)
    assert told(outlook(cluster, asks(6))) == ("GPU 0 of n", ["default/three to GPU 1 of n"])


def test_two_pods_move_where_one_is_not_enough_and_to_other_nodes_where_their_own_has_no_room() -> None:
    gpus = [device(0), device(1)]
    pods = [placed("a", "n", gpus[0], 4), placed("b", "n", gpus[0], 4), placed("big", "n", gpus[1], 9)]
    there = [*pods, placed("other", "m", device(2), 7)]
    cluster = seen([node("n", "10.0.0.1", gpus), node("m", "10.0.0.2", [device(2)])], there)
    # 7 free on one, 6 on the other, 8 elsewhere.
    assert told(outlook(cluster, asks(13))) == (
        "GPU 0 of n",
        ["default/a to GPU 1 of n", "default/b to GPU 2 of m"],
    )
    cluster = seen([node("n", "10.0.0.1", gpus), node("m", "10.0.0.2", [device(2)])], pods)
    assert told(outlook(cluster, asks(13))) == ("GPU 2 of m", [])


def test_nothing_helps_where_all_there_is_would_not_do_or_the_kinds_differ() -> None:
    gpus = [device(0), device(1)]
    full = seen([node("n", "10.0.0.1", gpus)], [placed(f"p{one.index}", "n", one, 14) for one in gpus])
    assert outlook(full, asks(8)) == Outlook(None)
    core = seen(
        [node("n", "10.0.0.1", gpus, mode=NodeMode.CORE_MEM)],
        [placed("p", "n", gpus[0], 1, core_percent=10)],
    )
    assert outlook(core, asks(2)) == Outlook(None)
    assert outlook(core, asks(2, 95)).moves == ()
    shut = seen([node("n", "10.0.0.1", gpus, cordoned="0,1")])
    assert outlook(shut, asks(2)) == Outlook(None)


def test_compute_is_freed_like_memory() -> None:
    gpus = [device(0), device(1)]
    pods = [placed("a", "n", gpus[0], 1, core_percent=50), placed("b", "n", gpus[1], 1, core_percent=50)]
    cluster = seen([node("n", "10.0.0.1", gpus, mode=NodeMode.CORE_MEM)], pods)
    assert told(outlook(cluster, asks(2, 60))) == ("GPU 0 of n", ["default/a to GPU 1 of n"])


def test_the_report_names_each_pod_that_waits_and_the_sums() -> None:
    gpus = [device(0), device(1)]
    pods = [
        placed("nine", "n", gpus[0], 9),
        placed("three", "n", gpus[0], 3),
        placed("ten", "n", gpus[1], 10),
    ]
    cluster = seen([node("n", "10.0.0.1", gpus)], pods)
    waiting = [
        pod("six", "", 6),
        pod("two", "", 2),
        pod("huge", "", 14),
        pod("pair", "", 8, labels={"aliyun.com/gpu-count": "2"}),
        pod("odd", "", 8, labels={"aliyun.com/gpu-count": "3"}),
    ]
    text = fragments(cluster, waiting)
    lines = {line.split()[1]: line for line in text.splitlines()[1:6]}
    assert (
        lines["six"]
        .split(None, 3)[3]
        .startswith("GPU 0 of n  default/three (3) from GPU 0 of n to GPU 1 of n")
    )
    assert "nothing: the scheduler's message" in lines["two"]
    assert lines["huge"].split()[-2:] == ["-", "-"]
    assert "not a share of one GPU" in lines["pair"]
    assert "equal whole parts" in lines["odd"]
    assert "1 would fit if others moved, 1 fit as it is, 1 fit in no way" in text
    assert fragments(cluster, [], namespace="x").startswith("No pod that asks for GPU memory waits.")
    assert "six" not in fragments(cluster, waiting, namespace="x")
    document = fragments_document(cluster, waiting)
    assert faults(document) == []
    told = {one["name"]: one for one in document["waiting"]}
    assert {name: one["fits"] for name, one in told.items()} == {
        "six": "once moved",
        "two": "now",
        "huge": "not",
        "pair": "not looked at",
        "odd": "not looked at",
    }
    here, there = {"node": "n", "gpu": 0}, {"node": "n", "gpu": 1}
    assert told["six"]["goesTo"] == here
    assert told["six"]["moves"] == [
        {"pod": "default/three", "units": 3, "mib": 3072, "from": here, "to": there}
    ]
    assert (told["odd"]["asks"], told["huge"]["goesTo"]) == (None, None)
    assert told["pair"]["asks"] == {"units": 4, "corePercent": 0, "gpus": 2, "wholeDevice": False}
    assert (document["freeGPUs"], document["freeMiB"], document["largestMiB"]) == (2, 8192, 5120)
    assert fragments_document(cluster, waiting, namespace="x")["waiting"] == []
    assert fragments_document(seen([]), [])["largestMiB"] == 0


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=8),
    st.integers(1, 15),
)
def test_after_the_moves_everything_fits(pods: list[tuple[int, int]], units: int) -> None:
    gpus = {0: device(0), 1: device(1), 2: device(2), 3: device(3)}
    names = {0: "n", 1: "n", 2: "m", 3: "m"}
    used = dict.fromkeys(gpus, 0)
    there = []
    for number, (gpu, size) in enumerate(pods):
        if used[gpu] + size <= 15:
            used[gpu] += size
            there.append(placed(f"p{number}", names[gpu], gpus[gpu], size))
    cluster = seen(
        [node("n", "10.0.0.1", [gpus[0], gpus[1]]), node("m", "10.0.0.2", [gpus[2], gpus[3]])], there
    )
    found = outlook(cluster, asks(units))
    if found.spot is None:
        assert all(15 - one < units for one in used.values())
        return
    for move in found.moves:
        used[move.source.gpu] -= move.units
        used[move.target.gpu] += move.units
    used[found.spot.gpu] += units
    assert all(one <= 15 for one in used.values())
    assert bool(found.moves) is (not any(15 - one >= units for one in _before(used, found, units).values()))


def _before(used: dict[int, int], found: Outlook, units: int) -> dict[int, int]:
    before = dict(used)
    assert found.spot is not None
    before[found.spot.gpu] -= units
    for move in found.moves:
        before[move.source.gpu] += move.units
        before[move.target.gpu] -= move.units
    return before
