"""aiohttp, imported without the certificates that it reads for itself.

At import aiohttp makes two TLS contexts and reads all of the system's certificates into each, for requests that
bring none: a sixth of the time in which an extender is to be ready. Ours bring their own context; a request
that did not would find one that trusts nobody.
"""

import os

_NAMES = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # where OpenSSL looks for the system's certificates
_usual = {name: os.environ[name] for name in _NAMES if name in os.environ}
os.environ.update(dict.fromkeys(_NAMES, os.devnull))
try:
    import aiohttp
finally:
    for _name in _NAMES:
        del os.environ[_name]
    os.environ.update(_usual)

__all__ = ["aiohttp"]
