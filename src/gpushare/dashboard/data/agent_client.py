"""Reads usage from the node agents: immediately for a node that a page shows, and slowly for all nodes in turn."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gpushare.dashboard.data.endpoints import AgentAddressFn
from gpushare.dashboard.data.heatmap import Real
from gpushare.dashboard.data.http_get import HttpGetter, RequestFailed
from gpushare.dashboard.data.metrics_parser import Figures, read
from gpushare.kube.clock import Clock

logger = logging.getLogger(__name__)

#: How long an answer counts as fresh for a page that shows the node.
FRESH_S: Final = 2.0
#: Limits of the sweep: parallel requests, requests per second, and the minimum duration of a round.
MAX_PARALLEL: Final = 16
MAX_PER_SECOND: Final = 100
ROUND_S: Final = 5.0
#: Polling interval for open pages.
IDLE_S: Final = 0.4
#: Requests started together, to sleep less often.
_BATCH: Final = 10

RecordFn = Callable[[str, Sequence[Real]], None]
UuidsFn = Callable[[str], Sequence[str]]


class Agents:
    """Reads agents and puts their figures on the board.

    ``uuids`` returns a node's GPUs in the board's order. Figures of a node are removed when its agent cannot be read, and those of all nodes
    while no page is open, because old figures are not current usage.
    """

    def __init__(
        self, http: HttpGetter, address: AgentAddressFn, uuids: UuidsFn, put: RecordFn, clock: Clock
    ) -> None:
        self._http = http
        self._address = address
        self._uuids = uuids
        self._put = put
        self._clock = clock
        self._last: dict[str, tuple[float, Figures | None, str]] = {}
        self._running: dict[str, asyncio.Task[tuple[Figures | None, str]]] = {}

    async def read(self, node: str) -> tuple[Figures | None, str]:
        """The node's figures, at most ``FRESH_S`` old, or ``None`` and why there are none."""
        last = self._last.get(node)
        if last is not None and self._clock.monotonic() - last[0] < FRESH_S:
            return last[1:]
        task = self._running.get(node)
        if task is None:
            # One request for all callers; the cancellation of one caller does not affect the others.
            task = self._running[node] = asyncio.create_task(self._ask(node))
            task.add_done_callback(lambda _: self._running.pop(node, None))
        return await asyncio.shield(task)

    async def _ask(self, node: str) -> tuple[Figures | None, str]:
        figures, problem = None, ""
        address = self._address(node)
        if not address:
            problem = "no node agent of ours runs there, or it serves no metrics"
        else:
            try:
                body = await self._http.get(f"http://{address}/metrics")
                figures = read(body.decode(errors="replace"))
            except RequestFailed as error:
                problem = str(error)
        self._last[node] = (self._clock.monotonic(), figures, problem)
        self._put(node, [] if figures is None else [figures.of_gpu(uuid) for uuid in self._uuids(node)])
        return figures, problem

    async def sweep(self, nodes: Callable[[], Iterable[str]], wanted: Callable[[], bool]) -> None:
        """Read all nodes in order, until cancelled, while ``wanted()``; otherwise forget figures older than a round."""
        slots = asyncio.Semaphore(MAX_PARALLEL)
        round_s = ROUND_S
        async with asyncio.TaskGroup() as tasks:
            while True:
                names = list(nodes()) if wanted() else []
                for removed in self._last.keys() - set(names) if names else ():
                    del self._last[removed]
                interval_s = max(1 / MAX_PER_SECOND, ROUND_S / max(len(names), 1))
                if names:
                    round_s = interval_s * len(names)
                for start in range(0, len(names), _BATCH):
                    batch = names[start : start + _BATCH]
                    for name in batch:
                        # An agent that does not answer occupies one slot only.
                        await slots.acquire()
                        tasks.create_task(self.read(name)).add_done_callback(lambda _: slots.release())
                    await self._clock.sleep(len(batch) * interval_s)
                    if not wanted():
                        break
                if not names:
                    self._forget(round_s)
                    await self._clock.sleep(IDLE_S)

    def _forget(self, older_s: float) -> None:
        """Remove the figures of nodes that were read longer ago than ``older_s``."""
        before_s = self._clock.monotonic() - older_s
        for node in [node for node, (read_s, *_) in self._last.items() if read_s < before_s]:
            del self._last[node]
            self._put(node, [])
