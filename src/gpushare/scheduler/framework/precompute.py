"""What the ledger needs to answer about pods that wait, worked out before kube-scheduler asks.

The first question about a new size of request looks at every GPU; those that follow look at what changed since. The watch tells of a
pod as early as kube-scheduler hears of it, which then has its queue and its own filters to go through. That time is used.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from gpushare.api.request.request import Request
from gpushare.ledger import Ledger

#: Requests that wait to be worked out; those that come while there are as many are worked out when they are asked about.
_MOST_WAITING: Final = 256


class Precomputer:
    """Requests of new pods, each worked out once nothing else is to be done. ``told`` is called after each."""

    def __init__(self, ledger: Ledger, told: Callable[[], None] = lambda: None) -> None:
        self._ledger = ledger
        self._told = told
        self._waiting: dict[Request, None] = {}
        self._some = asyncio.Event()

    def arrived(self, request: Request) -> None:
        """A pod that asks for this will be asked about."""
        if len(self._waiting) < _MOST_WAITING:
            self._waiting[request] = None
            self._some.set()

    def work_out_one(self) -> bool:
        """Work out the one that waits longest; false where none does."""
        if not self._waiting:
            return False
        request = next(iter(self._waiting))
        del self._waiting[request]
        self._ledger.foresee(request)
        self._told()
        return True

    async def run(self) -> None:
        """Work out one after the other, and let all else that is ready go first each time."""
        while True:
            await self._some.wait()
            await asyncio.sleep(0)
            if not self.work_out_one():
                self._some.clear()
