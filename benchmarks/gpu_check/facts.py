"""The driver's memory usage of an allocation, compared with what a container is charged for it.

The same lines run without a limit, where CUDA's own count of free memory shows what the driver takes, and in a container,
where it shows the charge. The charge must be at least what is taken: otherwise a container could grow above its limit unnoticed
by the libraries. Memory that the driver takes on its own, found by comparison, is measured without a promise.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.gpu_check.lab import MIB, SPIN, TROUBLES, Lab, Share
from benchmarks.gpu_check.report import Row, measured, not_run, promise

TITLE = "What the driver takes, and what is charged"

#: Prints a line of JSON for each of the items below: the memory taken, and the memory still missing after it was freed.
ITEMS = """
def free_bytes():
    free, total = c_size_t(), c_size_t()
    must("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value

def several(count, size):
    held = [take("plain", size) for _ in range(count)]
    assert all(result == 0 for result, _ in held), held
    return lambda: [give("plain", one) for _, one in held]

def one(kind, size):
    result, held = take(kind, size)
    assert result == 0, result
    return lambda: give(kind, held)

def touched(size):
    result, held = take("managed", size)
    assert result == 0, result
    must("cuMemsetD8_v2", held, 1, c_size_t(size))
    must("cuCtxSynchronize")
    return lambda: give("managed", held)

def host(size):
    at = c_void_p()
    must("cuMemHostAlloc", byref(at), c_size_t(size), 0)
    return lambda: must("cuMemFreeHost", at)

def second_context():
    first, made = c_void_p(), c_void_p()
    must("cuCtxGetCurrent", byref(first))
    must("cuCtxCreate_v2", byref(made), 0, 0)
    must("cuCtxSetCurrent", first)
    return lambda: must("cuCtxDestroy_v2", made)

def graph(size):
    whole, (stream, made) = c_void_p(), graph_that_takes(size)
    must("cuGraphInstantiateWithFlags", byref(whole), made, c_uint64(0))
    must("cuGraphLaunch", whole, stream)
    must("cuStreamSynchronize", stream)
    def back():
        must("cuGraphExecDestroy", whole)
        must("cuGraphDestroy", made)
        must("cuDeviceGraphMemTrim", 0)
    return back

def module(text):
    made = c_void_p()
    must("cuModuleLoadData", byref(made), text)
    at, size = c_uint64(), c_size_t()
    call("cuModuleGetGlobal_v2", byref(at), byref(size), made, b"room")
    return lambda: must("cuModuleUnload", made)

def limit(which, value):
    before = c_size_t()
    must("cuCtxGetLimit", byref(before), which)
    must("cuCtxSetLimit", which, c_size_t(value))
    spin, function = c_void_p(), c_void_p()
    must("cuModuleLoad", byref(spin), SPIN)
    must("cuModuleGetFunction", byref(function), spin, b"nothing")
    must("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    must("cuCtxSynchronize")
    def back():
        must("cuCtxSetLimit", which, before)
        must("cuModuleUnload", spin)
    return back

def made(name, count, *arguments):
    handles = [c_void_p() for _ in range(count)]
    for handle in handles:
        must(name, byref(handle), *arguments)
    return lambda: None

GLOBAL = b".version 6.4\\n.target sm_50\\n.address_size 64\\n.visible .global .align 8 .b8 room[67108864];\\n"
THINGS = [
    ("1 B", lambda: one("plain", 1)),
    ("1 MiB - 1", lambda: one("plain", MIB - 1)),
    ("1 MiB", lambda: one("plain", MIB)),
    ("1 MiB + 1", lambda: one("plain", MIB + 1)),
    ("2 MiB", lambda: one("plain", 2 * MIB)),
    ("2 MiB + 1", lambda: one("plain", 2 * MIB + 1)),
    ("100 MiB", lambda: one("plain", 100 * MIB)),
    ("40 pieces of 300,000 B", lambda: several(40, 300_000)),
    ("100 pieces of 1 B", lambda: several(100, 1)),
    ("10 pieces of 700,000 B", lambda: several(10, 700_000)),
    ("10 pieces of 1.5 MiB", lambda: several(10, 3 * MIB // 2)),
    ("pitched, 64 MiB", lambda: one("pitch", 64 * MIB)),
    ("managed, 64 MiB, not touched", lambda: one("managed", 64 * MIB)),
    ("managed, 64 MiB, written on the GPU", lambda: touched(64 * MIB)),
    ("stream-ordered, 1 MiB", lambda: one("async", MIB)),
    ("stream-ordered, 33 MiB", lambda: one("async", 33 * MIB)),
    ("from a pool of one's own, 1 MiB", lambda: one("from_pool", MIB)),
    ("physical, 2 MiB", lambda: one("physical", 2 * MIB)),
    ("physical, 64 MiB", lambda: one("physical", 64 * MIB)),
    ("array, 64 MiB", lambda: one("array", 64 * MIB)),
    ("array, 64 KiB", lambda: one("array", 1 << 16)),
    ("mipmapped array, 64 MiB", lambda: one("mipmap", 64 * MIB)),
    ("graph with 64 MiB of its own, launched", lambda: graph(64 * MIB)),
    ("second context of the process", second_context),
    ("host memory, 64 MiB", lambda: host(64 * MIB)),
    ("module with 64 MiB of variables", lambda: module(GLOBAL)),
    ("8 KiB of stack a thread, and a launch", lambda: limit(0, 1 << 13)),
    ("64 MiB of printf buffer, and a launch", lambda: limit(1, 64 * MIB)),
    ("64 MiB of device heap, and a launch", lambda: limit(2, 64 * MIB)),
    ("32 streams", lambda: made("cuStreamCreate", 32, 1)),
    ("1000 events", lambda: made("cuEventCreate", 1000, 0)),
]
context()
# The first of a kind makes the driver set things up, which is not its own cost.
FIRST = [("", lambda: one("plain", 1)), ("", lambda: one("async", MIB))]
for name, thing in FIRST + THINGS:
    try:
        before = free_bytes()
        back = thing()
        taken = before - free_bytes()
        back()
        outcome = {"taken": taken, "kept": before - free_bytes()}
    except (AssertionError, AttributeError) as error:
        outcome = {"error": str(error)}
    if name:
        print(json.dumps({"name": name} | outcome), flush=True)
granularity = c_size_t()
properties = AllocationProperties(type=1, location=Location(1, 0))
for flag, name in ((0, "least"), (1, "recommended")):
    if call("cuMemGetAllocationGranularity", byref(granularity), byref(properties), flag) == 0:
        print(json.dumps({"name": f"granularity of physical memory, {name}", "value": granularity.value}))
pool, address, reserved = c_void_p(), c_uint64(), c_uint64()
pools = call("cuMemPoolCreate", byref(pool), byref(PoolProperties(type=1, location=Location(1, 0))))
for size in (1, 33 * MIB) if pools == 0 else ():
    must("cuMemAllocFromPoolAsync", byref(address), c_size_t(size), pool, None)
    must("cuMemPoolGetAttribute", pool, 5, byref(reserved))
    print(json.dumps({"name": f"reserved by a pool for {size} B more", "value": reserved.value}))
"""
#: See docs/developer/isolation.md: memory that the driver takes on its own is not charged, but counted afterwards.
NOT_CHARGED = (
    "module",
    "8 KiB of stack",
    "64 MiB of printf",
    "64 MiB of device heap",
    "32 streams",
    "1000 events",
)


def mib(size: float) -> str:
    """A readable size."""
    return f"{size / MIB:.10g} MiB" if size % (1 << 12) == 0 or abs(size) >= MIB else f"{size} B"


def items(lab: Lab, limit_mib: int | None) -> tuple[dict[str, dict[str, Any]], str]:
    """The memory of each thing; and, if not all were measured, why."""
    container = None if limit_mib is None else lab.container(Share(limit_mib))
    ran = lab.tenant(container, f"SPIN = {str(SPIN)!r}.encode()\n" + ITEMS, timeout_s=60)
    sizes = {}
    for line in ran.out.splitlines():
        item = json.loads(line)
        sizes[item["name"]] = item
    return sizes, "" if ran.good else ran.trouble()


def compared(bare: Mapping[str, Mapping[str, Any]], held: Mapping[str, Mapping[str, Any]]) -> Iterator[Row]:
    """A row for each thing."""
    for name, taken in bare.items():
        if "value" in taken:
            yield measured(name, mib(taken["value"]))
            continue
        if "error" in taken:
            yield not_run(name, taken["error"])
            continue
        charged = held.get(name, {})
        got = f"driver {mib(taken['taken'])}"
        if taken["kept"]:
            got += f" ({mib(taken['kept'])} of it kept when given back)"
        if "taken" not in charged:
            yield promise(
                name, "the same as without a limit", charged.get("error", "nothing was said"), False
            )
        elif name.startswith(NOT_CHARGED):
            yield measured(f"{name} (counted once it is there)", f"{got}; charged {mib(charged['taken'])}")
        else:
            # Memory that is freed and still charged would be lost to the container.
            holds = charged["taken"] >= taken["taken"] and charged["kept"] <= max(0, taken["kept"])
            got += f"; charged {mib(charged['taken'])}"
            got += f", {mib(charged['kept'])} of it after it was given back" if charged["kept"] else ""
            yield promise(name, "charged at least what is taken, and not after it was given back", got, holds)


def of_contexts(lab: Lab) -> Iterator[Row]:
    """The memory of a context: by NVML's count for its process, by the GPU's, and as charged."""
    listed, grown = lab.with_a_context()
    charged = lab.context_mib()
    yield measured("a context, by the GPU's memory", mib(grown))
    if listed is None:
        yield measured("a context, by NVML's count for its process", "NVML does not report it")
        yield promise(
            "a context is charged", f"{grown / MIB:.0f} MiB or more", f"{charged} MiB", charged * MIB >= grown
        )
    else:
        yield measured("a context, by NVML's count for its process", mib(listed))
        wanted = f"{listed / MIB:.0f} MiB or more"
        yield promise("a context is charged", wanted, f"{charged} MiB", charged * MIB >= listed)


def rows(lab: Lab) -> Iterator[Row]:
    """Contexts first: the room for the rest depends on their memory."""
    yield from of_contexts(lab)
    bare, trouble = items(lab, None)
    if trouble:
        yield promise("the measuring program without a limit", "ends in order", trouble, False)
    held, trouble = items(lab, lab.room_mib(1024, contexts=2))
    if trouble:
        yield promise("the measuring program in a container", "ends in order", trouble, False)
    try:
        yield from compared(bare, held)
    except TROUBLES as error:
        yield promise("what is charged", "can be compared", error, False)
