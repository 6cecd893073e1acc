"""Imports aiohttp without loading certificates and without unused parts.

When imported, aiohttp creates two default TLS contexts and loads all of the system's certificates into each: a sixth of the extender's
budget for its start. Our requests have their own context; a request without one would trust no server.
"""

import os
from typing import Final

from gpushare.process.lazy_import import deferring

_NAMES = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # where OpenSSL looks for the system's certificates
#: Modules for cookies, tracing, digest authentication, validators of attrs, content types, proxies of the environment and
#: international domain names → names that other modules import from them.
_UNUSED: Final = {
    "aiohttp._cookie_helpers": (
        "_COOKIE_CTL_RE",
        "_encoded_length",
        "parse_cookie_header",
        "parse_set_cookie_headers",
        "preserve_morsel_with_coded_value",
    ),
    "aiohttp.client_middleware_digest_auth": ("DigestAuthMiddleware",),
    "aiohttp.tracing": (
        "Trace",
        "TraceConfig",
        "TraceConnectionCreateEndParams",
        "TraceConnectionCreateStartParams",
        "TraceConnectionQueuedEndParams",
        "TraceConnectionQueuedStartParams",
        "TraceConnectionReuseconnParams",
        "TraceDnsCacheHitParams",
        "TraceDnsCacheMissParams",
        "TraceDnsResolveHostEndParams",
        "TraceDnsResolveHostStartParams",
        "TraceRequestChunkSentParams",
        "TraceRequestEndParams",
        "TraceRequestExceptionParams",
        "TraceRequestHeadersSentParams",
        "TraceRequestRedirectParams",
        "TraceRequestStartParams",
        "TraceResponseChunkReceivedParams",
    ),
    "attr.validators": (),
    "email.parser": ("HeaderParser",),
    "email.policy": ("HTTP",),
    "idna": (),
    "urllib.request": ("getproxies", "proxy_bypass"),
}
_original = {name: os.environ[name] for name in _NAMES if name in os.environ}
os.environ.update(dict.fromkeys(_NAMES, os.devnull))
try:
    with deferring(_UNUSED, patterns=True):
        import aiohttp
finally:
    for _name in _NAMES:
        del os.environ[_name]
    os.environ.update(_original)

__all__ = ["aiohttp"]
