"""Whether a node would fit a request without some of its pods, compared with a ledger that never had them."""

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


@given(
    node=nodes(),
    allocated=st.lists(requests(), max_size=4),
    evicted=st.sets(st.integers(0, 3)),
    pending=requests(),
)
def test_a_node_fits_what_it_would_if_some_of_its_pods_had_never_been_there(
    node: NodeDevices, allocated: list[Request], evicted: set[int], pending: Request
) -> None:
    ledger, without = Ledger(), Ledger()
    for one in (ledger, without):
        one.set_node(node)
    evicted_uids = []
    for number, request in enumerate(allocated):
        try:
            allocation = ledger.reserve(f"uid-{number}", f"ns/{number}", request, "n1")
        except Refused:
            continue
        if number in evicted:
            evicted_uids.append(f"uid-{number}")
        else:
            without.hold(f"uid-{number}", f"ns/{number}", "n1", allocation)
    before = state(ledger)

    assert ledger.evictions.fits_without(pending, "n1", evicted_uids) == bool(
        without.filter(pending, ["n1"]).fits
    )

    assert state(ledger) == before
    assert ledger.filter(pending, ["n1"]).fits == ledger.fitting(pending, ["n1"])
    for one in evicted_uids:
        ledger.release(one)
    assert ledger.usage("n1") == without.usage("n1")
