"""How a process of ours is told to end."""

import asyncio
import signal


def told_to_end() -> asyncio.Event:
    """Set by SIGTERM and SIGINT, which end nothing by themselves then; of the running event loop."""
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    return told
