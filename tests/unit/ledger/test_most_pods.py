"""How many pods with a request nodes take, at most, compared with reserving room for one after the other."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gpushare.api.node.device import NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.gpu_selection import GpuSelection
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from tests.unit.ledger.ledger_samples import A100, T4, V100, asks, node

NAMES = ("n1", "n2", "n3")


@st.composite
def nodes(draw: st.DrawFn, name: str) -> NodeDevices:
    sizes_mib = draw(st.lists(st.sampled_from((T4, V100, 4096, 700)), max_size=3))
    made = node(
        name,
        *sizes_mib,
        mode=draw(st.sampled_from((NodeMode.SHARE, NodeMode.CORE_MEM))),
        unit=draw(st.sampled_from((MemoryUnit.GIB, MemoryUnit.MIB_128))),
        max_pods=draw(st.sampled_from((None, None, 1, 5))),
        refusal=draw(st.sampled_from(("", "", "", "its mode changes"))),
    )
    gpus = tuple(
        structs.replace(
            gpu,
            model=draw(st.sampled_from(("A10", "T4"))),
            cordoned=draw(st.sampled_from((False, False, True))),
            foreign_mib=draw(st.sampled_from((0, 0, 1500))),
        )
        for gpu in made.devices
    )
    return structs.replace(made, devices=gpus, max_node_pods=draw(st.sampled_from((None, None, 2))))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    return structs.replace(
        asks(draw(st.integers(1, 9)), draw(st.sampled_from((0, 0, 5, 35)))),
        unit_mib=draw(st.sampled_from((0, 0, 128, 1024))),
        selection=draw(st.sampled_from((None, None, GpuSelection(models=("A10",))))),
    )


@given(
    cluster=st.tuples(*map(nodes, NAMES)),
    allocated=st.lists(requests(), max_size=6),
    request=requests(),
)
def test_it_is_never_fewer_than_can_be_reserved(
    cluster: tuple[NodeDevices, ...], allocated: list[Request], request: Request
) -> None:
    ledger = Ledger.of(cluster)
    for number, other in enumerate(allocated):
        if (name := ledger.best(other, NAMES)) is not None:
            ledger.reserve(f"uid-{number}", f"ns/{number}", other, name)
    most = ledger.most_pods(request, NAMES)
    pods = 0
    while (name := ledger.best(request, NAMES)) is not None:
        ledger.reserve(f"gang-{pods}", f"ns/gang-{pods}", request, name)
        pods += 1
    assert pods <= most
    if all(one.max_node_pods is None for one in cluster):
        assert pods == most, "only the pod caps of nodes make a difference"


def test_an_unknown_node_takes_none() -> None:
    assert Ledger.of([node("n1", A100)]).most_pods(asks(10), ["n1", "unknown"]) == 7
