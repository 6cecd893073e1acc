"""Termination by signal."""

import asyncio
import signal


def stop_event() -> asyncio.Event:
    """An event set by SIGTERM and SIGINT, which no longer end the process themselves; for the running event loop."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
