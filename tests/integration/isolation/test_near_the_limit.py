"""With less than a page, or a chunk, left of the limit: an allocation that surely fits into memory
already charged succeeds; everything else is refused before the driver is called, which would
allocate more first. (test_races.py checks that the limit is never passed.)
"""

from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.containers import run_tenant

FILL = """
def fill():
    while info()[0] >= 2:
        result, _ = take("plain", 2 * MIB)
        assert result == 0, result
    return used()
"""


def test_a_small_allocation_succeeds_where_a_page_has_a_gap_for_it(container: LimitedContainer) -> None:
    run_tenant(
        container(512),
        FILL
        + """
context()
pieces = [take("plain", 700_000)[1] for _ in range(4)]
full = fill()
for _ in range(20):
    assert take("plain", 700_000)[0] == OUT_OF_MEMORY
for _ in range(2):
    assert take("plain", 690_000)[0] == 0
assert take("plain", 690_000)[0] == OUT_OF_MEMORY
assert used() == full
give("plain", pieces[1])
assert take("plain", 700_000)[0] == 0
assert used() == full
""",
    )


def test_a_gap_in_another_context_does_not_count(container: LimitedContainer) -> None:
    run_tenant(
        container(1024),
        FILL
        + """
first = context()
small = take("plain", 300_000)[1]
made = c_void_p()
must("cuCtxCreate_v2", byref(made), 0, 0)
fill()
assert take("plain", 300_000)[0] == OUT_OF_MEMORY
must("cuCtxSetCurrent", first)
assert take("plain", 300_000)[0] == 0
""",
    )


def test_a_pool_allocation_succeeds_where_it_fits_however_fragmented_the_pool_is(
    container: LimitedContainer,
) -> None:
    run_tenant(
        container(512),
        FILL
        + """
context()
one = take("async", MIB)[1]
full = fill()
assert take("async", 20 * MIB)[0] == OUT_OF_MEMORY
assert take("async", 15 * MIB)[0] == 0
assert take("async", 10 * MIB)[0] == OUT_OF_MEMORY
assert take("async", 5 * MIB)[0] == 0
assert used() == full, (used(), full)
give("async", one)
assert take("async", MIB)[0] == 0
assert used() == full, (used(), full)
""",
    )


def test_memory_that_graphs_no_longer_use_is_freed_for_an_allocation_that_needs_it(
    container: LimitedContainer,
) -> None:
    run_tenant(
        container(512),
        FILL
        + """
class AllocNode(ctypes.Structure):
    _fields_ = [("pool", PoolProperties), ("access", c_void_p), ("accesses", c_size_t), ("bytes", c_size_t), ("address", c_uint64)]

def instantiate(size):
    graph, node, freed, exec = c_void_p(), c_void_p(), c_void_p(), c_void_p()
    must("cuGraphCreate", byref(graph), 0)
    parameters = AllocNode(pool=PoolProperties(type=1, location=Location(1, 0)), bytes=size)
    must("cuGraphAddMemAllocNode", byref(node), graph, None, c_size_t(0), byref(parameters))
    must("cuGraphAddMemFreeNode", byref(freed), graph, (c_void_p * 1)(node), c_size_t(1), c_uint64(parameters.address))
    return call("cuGraphInstantiateWithFlags", byref(exec), graph, c_uint64(0)), graph, exec

context()
result, graph, exec = instantiate(100 * MIB)
assert result == 0
must("cuGraphExecDestroy", exec)
must("cuGraphDestroy", graph)
# The driver keeps the 100 MiB for graphs, but as one piece is too small for this.
result, graph, exec = instantiate(200 * MIB)
assert result == 0
assert instantiate(100 * MIB)[0] == OUT_OF_MEMORY
""",
    )
