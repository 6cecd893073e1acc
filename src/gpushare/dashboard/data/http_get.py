"""GET requests to parts of ours: bounded in time, in size and in number."""

import os
from typing import Final, Protocol

from gpushare.api import names
from gpushare.kube.client.fast_aiohttp import aiohttp

_MOST_BYTES: Final = 8 * 1024 * 1024
#: More than agents are asked at once in turn (``agents.AT_ONCE``): who looks at a node, and who waits, come through.
_CONNECTIONS: Final = 32
_TIMEOUT_S: Final = 3.0
#: Agents are asked again after a minute: their connections are not worth keeping, and a hundred more come each second.
_KEPT_S: Final = 1.5


class CannotAsk(Exception):
    """No answer; ``str()`` says why, for people."""


class NotKept(CannotAsk):
    """It was asked, and knows nothing of that (404)."""


class Asks(Protocol):
    """What asks: ``Asking``, or what stands for it in tests."""

    async def get(self, url: str, token: str = "") -> bytes:
        """The body of a good answer; raises ``CannotAsk``. ``token`` says who reads, where that is asked."""


class Asking:
    """``async with Asking() as asking``."""

    async def __aenter__(self) -> "Asking":
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS, keepalive_timeout=_KEPT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def get(self, url: str, token: str = "") -> bytes:
        """As ``Asks`` says."""
        headers = {names.READER_HEADER: token} if token else {}
        try:
            async with self._http.get(url, allow_redirects=False, headers=headers) as response:
                body = bytearray()
                async for part in response.content.iter_chunked(65536):
                    body += part
                    if len(body) > _MOST_BYTES:
                        raise CannotAsk(f"{url}: the answer is larger than {_MOST_BYTES} bytes")
                if response.status == 404:
                    raise NotKept(f"{url}: not there")
                if response.status != 200:
                    said = bytes(body[:200]).decode(errors="replace").strip()
                    raise CannotAsk(f"{url}: status {response.status} {said}".rstrip())
                return bytes(body)
        except TimeoutError:
            raise CannotAsk(f"{url}: no answer within {_TIMEOUT_S:.0f} s") from None
        except aiohttp.ClientConnectorError as error:
            why = os.strerror(error.errno) if error.errno else "it cannot be reached"
            raise CannotAsk(f"{url}: {why}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise CannotAsk(f"{url}: {str(error) or type(error).__name__}") from error
