"""A uvicorn server in our own event loop, on sockets of our own, with bounds on what peers may do."""

import asyncio
import functools
import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

from gpushare.httpserver.connections import Crowd
from gpushare.httpserver.lazy_uvicorn import Config
from gpushare.httpserver.lazy_uvicorn import Server as _Server
from gpushare.httpserver.limits import BoundedProtocol
from gpushare.httpserver.listeners import Door
from gpushare.httpserver.tls_handshakes import Handshakes

#: kube-scheduler and API servers keep idle connections for 90 s; closing them earlier than they do would lose requests.
_KEEP_ALIVE_S: Final = 120
_BACKLOG: Final = 512
#: Maximum concurrent connections.
_MOST_AT_ONCE: Final = 512


class Server(_Server):
    """uvicorn without its signal handlers, which would raise signals again before we have stopped.

    With ``tls`` we accept connections ourselves: uvicorn reads certificates only from files, once, and does not limit handshakes.
    """

    def __init__(self, config: Config, crowd: Crowd, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._crowd = crowd
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        if self._tls is None:
            await super().startup(sockets)
            return
        await super().startup([])
        for one in sockets or ():
            one.listen(_BACKLOG)
            self.servers.append(Handshakes(one, self._connection, self._tls, self._crowd))  # type: ignore[arg-type]

    def _connection(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not capture signals."""
        yield


def server_of(
    app: Any,
    *,
    stop_s: int,
    protocol: type[BoundedProtocol] = BoundedProtocol,
    tls: ssl.SSLContext | None = None,
) -> Server:
    """A server for ``app``; ``serve(sockets=[…])`` runs it until its ``should_exit`` is set.

    Requests in progress get ``stop_s`` more seconds then.
    """
    crowd = Crowd(_MOST_AT_ONCE)
    config = Config(
        app,
        http=functools.partial(protocol, crowd=crowd),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=stop_s,
        backlog=_BACKLOG,
    )
    return Server(config, crowd, tls)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that is not listening yet; raises ``OSError`` with the address."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None
    made.setblocking(False)
    return made


def open_doors(
    doors: Iterable[Door], opened: ExitStack, backlog: int = _BACKLOG
) -> dict[socket.socket, list[str]]:
    """Listen on each address; returns the endpoints of each socket, which ``opened`` closes. Raises ``OSError`` with the address."""
    pages = {}
    for door in doors:
        listening = opened.enter_context(closing(bind(*door.address)))
        listening.listen(backlog)
        pages[listening] = sorted(door.pages)
    return pages


def write_ports(option: str, path: Path, *bound: socket.socket) -> None:
    """Write the sockets' ports atomically: others read the file as soon as it exists.

    Raises ``OSError`` with the ``option`` that named it.
    """
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_text(" ".join(str(one.getsockname()[1]) for one in bound) + "\n")
        fresh.replace(path)
    except OSError as error:
        raise OSError(error.errno, f"cannot write {option} {path}: {error.strerror}") from None
