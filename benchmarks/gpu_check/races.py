"""Racing processes and threads, and killed processes; the limit is checked from outside, by the driver's count."""

from collections.abc import Iterator

from benchmarks.gpu_check.lab import ISOLATION, SPIN, Lab, Share
from benchmarks.gpu_check.report import Row, not_run, promise

TITLE = "Races"


def of_processes(lab: Lab, processes: int, seconds: int, kills: int) -> Row:
    """Processes of one container allocate in every way; some are killed and replaced."""
    # Contexts of all processes at a time and a few more, and room for some of their allocations.
    limit_mib = lab.room_mib(512, contexts=processes + 2)
    name = f"{processes} processes allocate in every way for {seconds} s, {kills} are killed at any moment"
    promised = f"never more than {limit_mib} MiB; afterwards exactly that can be allocated"
    if lab.with_a_context()[0] is None:
        return not_run(
            name, "NVML does not list this machine's processes with their memory, so it cannot be checked"
        )
    outcome = lab.run(
        lab.container(Share(limit_mib)),
        ISOLATION / "allocations_race",
        lab.driver.management,
        lab.uuid,
        *map(str, (limit_mib, processes, f"{seconds}s", kills)),
        timeout_s=seconds + 80,
    )
    if not outcome.good:
        return promise(name, promised, f"{outcome.trouble()} {outcome.out.strip()}", False)
    return promise(name, promised, f"{outcome.out.strip()}, {outcome.seconds:.0f} s", True)


def of_threads(lab: Lab, rounds: int) -> Row:
    """Threads of one process allocate, free, fork, create and destroy contexts."""
    name, promised = "8 threads allocate, free, fork", "no call fails, nothing is leaked"
    container = lab.container(Share(lab.room_mib(600, contexts=3)))
    outcome = lab.run(container, ISOLATION / "threads_race", "8", str(rounds), timeout_s=60)
    return promise(
        name,
        promised,
        outcome.out.strip() if outcome.good else outcome.trouble() + " " + outcome.out.strip(),
        outcome.good,
    )


def of_launches(lab: Lab, rounds: int) -> Row:
    """Threads launch work, capture graphs, end contexts and fork, under a compute limit."""
    name, promised = "4 threads launch, capture, end contexts and fork, at 95%", "no call fails"
    container = lab.container(Share(lab.room_mib(600, contexts=6), 95))
    with lab.arbiter():
        outcome = lab.run(container, ISOLATION / "launches_race", "4", str(rounds), timeout_s=60)
    return promise(name, promised, outcome.out.strip() if outcome.good else outcome.trouble(), outcome.good)


def of_the_killed(lab: Lab, times: int) -> Row:
    """A process is killed with queued work and allocated memory; the next one can allocate all of it immediately."""
    name, promised = (
        f"{times} times a process is killed at work, with allocated memory",
        "the next one can allocate the same memory",
    )
    limit_mib = lab.room_mib(1024)
    container = lab.container(Share(limit_mib, 90))
    lines = (
        f"SPIN = {str(SPIN)!r}.encode()\n"
        """
import signal
context()
assert take("plain", 900 * MIB)[0] == 0
module, spin, length = c_void_p(), c_void_p(), c_uint64(50_000_000)
must("cuModuleLoad", byref(module), SPIN)
must("cuModuleGetFunction", byref(spin), module, b"own_time")
parameters = (c_void_p * 1)(ctypes.addressof(length))
for _ in range(3):
    must("cuLaunchKernel", spin, 1, 1, 1, 32, 1, 1, 0, None, parameters, None)
os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    with lab.arbiter():
        for time in range(times):
            outcome = lab.tenant(container, lines)
            if outcome.status != -9:
                return promise(name, promised, f"time {time + 1}: {outcome.trouble()}", False)
    return promise(name, promised, f"{times} times", True)


def rows(lab: Lab, *, quick: bool) -> Iterator[Row]:
    """Killed processes first; the race of processes comes last."""
    yield of_the_killed(lab, 3 if quick else 5)
    yield of_threads(lab, 60 if quick else 300)
    yield of_launches(lab, 40 if quick else 150)
    if quick:
        yield of_processes(lab, 3, 2, 6)
    else:
        yield of_processes(lab, 6, 25, 40)
