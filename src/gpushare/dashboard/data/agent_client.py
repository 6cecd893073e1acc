"""What is really used, asked of the node agents: at once for a node that somebody looks at, and slowly of all in turn."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gpushare.dashboard.data.endpoints import AgentAddressFn
from gpushare.dashboard.data.heatmap import Real
from gpushare.dashboard.data.http_get import Asks, CannotAsk
from gpushare.dashboard.data.metrics_parser import Figures, read
from gpushare.kube.clock import Clock

logger = logging.getLogger(__name__)

#: How long an answer counts as fresh for whoever looks at the node.
FRESH_S: Final = 2.0
#: Of all in turn, so many are under way at once, so many are begun a second, and a whole round takes so long at the least.
AT_ONCE: Final = 16
A_SECOND: Final = 100
ROUND_S: Final = 5.0
#: How often somebody who looks is looked for.
IDLE_S: Final = 0.4
#: Begun together, so that the clock is not asked for each.
_BATCH: Final = 10

RecordFn = Callable[[str, Sequence[Real]], None]
UuidsFn = Callable[[str], Sequence[str]]


class Agents:
    """Asks agents, and puts what they tell on the board.

    ``uuids`` names a node's GPUs as the board shows them. A node that cannot be asked has no figures from then on, and
    none has while nobody looks: what was measured once is not what is used now.
    """

    def __init__(
        self, asks: Asks, address: AgentAddressFn, uuids: UuidsFn, put: RecordFn, clock: Clock
    ) -> None:
        self._asks = asks
        self._address = address
        self._uuids = uuids
        self._put = put
        self._clock = clock
        self._last: dict[str, tuple[float, Figures | None, str]] = {}
        self._asked: dict[str, asyncio.Task[tuple[Figures | None, str]]] = {}

    async def look(self, node: str) -> tuple[Figures | None, str]:
        """The node's figures, at most ``FRESH_S`` old, or ``None`` and why there are none."""
        last = self._last.get(node)
        if last is not None and self._clock.monotonic() - last[0] < FRESH_S:
            return last[1:]
        task = self._asked.get(node)
        if task is None:
            # One question for all who ask; who goes away meanwhile takes nothing from the others.
            task = self._asked[node] = asyncio.create_task(self._ask(node))
            task.add_done_callback(lambda _: self._asked.pop(node, None))
        return await asyncio.shield(task)

    async def _ask(self, node: str) -> tuple[Figures | None, str]:
        figures, problem = None, ""
        address = self._address(node)
        if not address:
            problem = "no node agent of ours runs there, or it tells no figures"
        else:
            try:
                body = await self._asks.get(f"http://{address}/metrics")
                figures = read(body.decode(errors="replace"))
            except CannotAsk as error:
                problem = str(error)
        self._last[node] = (self._clock.monotonic(), figures, problem)
        self._put(node, [] if figures is None else [figures.of_gpu(uuid) for uuid in self._uuids(node)])
        return figures, problem

    async def sweep(self, nodes: Callable[[], Iterable[str]], wanted: Callable[[], bool]) -> None:
        """Ask all nodes in turn, as they are named, for ever, while somebody looks; else forget what is older than a round."""
        places = asyncio.Semaphore(AT_ONCE)
        round_s = ROUND_S
        async with asyncio.TaskGroup() as looks:
            while True:
                names = list(nodes()) if wanted() else []
                for gone in self._last.keys() - set(names) if names else ():
                    del self._last[gone]
                each_s = max(1 / A_SECOND, ROUND_S / max(len(names), 1))
                if names:
                    round_s = each_s * len(names)
                for start in range(0, len(names), _BATCH):
                    batch = names[start : start + _BATCH]
                    for name in batch:
                        # One that does not answer holds up its own place, and nobody else's.
                        await places.acquire()
                        looks.create_task(self.look(name)).add_done_callback(lambda _: places.release())
                    await self._clock.sleep(len(batch) * each_s)
                    if not wanted():
                        break
                if not names:
                    self._forget(round_s)
                    await self._clock.sleep(IDLE_S)

    def _forget(self, older_s: float) -> None:
        """Say of nodes that were asked longer ago that nobody knows."""
        before_s = self._clock.monotonic() - older_s
        for node in [node for node, (asked_s, *_) in self._last.items() if asked_s < before_s]:
            del self._last[node]
            self._put(node, [])
