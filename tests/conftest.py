"""What holds for every test."""

import asyncio

# looptime asks for an event loop even in tests that have none, and asyncio would make one that nobody
# closes; once a loop (or none) was set by hand, it makes no more.
asyncio.set_event_loop(None)
