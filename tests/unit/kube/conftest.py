"""Settles the event loop question before the first test."""

import asyncio

# The looptime plugin asks for the current loop before every test; where none was ever set, asyncio makes one for
# it, which nobody closes, and its warning fails whatever test is under way when it is collected.
asyncio.set_event_loop(None)
