"""aiohttp, imported without the TLS context that it makes for itself.

At import aiohttp reads all of the system's certificates (tens of milliseconds, a sixth of the time in which an
extender is to be ready) into a context for requests that bring none. Ours bring their own; one that did not
would find a context that trusts nobody.
"""

import ssl

_usual = ssl.create_default_context
ssl.create_default_context = lambda *_, **__: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
try:
    import aiohttp
finally:
    ssl.create_default_context = _usual

__all__ = ["aiohttp"]
