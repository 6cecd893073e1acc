"""GET requests to gpushare's components, limited in time, size and number."""

import os
from typing import Final, Protocol

from gpushare.api import names
from gpushare.kube.client.fast_aiohttp import aiohttp

_MAX_BYTES: Final = 8 * 1024 * 1024
#: More than the sweep of agents uses (``agent_client.MAX_PARALLEL``), so that requests for a single node or for pending pods are not blocked.
_CONNECTIONS: Final = 32
_TIMEOUT_S: Final = 3.0
#: Idle connections are closed early: each agent is read only once per round, and the sweep opens a hundred connections per second.
_KEEP_ALIVE_S: Final = 1.5


class RequestFailed(Exception):
    """A request failed; ``str()`` is the reason."""


class NotFound(RequestFailed):
    """The answer was 404."""


class HttpGetter(Protocol):
    """Interface of ``HttpClient``, which tests replace."""

    async def get(self, url: str, token: str = "") -> bytes:
        """The body of a successful answer; raises ``RequestFailed``. ``token``: for pages that need authorization."""


class HttpClient:
    """A client for GET requests, as an async context."""

    async def __aenter__(self) -> "HttpClient":
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS, keepalive_timeout=_KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def get(self, url: str, token: str = "") -> bytes:
        """See ``HttpGetter``."""
        headers = {names.READER_HEADER: token} if token else {}
        try:
            async with self._http.get(url, allow_redirects=False, headers=headers) as response:
                body = bytearray()
                async for part in response.content.iter_chunked(65536):
                    body += part
                    if len(body) > _MAX_BYTES:
                        raise RequestFailed(f"{url}: the answer is larger than {_MAX_BYTES} bytes")
                if response.status == 404:
                    raise NotFound(f"{url}: not there")
                if response.status != 200:
                    message = bytes(body[:200]).decode(errors="replace").strip()
                    raise RequestFailed(f"{url}: status {response.status} {message}".rstrip())
                return bytes(body)
        except TimeoutError:
            raise RequestFailed(f"{url}: no answer within {_TIMEOUT_S:.0f} s") from None
        except aiohttp.ClientConnectorError as error:
            reason = os.strerror(error.errno) if error.errno else "it cannot be reached"
            raise RequestFailed(f"{url}: {reason}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise RequestFailed(f"{url}: {str(error) or type(error).__name__}") from error
