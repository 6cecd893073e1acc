"""aiohttp, imported without the certificates that it loads, and without unused parts.

At import aiohttp makes two TLS contexts and reads all of the system's certificates into each, for requests that
bring none: a sixth of the time in which an extender is to be ready. Ours bring their own context; a request
that did not would find one that trusts nobody.
"""

import os
from typing import Final

from gpushare.process.lazy_import import putting_off

_NAMES = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # where OpenSSL looks for the system's certificates
#: Cookies, tracing, digests, values that attrs can check, content types, the environment's proxies, names in other letters than
#: ours: module → what others take from it.
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
_usual = {name: os.environ[name] for name in _NAMES if name in os.environ}
os.environ.update(dict.fromkeys(_NAMES, os.devnull))
try:
    with putting_off(_UNUSED, patterns=True):
        import aiohttp
finally:
    for _name in _NAMES:
        del os.environ[_name]
    os.environ.update(_usual)

__all__ = ["aiohttp"]
