"""A process that consists of parts that all run until cancelled: caches, recorders, loops."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence

from gpushare.process.signals import stop_event
from gpushare_playground.cache import Cache


async def run_together(parts: Iterable[Coroutine[None, None, None]]) -> None:
    """Run ``parts`` concurrently until one ends or raises; the others are cancelled and awaited."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            if not task.done():
                task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result


def announce_when_synced(caches: Sequence[Cache]) -> None:
    """Print ``ready`` on stdout once all ``caches`` are complete; the supervisor waits for it."""
    missing = len(caches)

    def one_more() -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            print("ready", flush=True)

    for cache in caches:
        cache.when_synced(one_more)


async def until_stopped() -> None:
    """Wait for SIGTERM or SIGINT."""
    await stop_event().wait()
