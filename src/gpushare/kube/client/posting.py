"""Small POSTs over aiohttp's connection pool, without its request and response objects.

A Binding is written for every placed pod, and these objects were most of its cost. Connections, their limit, TLS and connection errors are
still aiohttp's; one ``ClientRequest`` is reused to get connections.
"""

import asyncio
import ssl
from collections.abc import Iterable
from typing import Final

from yarl import URL

from gpushare.kube.client.fast_aiohttp import aiohttp

#: Larger bodies would fill the transport's buffer; there is no flow control here.
_MAX_BYTES: Final = 32 * 1024
_FORBIDDEN: Final = frozenset("\r\n\0")


class Posts:
    """Writes to the server at ``base`` (``https://host:port``, possibly with a path) for ``session``.

    Only for servers without a proxy, and addresses without a user.
    """

    def __init__(self, session: aiohttp.ClientSession, base: str, server_hostname: str) -> None:
        self._session = session
        self._url = URL(base, encoded=True)
        self._prefix = self._url.raw_path.rstrip("/")
        self._server_hostname = server_hostname or None
        self._template: aiohttp.ClientRequest | None = None
        self._tls: ssl.SSLContext | bool | None = None

    def head(self, headers: Iterable[tuple[str, str]]) -> bytes | None:
        """The constant part of every request with ``headers``; ``None`` if they cannot be sent this way."""
        pairs = [("Host", self._url.host_port_subcomponent or ""), *headers]
        if any(_FORBIDDEN & set(name + value) for name, value in pairs):
            return None
        lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
        return f" HTTP/1.1\r\n{lines}Content-Length: ".encode()

    def takes(self, target: str, body: bytes) -> bool:
        """Whether ``post`` can send this request."""
        return len(body) <= _MAX_BYTES and target.isascii() and target.isprintable() and " " not in target

    async def post(
        self,
        target: str,
        head: bytes,
        body: bytes,
        timeout: aiohttp.ClientTimeout,
        *,
        tls: ssl.SSLContext | bool,
    ) -> tuple[int, str | None, bytes]:
        """Status, ``Retry-After`` and body of the response. Raises aiohttp's errors; does not retry."""
        template = self._template
        if template is None or self._tls is not tls:
            self._tls = tls
            template = self._template = aiohttp.ClientRequest(
                "POST", self._url, ssl=tls, server_hostname=self._server_hostname, session=self._session
            )
        connector = self._session.connector
        if connector is None or connector.closed:
            raise RuntimeError("Session is closed")
        request = b"POST %s%s%d\r\n\r\n%s" % ((self._prefix + target).encode(), head, len(body), body)
        connection = None
        try:
            async with asyncio.timeout(timeout.total):
                connection = await connector.connect(template, [], timeout)
                try:
                    answer = await _exchange(connection, request, template)
                except BaseException:
                    connection.close()
                    raise
                connection.release()
                return answer
        except TimeoutError as error:
            if connection is None:
                raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {self._url}") from error
            raise


async def _exchange(
    connection: aiohttp.connector.Connection, request: bytes, template: aiohttp.ClientRequest
) -> tuple[int, str | None, bytes]:
    protocol, transport = connection.protocol, connection.transport
    if protocol is None or transport is None or transport.is_closing():
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")
    protocol.set_response_params(read_until_eof=True)
    transport.write(request)
    try:
        message, payload = await protocol.read()
        while 100 <= message.code <= 199 and message.code != 101:
            message, payload = await protocol.read()
    except aiohttp.http_exceptions.HttpProcessingError as error:
        raise aiohttp.ClientResponseError(
            template.request_info, (), status=error.code, message=error.message, headers=error.headers
        ) from error
    return message.code, message.headers.get("Retry-After"), await payload.read()
