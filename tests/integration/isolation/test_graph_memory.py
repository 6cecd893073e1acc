"""Memory that graphs allocate themselves: charged when a graph is instantiated, until the driver has freed it."""

from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.containers import run_tenant

GRAPHS = """
class AllocNode(ctypes.Structure):
    _fields_ = [("pool", PoolProperties), ("access", c_void_p), ("accesses", c_size_t), ("bytes", c_size_t), ("address", c_uint64)]

def graph_with(*sizes):
    graph, node = c_void_p(), c_void_p()
    must("cuGraphCreate", byref(graph), 0)
    for size in sizes:
        parameters = AllocNode(pool=PoolProperties(type=1, location=Location(1, 0)), bytes=size)
        must("cuGraphAddMemAllocNode", byref(node), graph, None, c_size_t(0), byref(parameters))
        freed = c_void_p()
        before = (c_void_p * 1)(node)
        must("cuGraphAddMemFreeNode", byref(freed), graph, before, c_size_t(1), c_uint64(parameters.address))
    return graph

def instantiate(graph):
    exec = c_void_p()
    return call("cuGraphInstantiateWithFlags", byref(exec), graph, c_uint64(0)), exec

context()
base = used()
"""


def test_a_graph_that_needs_more_than_is_left_cannot_be_instantiated(container: LimitedContainer) -> None:
    run_tenant(
        container(),
        GRAPHS
        + """
assert instantiate(graph_with(4096 * MIB))[0] == OUT_OF_MEMORY
assert instantiate(graph_with(*[100 * MIB] * 30))[0] == OUT_OF_MEMORY
assert used() == base, used()
""",
    )


def test_a_graphs_memory_is_charged_until_the_driver_has_freed_it(container: LimitedContainer) -> None:
    run_tenant(
        container(),
        GRAPHS
        + """
graph = graph_with(200 * MIB)
result, exec = instantiate(graph)
assert result == 0, result
assert used() == base + 200, used()
must("cuGraphLaunch", exec, None)
must("cuCtxSynchronize")
assert base + 200 <= used() <= base + 232, used()
must("cuGraphExecDestroy", exec)
must("cuGraphDestroy", graph)
must("cuDeviceGraphMemTrim", 0)
assert used() == base, used()
""",
    )


def test_graphs_are_counted_however_deep_they_lie_or_refused(container: LimitedContainer) -> None:
    run_tenant(
        container(),
        GRAPHS
        + """
def inside(graph, levels):
    for _ in range(levels):
        outer = c_void_p()
        must("cuGraphCreate", byref(outer), 0)
        must("cuGraphAddChildGraphNode", byref(c_void_p()), outer, None, c_size_t(0), graph)
        graph = outer
    return graph

assert instantiate(inside(graph_with(4096 * MIB), 9))[0] == OUT_OF_MEMORY
assert instantiate(inside(graph_with(4096 * MIB), 64))[0] == OUT_OF_MEMORY
assert instantiate(inside(graph_with(), 64))[0] == 0
assert instantiate(inside(graph_with(), 65))[0] == OUT_OF_MEMORY
assert used() == base, used()
result, exec = instantiate(inside(graph_with(200 * MIB), 20))
assert (result, used()) == (0, base + 200), used()
""",
    )


def test_graphs_without_memory_cost_none(container: LimitedContainer) -> None:
    run_tenant(container(), GRAPHS + "assert instantiate(graph_with())[0] == 0\nassert used() == base\n")


def test_a_captured_allocation_belongs_to_its_graph(container: LimitedContainer) -> None:
    run_tenant(
        container(),
        GRAPHS
        + """
stream, graph, address = c_void_p(), c_void_p(), c_uint64()
must("cuStreamCreate", byref(stream), 1)
must("cuStreamBeginCapture_v2", stream, 1)
must("cuMemAllocAsync", byref(address), c_size_t(300 * MIB), stream)
must("cuMemFreeAsync", address, stream)
must("cuStreamEndCapture", stream, byref(graph))
assert used() == base, used()
result, exec = instantiate(graph)
assert result == 0
assert used() == base + 300, used()
must("cuGraphExecDestroy", exec)
must("cuGraphDestroy", graph)
must("cuDeviceGraphMemTrim", 0)
assert used() == base, used()
""",
    )
