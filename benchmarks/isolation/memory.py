"""The memory limit: the memory of all processes of a container, by the driver's accounts, whatever they try.

The racing program is that of the tests (``tests/integration/isolation/allocations_race.c``): processes allocate and free memory in
every way, the driver's count is read all the time, and afterwards one process allocates the limit page by page.
"""

import re
from collections.abc import Iterator

from benchmarks.isolation.bed import BUILT, FAKEGPU, MIB, OWN, Bed, Container, Share
from benchmarks.isolation.cases import Case, Figures, rows
from benchmarks.isolation.peer import Peer
from benchmarks.isolation.running import Ended, line, manner, run
from benchmarks.isolation.table import Row

LIMIT_MIB = 2154
PROCESSES = 64
#: For 64 contexts of the fake driver, and room for the rest.
CONTEXT_MIB = 16
#: Processes still running this long after the race hang.
HANGS_SECONDS = 30.0
#: Numbers as in client.h; and the MiB that a kind may leave unused, since the driver allocates that much at a time.
KINDS = {
    "cuMemAlloc": ("0", 2),
    "cuMemAllocManaged": ("1", 2),
    "cuMemAllocPitch": ("2", 2),
    "cuMemAllocAsync": ("3", 32),
    "cuMemCreate": ("4", 2),
    "cuArrayCreate": ("5", 2),
    "cuMemAllocFromPoolAsync": ("6", 32),
    "cuMipmappedArrayCreate": ("7", 4),
    "every one of these in turn": ("every", 2),
}


def race(bed: Bed, container: Container, seconds: float, kills: int) -> tuple[int, int]:
    """64 racing processes: the maximum that the driver counted (MiB), and how many were killed in time."""
    numbers = [str(number) for number in (container.share.memory_mib, PROCESSES, f"{seconds:g}s", kills)]
    program = [str(BUILT / "allocations_race"), str(FAKEGPU / "libnvidia-ml.so.1"), bed.uuid]
    code, text = run([*program, *numbers], bed.environment(container), seconds + HANGS_SECONDS)
    summary = re.search(r"(\d+) killed,.* at most (\d+) MiB", text)
    if not summary:
        raise Ended(manner(code))
    killed, most_mib = int(summary[1]), int(summary[2])
    # More than the limit is a figure; a failed process, or memory that cannot be allocated afterwards, is not.
    if code and most_mib <= container.share.memory_mib:
        raise Ended(f"at most {most_mib} MiB, but {manner(code)}")
    return most_mib, killed


def filled(bed: Bed, container: Container, kind: str) -> float:
    """MiB that the driver counts for a process that allocated all that it could, including its context."""
    process = bed.start(container, [OWN / "memory_fill", kind])
    line(process, 60.0)
    _, of_each = bed.meter()
    held_mib = of_each[process.pid][1] / MIB
    process.kill()
    process.wait()
    return held_mib


def _off(mib: float) -> float:
    """Missing MiB. Exceeding the limit is worse than any missing amount."""
    return LIMIT_MIB - mib if mib <= LIMIT_MIB else mib


def _limit_case(name: str, kind: str, slack_mib: int) -> Case:
    def measure(peer: Peer | None) -> Figures:
        with Bed(peer, arbiter=False, context_mib=CONTEXT_MIB) as bed:
            return [filled(bed, bed.container("c", Share(memory_mib=LIMIT_MIB)), kind)]

    return Case(
        f"one process takes all that it gets by {name}",
        [LIMIT_MIB],
        "MiB",
        "never more" if slack_mib <= 2 else f"or {slack_mib} less",
        measure,
        lambda got: _off(got[0]),
        lambda got: LIMIT_MIB - slack_mib < got[0] <= LIMIT_MIB,
    )


def _race_case(seconds: float, kills: int) -> Case:
    def measure(peer: Peer | None) -> Figures:
        with Bed(peer, arbiter=False, context_mib=CONTEXT_MIB) as bed:
            container = bed.container("c", Share(memory_mib=LIMIT_MIB))
            most_mib, killed = race(bed, container, seconds, kills)
            return [most_mib, filled(bed, container, "0"), killed]

    return Case(
        f"{PROCESSES} processes race for {seconds:g} s: most held; then by one alone; killed",
        [LIMIT_MIB, LIMIT_MIB, kills],
        "MiB",
        "never more, all",
        measure,
        lambda got: max(_off(mib) for mib in got[:2]),
        lambda got: list(got) == [LIMIT_MIB, LIMIT_MIB, kills],
    )


def measure(peer: Peer | None, *, quick: bool) -> Iterator[Row]:
    """Every row of the table."""
    yield from rows([_limit_case(name, *what) for name, what in KINDS.items()], peer, parallel=2)
    races = [(1.0, 0), (1.0, 20)] if quick else [(60.0, 0), (30.0, 1000)]
    yield from rows([_race_case(*race) for race in races], peer)
