"""A node agent on the fake NVML, whose kubelet admits one pod after the other.

Usage: ``python -m benchmarks.load.node FIGURES LISTEN``. ``FIGURES`` gets a line with the agent's process ID, and one for each
``Allocate``: its end by the monotonic clock, and its duration, both in seconds.
"""

import asyncio
import signal
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from benchmarks.allocate import node
from tests.integration.nodeagent.cluster_objects import NODE

_PACE_S: Final = 0.03
#: Number of pods between two changes of the node: some seconds.
_TOUCHED_EVERY: Final = 100


async def _admit(figures: Path, listen: str) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError):
        async with node(listen) as served:
            fresh = figures.with_suffix(".new")
            fresh.write_text(f"{served.agent.pid}\n")
            fresh.replace(figures)
            with figures.open("a", buffering=1) as out:
                for number in count():
                    await served.admit(number)
                    if number % _TOUCHED_EVERY == 0:
                        # As its kubelet does; a watcher would take silence for a broken connection.
                        served.api.put("nodes", NODE, served.api.objects["nodes", NODE])
                    for took_s in served.kubelet.took_s:
                        out.write(f"{time.monotonic()} {took_s}\n")
                    served.kubelet.took_s.clear()
                    await asyncio.sleep(_PACE_S)


if __name__ == "__main__":
    asyncio.run(_admit(Path(sys.argv[1]), sys.argv[2]))
