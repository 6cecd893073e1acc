"""Profiles of kube-scheduler and kube-apiserver (their own profilers) and our extender (Python's), and connections by the kernel."""

import asyncio
import io
import pstats
import subprocess
from pathlib import Path
from typing import Final

from benchmarks.cluster.api import Api, Bound
from benchmarks.cluster.variants import Scheduler

_SECONDS: Final = 8
_ROWS: Final = 45
_STATES: Final = {"01": "established", "06": "time-wait"}


async def go_profiles(scheduler: Scheduler, api: Api, bound: Bound, after: int, out: Path) -> dict[str, Path]:
    """Processor profiles of kube-scheduler and kube-apiserver in ``out``, from the moment when ``after`` pods have a node."""
    await bound.reaches(after, scheduler.programs)
    path = f"/debug/pprof/profile?seconds={_SECONDS}"
    raw = await asyncio.gather(scheduler.raw(path, timeout_s=_SECONDS + 60), api.raw(path))
    found = {name: out / f"{name}.pprof" for name in ("kube-scheduler", "kube-apiserver")}
    for file, content in zip(found.values(), raw, strict=True):
        await asyncio.to_thread(file.write_bytes, content)
    return found


def top(profile: Path) -> str:
    """A profile as a list, by cumulative time."""
    command = ["go", "tool", "pprof", "-top", "-cum", f"-nodecount={2 * _ROWS}", str(profile)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def extender_top(stats: Path) -> str:
    """The extender's profile as two lists: by own time and by cumulative time."""
    text = io.StringIO()
    pstats.Stats(str(stats), stream=text).sort_stats("tottime").print_stats(_ROWS)
    pstats.Stats(str(stats), stream=text).sort_stats("cumtime").print_stats(_ROWS)
    return text.getvalue()


def connections(port: int) -> dict[str, int]:
    """Numbers of current and recent connections to a port of loopback: state → count."""
    found = dict.fromkeys(_STATES.values(), 0)
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[2].rpartition(":")[2], 16) == port and fields[3] in _STATES:
            found[_STATES[fields[3]]] += 1
    return found
