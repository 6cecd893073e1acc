"""The API server as one object: ``async with ApiServer(directory) as server: …``."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from aiohttp import web

from gpushare_playground.apiserver.http.handler import Handler
from gpushare_playground.apiserver.http.kubelet_proxy import KubeletProxy
from gpushare_playground.apiserver.kinds.custom_resources import CustomResources
from gpushare_playground.apiserver.kinds.naming import WallClock, utc_now
from gpushare_playground.apiserver.kinds.resources import Registry
from gpushare_playground.apiserver.pki import CONTEXT, make_credentials, new_token
from gpushare_playground.apiserver.reads.lists import Reader
from gpushare_playground.apiserver.reads.watches import BOOKMARK_S, Watcher
from gpushare_playground.apiserver.store import HISTORY, Store
from gpushare_playground.apiserver.writes.admission import Admission
from gpushare_playground.apiserver.writes.deleting import Deleter
from gpushare_playground.apiserver.writes.garbage import GarbageCollector
from gpushare_playground.apiserver.writes.priorities import STORAGE as PRIORITY_CLASSES
from gpushare_playground.apiserver.writes.priorities import SYSTEM_CLASSES
from gpushare_playground.apiserver.writes.writing import WriteOptions, Writer
from gpushare_playground.certificate_authority import kubeconfig_text, write_private

ADMIN: Final = "playground-admin"
NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")
_SHUTDOWN_S: Final = 2.0
_BACKLOG: Final = 1024
_KEEP_ALIVE_S: Final = 300.0
# exec passes its command in the URL.
_LINE_MAX: Final = 128 * 1024


class ApiServer:
    """An API server on its own TLS port, with its objects in memory.

    Writes ``kubeconfig`` (administrator) and ``NAME.kubeconfig`` for each of ``users`` to ``directory``, all with
    mode 0600. ``port`` 0 picks a free one. ``kubelet_token`` is what the kubelets of the nodes expect.
    ``history`` limits the changes per collection that a watch can still request.
    Usable once ``start`` has returned; everything has stopped once ``stop`` has returned.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        kubelet_token: str = "",
        users: Iterable[str] = (),
        admission: Admission | None = None,
        history: int = HISTORY,
        bookmark_s: float = BOOKMARK_S,
        now: WallClock = utc_now,
    ) -> None:
        self._directory = Path(directory)
        self._host = host
        self._port = port
        self.tokens = {name: new_token() for name in (ADMIN, *users)}
        """Bearer token of each user."""
        self.registry = Registry()
        self.store = Store(clock=time.monotonic, history=history)
        self.writer = Writer(self.store, self.registry, admission or Admission(), now)
        self._deleter = Deleter(self.store, now)
        reader = Reader(self.store, now)
        self._watcher = Watcher(self.store, reader, bookmark_s=bookmark_s)
        self._proxy = KubeletProxy(self.store, kubelet_token)
        self._customs = CustomResources(self.store, self.registry, now)
        self._garbage = GarbageCollector(self.store, self.registry, self._deleter, now)
        self._handler = Handler(
            store=self.store,
            registry=self.registry,
            writer=self.writer,
            deleter=self._deleter,
            reader=reader,
            watcher=self._watcher,
            proxy=self._proxy,
            customs=self._customs,
            tokens={token: name for name, token in self.tokens.items()},
            now=now,
        )
        self._runner: web.ServerRunner | None = None
        self.url = ""
        self.ca_pem = b""

    @property
    def kubeconfig_path(self) -> Path:
        """The administrator's kubeconfig."""
        return self._directory / "kubeconfig"

    def kubeconfig_of(self, user: str) -> Path:
        """The kubeconfig of a named user."""
        return self.kubeconfig_path if user == ADMIN else self._directory / f"{user}.kubeconfig"

    async def start(self) -> None:
        """Serve. Raises ``OSError`` if the port is in use or the directory cannot be written."""
        credentials = make_credentials(self._host)
        self.ca_pem = credentials.ca_pem
        self._seed()
        server = web.Server(
            self._handler,
            handler_cancellation=True,
            keepalive_timeout=_KEEP_ALIVE_S,
            max_line_size=_LINE_MAX,
            max_field_size=_LINE_MAX,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=_SHUTDOWN_S)
        await self._runner.setup()
        listener = socket.create_server((self._host, self._port), backlog=_BACKLOG)
        self.url = f"https://{self._host}:{listener.getsockname()[1]}"
        site = web.SockSite(
            self._runner, listener, ssl_context=credentials.server_context(), backlog=_BACKLOG
        )
        await site.start()
        await self._proxy.start()
        self._garbage.start()
        for user, token in self.tokens.items():
            text = kubeconfig_text(self.url, credentials.ca_pem, user, {"token": token}, CONTEXT)
            write_private(self.kubeconfig_of(user), text)

    def _seed(self) -> None:
        """Create what every new cluster has."""
        options = WriteOptions(user="system:apiserver")
        namespaces = self.registry.find("", "v1", "namespaces")
        classes = self.registry.find("scheduling.k8s.io", "v1", "priorityclasses")
        assert namespaces is not None
        assert classes is not None
        for name in NAMESPACES:
            if self.store.get("namespaces", "", name) is None:
                self.writer.create(namespaces, "", {"metadata": {"name": name}}, options)
        for name, value in SYSTEM_CLASSES.items():
            if self.store.get(PRIORITY_CLASSES, "", name) is None:
                manifest = {"metadata": {"name": name}, "value": value}
                self.writer.create(classes, "", manifest, options)

    def cut_watches(self) -> None:
        """End all open watches, as a restart of the server would; clients reconnect."""
        self._watcher.close()

    async def stop(self) -> None:
        """End all streams and stop serving."""
        self._watcher.close()
        await self._garbage.stop()
        await self._proxy.stop()
        if self._runner is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SHUTDOWN_S * 3):
                    await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
