"""The dashboard over a made-up cluster, a real Chromium that opens it, and changes that tests make to both."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
from aiohttp import web
from playwright.async_api import Browser, Page, async_playwright, expect

from benchmarks.api_server import Cluster, Connection, described_node, node_name, node_object
from gpushare.api import names
from gpushare.api.allocation.allocation import allocate_on
from gpushare.api.allocation.annotations import Stamp, allocation_annotations
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request
from gpushare.dashboard.main import Settings, serve
from gpushare.kube.auth.access import Access

DEADLINE_S: Final = 60.0
TOKEN: Final = "0123456789abcdef0123456789abcdef"
PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
#: Longer than a page may wait until it looks for a lost server again.
expect.set_options(timeout=60_000)


def chromium() -> str:
    """The system's Chromium; tests fail where there is none."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert found, "no Chromium on PATH; install it with: scripts/install-browser"
    return found


@contextlib.asynccontextmanager
async def browser(*, hide_scrollbars: bool = True) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(
            executable_path=chromium(),
            # No sandbox in containers and as root; nothing but our own page is opened.
            args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"],
            ignore_default_args=[] if hide_scrollbars else ["--hide-scrollbars"],
        )
        yield started
        await started.close()


class Relay:
    """A relay between the page and the server: it can be cut, and shut."""

    def __init__(self) -> None:
        self.target = 0
        self.shut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def stop(self) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            if self.shut:
                return
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers.add(up_writer)
            await asyncio.gather(_pipe(reader, up_writer), _pipe(up_reader, writer))
        except OSError:
            pass
        finally:
            writer.close()
            self._writers.discard(writer)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


class Bed:
    """A served dashboard: nodes ``node_name(0)`` and so on with eight GPUs of 80 GiB, pods with
    allocations, and pending pods.
    """

    def __init__(self, folder: Path, nodes: int, placed: int, waiting: int) -> None:
        self.cluster = Cluster(nodes, placed, waiting, 3, 81920, MemoryUnit.GIB)
        self.relay = Relay()
        self.line: list[dict[str, Any]] | None = []
        self.kept: list[dict[str, Any]] = []
        """The reservations that the scheduler reports, and for which pods."""
        self.figures = ""
        self.agents: Mapping[str, Callable[[], str]] = {node_name(0): lambda: self.figures}
        """The metrics of each node's agent, by node name."""
        self._folder = folder

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._api = await loop.create_server(lambda: Connection(self.cluster), "127.0.0.1", 0)
        self._parts = web.AppRunner(self._parts_app(), access_log=None)
        await self._parts.setup()
        site = web.TCPSite(self._parts, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        parts = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        (self._folder / "token").write_text(TOKEN)
        (self._folder / "agents").write_text(
            "".join(f"{node} 127.0.0.1:{parts}/agents/{node}\n" for node in self.agents)
        )
        self._settings = Settings(
            self._folder / "token",
            port=0,
            port_file=self._folder / "port",
            scheduler=f"http://127.0.0.1:{parts}",
            agents_file=self._folder / "agents",
        )
        self.url = f"http://127.0.0.1:{await self.relay.start()}/"
        await self.serve()

    async def serve(self) -> None:
        """Start the dashboard behind the relay."""
        port_file = self._folder / "port"
        port_file.unlink(missing_ok=True)
        access = Access(f"http://127.0.0.1:{self._api.sockets[0].getsockname()[1]}")
        self._serving = asyncio.create_task(serve(access, self._settings))
        async with asyncio.timeout(DEADLINE_S):
            while not port_file.exists():
                assert not self._serving.done(), await self._serving
                await asyncio.sleep(0)
            self.relay.target = int(port_file.read_text())
            while not (await self._is_ready() and self.cluster.watchers and self.cluster.node_watchers):
                await asyncio.sleep(0)

    async def end(self) -> None:
        """Stop the dashboard, as a kubelet would."""
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(self._serving, DEADLINE_S)

    async def stop(self) -> None:
        await self.end()
        await self.relay.stop()
        await self._parts.cleanup()
        self._api.close()

    async def _is_ready(self) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.relay.target)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return b" 200 " in answer[:20]

    def _parts_app(self) -> web.Application:
        """The extender's decisions and the agents' metrics."""

        async def decisions(request: web.Request) -> web.Response:
            if self.line is None:
                raise web.HTTPNotFound
            document = {"scheduler": {"name": "extender"}, "waiting": self.line, "kept": self.kept}
            return web.json_response(document)

        async def decision(request: web.Request) -> web.Response:
            pod = "{namespace}/{name}".format_map(request.match_info)
            waits = next((one for one in self.line or [] if one["key"] == pod), None)
            nodes = [{"node": node_name(0), "reason": "no GPU has 3 units free"}]
            return web.json_response(
                {"scheduler": {"name": "extender"}, "said": "", "waiting": waits, "nodes": nodes}
            )

        async def metrics(request: web.Request) -> web.Response:
            return web.Response(text=self.agents[request.match_info["node"]]())

        app = web.Application()
        app.router.add_get("/gpushare/decisions", decisions)
        app.router.add_get("/gpushare/decisions/{namespace}/{name}", decision)
        app.router.add_get("/gpushare/decisions/{namespace}/{name}/nodes", decision)
        app.router.add_get("/agents/{node}/metrics", metrics)
        return app

    # --- changes --------------------------------------------------------------------------------

    def bind(self, pod: str, node: int, units: int = 3) -> None:
        """Bind a pending pod to GPU 0 of a node, as the extender does."""
        described = described_node(node, 81920, MemoryUnit.GIB)
        request = Request(units, 0, (ContainerRequest("main", ContainerKind.APP, 0, units, 0),))
        annotations = allocation_annotations(
            allocate_on(described, described.devices[0], request), request, Stamp(1, assigned=True)
        )
        body = {"metadata": {"annotations": annotations}, "target": {"name": described.name}}
        self.cluster.bind(pod, json.dumps(body).encode())

    def break_gpu(self, node: int, reason: str, cordoned: str = "") -> None:
        """Make GPU 0 of a node unhealthy; ``cordoned`` are the indices of GPUs cordoned by users."""
        described = described_node(node, 81920, MemoryUnit.GIB)
        broken = msgspec.structs.replace(described.devices[0], healthy=False, reason=reason)
        changed = msgspec.structs.replace(described, devices=(broken, *described.devices[1:]))
        body: Any = node_object(changed, self._version())
        if cordoned:
            body["metadata"]["annotations"][names.ANN_CORDONED] = cordoned
        self.show_node("MODIFIED", body)

    def remove_node(self, node: int) -> None:
        """Delete a node."""
        gone = json.loads(self.cluster.nodes[node])
        gone["metadata"]["resourceVersion"] = str(self._version())
        self.show_node("DELETED", gone)

    def show_node(self, kind: str, node: dict[str, object]) -> None:
        """Send an event to those who watch nodes."""
        for watcher in self.cluster.node_watchers:
            watcher.show(json.dumps({"type": kind, "object": node}).encode() + b"\n")

    def _version(self) -> int:
        self.cluster.version += 1
        return self.cluster.version


@contextlib.asynccontextmanager
async def bed(folder: Path, nodes: int = 20, placed: int = 60, waiting: int = 5) -> AsyncIterator[Bed]:
    made = Bed(folder, nodes, placed, waiting)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


class Look:
    """A page of the dashboard. ``bad`` collects what must not occur: errors, and requests to other hosts."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.bad: list[str] = []
        self.requests: list[str] = []
        self._listeners: dict[Any, Callable[[Any], None]] = {
            "pageerror": lambda error: self.bad.append(str(error)),
            "console": lambda message: self._on_line(message.text),
            "request": lambda request: self._on_request(request.url, url),
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)

    async def leave(self) -> None:
        """Reset the page: empty its storage, and move the mouse to where it started."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        # Per origin, and the next server may have this one's port.
        await self.page.evaluate("localStorage.clear()")
        await self.page.unroute_all()
        await self.page.goto("about:blank")
        await self.page.mouse.move(0, 0)
        await self.page.context.clear_cookies()

    def _on_line(self, text: str) -> None:
        if "Content Security Policy" in text or "Uncaught" in text:
            self.bad.append(text)

    def _on_request(self, request_url: str, url: str) -> None:
        self.requests.append(request_url.removeprefix(url))
        if not request_url.startswith(url):
            self.bad.append(f"it requests {request_url}")

    def snapshots(self) -> int:
        """How often the page has loaded the whole snapshot."""
        return self.requests.count("api/snapshot")

    async def tile(self, name: str, text: str) -> None:
        """Wait until a tile of the overview shows that text."""
        tile = self.page.locator(".tile").filter(has=self.page.get_by_text(name, exact=True))
        await expect(tile).to_contain_text(text)

    async def state(self, text: str) -> None:
        """Wait until the bar shows that state of the connection."""
        await expect(self.page.locator("#link")).to_contain_text(text)


_IDLE_PAGES: Final[WeakKeyDictionary[Browser, list[Page]]] = WeakKeyDictionary()
"""By browser: pages that were left. A page with its processes costs more than most of what tests do with it."""


@contextlib.asynccontextmanager
async def looking(
    window: Browser, made: Bed, at: str = "", *, log_in: bool = True, **options: Any
) -> AsyncIterator[Look]:
    """A page without state of earlier tests, logged in; fails at the end if it had errors.

    With ``options`` it gets a context of its own, and a page on which a test failed is not used
    again.
    """
    idle_pages = _IDLE_PAGES.setdefault(window, [])
    page = idle_pages.pop() if idle_pages and not options else await _new_page(window, options)
    look, usable = Look(page, made.url), False
    try:
        await page.goto(f"{made.url}#token={TOKEN}" if log_in else made.url)
        if log_in:
            await look.state("Live")
            if at:
                await page.evaluate("hash => (location.hash = hash)", at)
        yield look
        assert look.bad == []
        usable = not options
    finally:
        if usable:
            await look.leave()
            idle_pages.append(page)
        else:
            await page.context.close()


async def _new_page(window: Browser, options: dict[str, Any]) -> Page:
    context = await window.new_context(**{"viewport": {"width": 1280, "height": 800}} | options)
    return await context.new_page()
