"""Precomputes the ledger's results for pending pods before kube-scheduler filters them.

The first filter request with a new size looks at every GPU; later ones look only at what changed since. Our watch shows a pod as early as
kube-scheduler's does, and kube-scheduler then needs time for its queue and its own filters. That time is used here.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from gpushare.api.request.request import Request
from gpushare.ledger import Ledger

#: Maximum length of the queue. Further requests are computed when kube-scheduler filters their pods.
_MOST_QUEUED: Final = 256


class Precomputer:
    """A queue of the requests of new pods, computed while the event loop is idle. ``on_computed`` is called after each."""

    def __init__(self, ledger: Ledger, on_computed: Callable[[], None] = lambda: None) -> None:
        self._ledger = ledger
        self._on_computed = on_computed
        self._queue: dict[Request, None] = {}
        self._not_empty = asyncio.Event()

    def arrived(self, request: Request) -> None:
        """A new pod has this request, and kube-scheduler will filter it."""
        if len(self._queue) < _MOST_QUEUED:
            self._queue[request] = None
            self._not_empty.set()

    def work_out_one(self) -> bool:
        """Compute the oldest request of the queue; false if the queue is empty."""
        if not self._queue:
            return False
        request = next(iter(self._queue))
        del self._queue[request]
        self._ledger.precompute(request)
        self._on_computed()
        return True

    async def run(self) -> None:
        """Compute one request after the other, until cancelled. Other tasks that are ready run in between."""
        while True:
            await self._not_empty.wait()
            await asyncio.sleep(0)
            if not self.work_out_one():
                self._not_empty.clear()
