"""Invalid first bytes of connections. Empty: random ones."""

from typing import Final


def _record(kind: int, body: bytes, length: int | None = None) -> bytes:
    """A record of TLS 1.2, possibly with a wrong length."""
    return bytes((kind, 3, 1)) + (len(body) if length is None else length).to_bytes(2, "big") + body


_HELLO_BODY: Final = (
    b"\x03\x03" + bytes(range(32)) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00" + b"\x00\x00"
)
_HELLO: Final = b"\x01" + len(_HELLO_BODY).to_bytes(3, "big") + _HELLO_BODY

TLS: Final = (
    b"",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    _record(22, _HELLO),  # without the extensions that TLS 1.3 requires
    _record(22, _HELLO)[:20],
    _record(22, _HELLO, length=0x4000),
    _record(22, b"\x01\xff\xff\xff" + b"a" * 16000),
    _record(22, _HELLO) + _record(20, b"\x01") + _record(23, b"a" * 300),
    _record(23, b"a" * 1000),
    _record(21, b"\x02\x28"),
    _record(22, b"") * 200,
    b"\x80\x2e\x01\x00\x02" + b"a" * 44,  # SSL 2
)

PLAIN: Final = (
    b"",
    _record(22, _HELLO),
    b"GET",
    b"GET /\r\n\r\n",
    b"GET /healthz HTTP/9.9\r\n\r\n",
    b"\r\n" * 2000,
    b"\0" * 8000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /\xff\xfe\r\nHost HTTP/1.1\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 500,
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\nGET /metrics HTTP/1.1\r\n",
)
