"""Green contexts: the primary context that they keep is charged, and everything created in one ends with it."""

from tests.integration.isolation.conftest import LimitedContainer
from tests.integration.isolation.containers import run_tenant
from tests.integration.isolation.test_compute_limit import LOAD

GREEN = """
def green_context():
    resource, description, green, made = ctypes.create_string_buffer(144), c_void_p(), c_void_p(), c_void_p()
    must("cuDeviceGetDevResource", 0, resource, 1)
    must("cuDevResourceGenerateDesc", byref(description), resource, 1)
    result = call("cuGreenCtxCreate", byref(green), description, 0, 1)
    if result:
        return result, None, None
    must("cuCtxFromGreenCtx", byref(made), green)
    return 0, green, made
"""


def test_a_green_context_is_charged_like_the_primary_one_until_the_last_is_destroyed(
    container: LimitedContainer,
) -> None:
    run_tenant(
        container(1000),
        GREEN
        + """
first = context()
cost = used()
_, green, made = green_context()
assert used() == 2 * cost, used()
_, second, _ = green_context()
assert used() == 2 * cost, used()
must("cuCtxSetCurrent", made)
for kind in ("plain", "managed", "array"):
    assert take(kind, 64 * MIB)[0] == 0
assert take("plain", 1000)[0] == 0
assert used() == 2 * cost + 3 * 64 + 2
must("cuCtxSetCurrent", first)
must("cuGreenCtxDestroy", green)
assert used() == 2 * cost + 3 * 64 + 2
must("cuGreenCtxDestroy", second)
assert used() == cost, used()
# Room for the first context, and for no other.
assert take("plain", (1000 - cost - 100) * MIB)[0] == 0
assert green_context()[0] == OUT_OF_MEMORY
assert used() == 900
""",
    )


def test_a_device_reset_frees_what_was_created_in_a_green_context(container: LimitedContainer) -> None:
    run_tenant(
        container(),
        GREEN
        + """
first = context()
cost = used()
_, green, made = green_context()
must("cuCtxSetCurrent", made)
assert take("plain", 64 * MIB)[0] == 0
must("cuCtxSetCurrent", first)
must("cuDevicePrimaryCtxReset_v2", 0)
assert used() == cost, used()
must("cuGreenCtxDestroy", green)
assert used() == cost, used()
""",
    )


def test_work_in_green_contexts_is_held_to_the_share_until_they_end(container: LimitedContainer) -> None:
    run_tenant(
        container(more=" core_percent=90"),
        LOAD
        + GREEN
        + """
for _ in range(20):
    _, green, made = green_context()
    stream = c_void_p()
    must("cuGreenCtxStreamCreate", byref(stream), green, 1, 0)
    must("cuCtxSetCurrent", made)
    module, spin = c_void_p(), c_void_p()
    must("cuModuleLoadData", byref(module), PTX)
    must("cuModuleGetFunction", byref(spin), module, b"spin")
    for _ in range(5):
        launch(300_000)
        launch(300_000, stream)
    must("cuStreamDestroy_v2", stream)
    must("cuGreenCtxDestroy", green)
""",
    )
