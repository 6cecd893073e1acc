"""The memory limit: nothing can be allocated above it, all of it can, and all answers agree."""

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu_check.lab import MIB, TROUBLES, Lab, Share
from benchmarks.gpu_check.report import Row, measured, not_run, promise

TITLE = "Memory"

KINDS = ("plain", "pitch", "managed", "async", "async_ptsz", "from_pool", "physical", "array", "mipmap")
#: The memory left after a context; half of it is allocated, then more than the other half is requested.
ROOM_MIB = 2048
FIRST_MIB, SECOND_MIB = 1024, 1280
NOT_SUPPORTED = 801
#: Allowed difference of two contexts of the same kind.
CONTEXTS_DIFFER_MIB = 16

#: Allocates, requests more than is left, frees. Never requests more from the driver than the smallest GPU has.
ABOVE = f"""
context()
base = used()
result = {{}}
result["first"], held = take(KIND, {FIRST_MIB} * MIB)
result["charged"] = used() - base
result["above"], other = take(KIND, {SECOND_MIB} * MIB)
if result["above"] == 0:
    give(KIND, other)
result["charged_after"] = used() - base
if result["first"] == 0:
    give(KIND, held)
result["left"] = used() - base
result["again"], held = take(KIND, {FIRST_MIB} * MIB)
pool, reserved = c_void_p(), c_uint64()
if KIND.startswith("async") and call("cuDeviceGetMemPool", byref(pool), 0) == 0:
    if result["again"] == 0:
        give(KIND, held)
    if call("cuMemPoolGetAttribute", pool, 5, byref(reserved)) == 0:
        result["reserved"] = reserved.value // MIB
print(json.dumps(result))
"""

GRAPH_ABOVE = f"""
context()
def instantiated(size):
    whole, (stream, made) = c_void_p(), graph_that_takes(size)
    result = call("cuGraphInstantiateWithFlags", byref(whole), made, c_uint64(0))
    return result or call("cuGraphLaunch", whole, stream) or call("cuStreamSynchronize", stream)
print(json.dumps([instantiated(({ROOM_MIB} + 512) * MIB), instantiated({FIRST_MIB} * MIB)]))
"""

#: Ends soon after the limit if that is not enforced: the GPU's memory may be much larger.
LAST = """
context()
pages, (free, total) = 0, info()
while info()[0] >= 2 and pages <= LIMIT // 2:
    result, _ = take("plain", 2 * MIB)
    if result:
        break
    pages += 1
result, above = take("plain", MIB)
small, _ = take("plain", 1)
print(json.dumps({"free": free, "total": total, "left": info()[0], "above": result, "pages": pages, "small": small}))
"""

#: Holds memory until its stdin ends.
HOLDS = """
context()
assert take("plain", SIZE * MIB)[0] == 0
free, total, whole = c_size_t(), c_size_t(), c_size_t()
must("cuMemGetInfo_v2", byref(free), byref(total))
must("cuDeviceTotalMem_v2", byref(whole), 0)
print(json.dumps({"pid": os.getpid(), "free": free.value, "total": total.value, "whole": whole.value}), flush=True)
sys.stdin.read()
"""


def of_kind(lab: Lab, kind: str, limit_mib: int) -> Row:
    """One way to allocate memory."""
    name = f"{kind}: {FIRST_MIB} MiB, then {SECOND_MIB} MiB where {ROOM_MIB} MiB are left in all"
    promised = (
        "the first succeeds, the second fails (CUDA error 2); after freeing, all can be allocated again"
    )
    try:
        result = lab.result(lab.container(Share(limit_mib)), f"KIND = {kind!r}\n" + ABOVE)
    except TROUBLES as error:
        return promise(name, promised, error, False)
    if result["first"] == NOT_SUPPORTED:
        return not_run(name, "this GPU, or its driver, does not have it (CUDA error 801)")
    got = (
        f"first: {result['first']}, charged {result['charged']} MiB; second: {result['above']}; "
        f"{result['left']} MiB left behind; again: {result['again']}"
    )
    # A pool may keep its reservation: the driver does not get it back then.
    left = result["left"] == 0 or result["left"] <= result.get("reserved", 0)
    holds = (result["first"], result["above"], result["again"]) == (0, 2, 0) and left
    return promise(name, promised, got, holds and result["charged"] >= FIRST_MIB)


def of_graphs(lab: Lab, limit_mib: int) -> Row:
    """Memory that a graph allocates itself."""
    name, promised = "memory nodes of a graph", "above the limit it fails (CUDA error 2), below it succeeds"
    try:
        above, below = lab.result(lab.container(Share(limit_mib)), GRAPH_ABOVE)
    except TROUBLES as error:
        return promise(name, promised, error, False)
    return promise(
        name, promised, f"{ROOM_MIB + 512} MiB: {above}; {FIRST_MIB} MiB: {below}", (above, below) == (2, 0)
    )


def of_the_last(lab: Lab, limit_mib: int) -> Row:
    """The last available pages."""
    name, promised = "the last MiB", "every page up to the limit can be allocated, and nothing above it"
    try:
        result = lab.result(lab.container(Share(limit_mib)), f"LIMIT = {limit_mib}\n" + LAST)
    except TROUBLES as error:
        return promise(name, promised, error, False)
    got = (
        f"{result['free']} of {result['total']} MiB are free; {result['pages']} pages of 2 MiB, {result['left']} MiB left; "
        f"then 1 MiB: {result['above']}, 1 B: {result['small']}"
    )
    all_had = result["total"] == limit_mib and result["pages"] == result["free"] // 2 and result["left"] < 2
    return promise(name, promised, got, all_had and result["above"] == result["small"] == 2)


def of_answers(lab: Lab, limit_mib: int) -> Iterator[Row]:
    """The reported usage of a container, from inside and from outside."""
    here, neighbour = lab.container(Share(limit_mib)), lab.container(Share(limit_mib))
    with lab.staying(here, f"SIZE = {FIRST_MIB}\n" + HOLDS) as program:
        result: dict[str, Any] = json.loads(program.answer())
        inside, outside = lab.answers(here), lab.answers(None)
        # The neighbour allocates its whole room, while this one has half of its own.
        other = lab.result(
            neighbour, f"context()\nprint(json.dumps([take('plain', {FIRST_MIB} * MIB)[0], used()]))"
        )
        neighbours = lab.answers(neighbour)
    totals = {
        "cuDeviceTotalMem": result["whole"],
        "cuMemGetInfo": result["total"],
        "NVML": inside.get("memory", {}).get("total"),
        "NVML, second form": inside.get("memory_2", {}).get("total", result["total"]),
    }
    got = ", ".join(f"{name} {(value or 0) / MIB:g}" for name, value in totals.items())
    yield promise("the total, MiB", str(limit_mib), got, set(totals.values()) == {limit_mib * MIB})
    used_mib = (result["total"] - result["free"]) / MIB
    by_management = inside.get("memory", {}).get("used", 0) / MIB
    yield promise(
        "what is used, MiB",
        "CUDA and NVML agree",
        f"{used_mib:g}, {by_management:g}",
        used_mib == by_management,
    )
    listed = (outside.get("processes") or {}).get(str(result["pid"]))
    if listed is None:
        yield measured("the driver's own count for the process", "NVML does not report it")
    else:
        got = f"charged {used_mib:g}, the driver counts {listed / MIB:g}"
        yield promise(
            "what is charged, MiB",
            "the driver's own count for the process, or more",
            got,
            used_mib >= listed / MIB,
        )
    seen = inside.get("processes") or {}
    yield promise(
        "processes that are listed inside",
        "the container's own",
        ", ".join(seen) or "none",
        set(seen) <= {str(result["pid"])},
    )
    context_mib = lab.context_mib()
    alone = (neighbours.get("memory", {}).get("used", 1), neighbours.get("processes") or {})
    yield promise(
        "a neighbour",
        "has its whole limit, and does not see the other",
        f"{FIRST_MIB} MiB: {other[0]}, used {other[1]} of which the context {context_mib}; afterwards NVML says {alone[0] / MIB:g}",
        other[0] == 0 and abs(other[1] - context_mib - FIRST_MIB) <= CONTEXTS_DIFFER_MIB and alone == (0, {}),
    )


def rows(lab: Lab) -> Iterator[Row]:
    """Every kind, the last page, the answers."""
    limit_mib = lab.room_mib(ROOM_MIB)
    yield measured("the limit of what follows, MiB", f"{limit_mib}, {lab.context_mib()} of it for a context")
    for kind in KINDS:
        yield of_kind(lab, kind, limit_mib)
    yield of_graphs(lab, limit_mib)
    yield of_the_last(lab, lab.room_mib(256))
    try:
        yield from of_answers(lab, limit_mib)
    except TROUBLES as error:
        yield promise("answers", "are given", error, False)
