"""Whether a node would take a request without some of its pods: as a ledger says that never had them."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger, Refused

MODES = (NodeMode.SHARE, NodeMode.CORE_MEM)
GIB = 1024


@st.composite
def nodes(draw: st.DrawFn) -> NodeDevices:
    gpus = [Device(index, f"GPU-{index}", draw(st.sampled_from((4, 7, 8))) * GIB) for index in range(2)]
    gpus[1] = structs.replace(gpus[1], healthy=draw(st.booleans()))
    return NodeDevices(
        "n1",
        draw(st.sampled_from(MODES)),
        MemoryUnit.GIB,
        tuple(gpus),
        max_pods=draw(st.sampled_from((None, 1, 2))),
        max_node_pods=draw(st.sampled_from((None, 1, 2))),
    )


@st.composite
def requests(draw: st.DrawFn) -> Request:
    return Request(
        draw(st.integers(1, 8)),
        draw(st.sampled_from((0, 0, 40, 70))),
        (),
        gpu_count=draw(st.sampled_from((1, 1, 2))),
        whole_device=draw(st.booleans()),
    )


def state(ledger: Ledger) -> tuple[object, ...]:
    columns, _ = ledger.columns_by_node()
    arrays = (columns.fit_units, columns.free_core, columns.used_mib, columns.memory_pods, columns.core_pods)
    return (ledger.usage("n1"), *(array.tolist() for array in arrays), columns.changes)


@given(node=nodes(), held=st.lists(requests(), max_size=4), gone=st.sets(st.integers(0, 3)), asked=requests())
def test_it_is_as_if_the_pods_had_never_been_there(
    node: NodeDevices, held: list[Request], gone: set[int], asked: Request
) -> None:
    ledger, without = Ledger(), Ledger()
    for one in (ledger, without):
        one.set_node(node)
    away = []
    for number, request in enumerate(held):
        try:
            allocation = ledger.reserve(f"uid-{number}", f"ns/{number}", request, "n1")
        except Refused:
            continue
        if number in gone:
            away.append(f"uid-{number}")
        else:
            without.hold(f"uid-{number}", f"ns/{number}", "n1", allocation)
    before = state(ledger)

    assert ledger.evictions.fits_without(asked, "n1", away) == bool(without.filter(asked, ["n1"]).fits)

    assert state(ledger) == before
    assert ledger.filter(asked, ["n1"]).fits == ledger.fitting(asked, ["n1"])
    for one in away:
        ledger.release(one)
    assert ledger.usage("n1") == without.usage("n1")
