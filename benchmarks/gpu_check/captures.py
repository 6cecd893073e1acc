"""Stream captures while other threads work: our libraries lose none, and fail no call that the driver allows."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

from benchmarks.gpu_check.building import ROOT
from benchmarks.gpu_check.lab import SPIN, TROUBLES, Lab, Share, Unanswered
from benchmarks.gpu_check.report import Row, measured, promise

TITLE = "Captures"

#: Prints the results of calls during a global capture of another thread, and whether the capture survives; also run by a test of the fake driver.
RULES = ROOT / "tests" / "unit" / "fakegpu" / "capture_rules.py"
#: The capture is invalid.
INVALID = 901
#: The number of other threads that launch kernels and allocate memory.
THREADS = (1, 8)
#: For ``tenant.py``, after the lines of ``beside``: captures until there are enough, or the time has passed.
BESIDE = """
import threading, time
module, spin, nothing, mine = c_void_p(), c_void_p(), c_void_p(), c_void_p()
context()
must("cuCtxGetCurrent", byref(mine))
must("cuModuleLoad", byref(module), SPIN)
must("cuModuleGetFunction", byref(spin), module, b"own_time")
must("cuModuleGetFunction", byref(nothing), module, b"nothing")

def launch(function, stream):
    length = c_uint64(200_000)
    parameters = (c_void_p * 1)(ctypes.addressof(length))
    must("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, None)

def new_stream():
    made = c_void_p()
    must("cuStreamCreate", byref(made), 1)
    return made

over, launches = threading.Event(), []
def busy():
    must("cuCtxSetCurrent", mine)
    own, count = new_stream(), 0
    while not over.is_set():
        launch(spin, own)
        info()
        count += 1
    launches.append(count)

threads = [threading.Thread(target=busy) for _ in range(THREADS)]
for thread in threads: thread.start()
stream, ends, until = new_stream(), [], time.monotonic() + SECONDS
while len(ends) < CAPTURES and time.monotonic() < until:
    graph = c_void_p()
    must("cuStreamBeginCapture_v2", stream, 0)
    call("cuLaunchKernel", nothing, 1, 1, 1, 1, 1, 1, 0, stream, None, None)
    ends.append(call("cuStreamEndCapture", stream, byref(graph)))
    if not ends[-1]: must("cuGraphDestroy", graph)
over.set()
for thread in threads: thread.join()
print(json.dumps({"captures": len(ends), "lost": len(ends) - ends.count(0), "threads": len(launches)}))
"""


def beside(threads: int, *, captures: int = 1 << 30, seconds: float) -> str:
    """Lines for ``tenant.py`` that print, as JSON, the numbers of captures, of lost ones, and of threads that finished."""
    values = {"SPIN": str(SPIN).encode(), "THREADS": threads, "CAPTURES": captures, "SECONDS": seconds}
    return "import json\n" + "".join(f"{name} = {value!r}\n" for name, value in values.items()) + BESIDE


def rules(lab: Lab, share: Share | None) -> Mapping[str, Mapping[str, list[int]]]:
    """By mode of the calling thread and by call: its result, and the result of ending the concurrent capture."""
    container = lab.container(share) if share else None
    outcome = lab.run(container, sys.executable, RULES, timeout_s=60)
    if not outcome.good:
        raise Unanswered(outcome.trouble())
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def invalidating(found: Mapping[str, Mapping[str, list[int]]]) -> str:
    """The calls that invalidate a capture."""
    return "; ".join(
        f"{mode}: {', '.join(name for name, (_, end) in calls.items() if end == INVALID) or 'none'}"
        for mode, calls in found.items()
    )


def of_rules(lab: Lab, share: Share) -> Row:
    """The same calls are allowed with limits and without."""
    name = "calls that invalidate a global capture, by the calling thread's mode"
    try:
        bare, held = invalidating(rules(lab, None)), invalidating(rules(lab, share))
    except TROUBLES as error:
        return promise(name, "the same as without a limit", error, False)
    return promise(
        name,
        "the same as without a limit",
        held if held == bare else f"{held}; without: {bare}",
        held == bare,
    )


def captured(lab: Lab, threads: int, share: Share | None, seconds: float) -> tuple[int, int]:
    """The numbers of captures and of lost ones."""
    with lab.arbiter() if share else nullcontext():
        container = lab.container(share) if share else None
        found = lab.result(container, beside(threads, seconds=seconds), timeout_s=seconds + 30)
    if found["threads"] != threads:
        raise Unanswered(f"{threads - found['threads']} of {threads} busy threads ended early")
    return found["captures"], found["lost"]


def rows(lab: Lab, *, quick: bool) -> Iterator[Row]:
    """Rules first; then captures with one other thread, and with many."""
    share, seconds = Share(lab.room_mib(600), 90), 2.0 if quick else 30.0
    yield of_rules(lab, share)
    for threads in THREADS:
        name = f"global captures with {threads} busy thread{'s' if threads > 1 else ''}, {seconds:g} s"
        try:
            bare, bare_lost = captured(lab, threads, None, min(seconds, 5.0))
            got, lost = captured(lab, threads, share, seconds)
        except TROUBLES as error:
            yield promise(name, "none is lost", error, False)
            continue
        yield measured(f"no limit: {name}", f"{bare_lost} of {bare} lost, in {min(seconds, 5.0):g} s")
        yield promise(name, "none is lost", f"{lost} of {got} lost", lost == 0 and got > 0)
