"""The webhook in the test's own event loop: real sockets, real TLS, and an API server."""

import asyncio
import io
import os
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp

from gpushare.admission.certs.controller import Pace
from gpushare.admission.certs.rotation import Policy
from gpushare.admission.main import Settings, serve
from gpushare.admission.review.annotation_guard import Writers
from gpushare.kube.auth.access import Access
from gpushare.kube.clock import SystemClock
from tests.integration.admission.kept_api import KeptApi, kept_api
from tests.patience import Deadline

DEADLINE_S = 60.0
AGENT = "system:serviceaccount:n:gpushare-device-plugin"
SCHEDULER = "system:serviceaccount:n:ack-co-scheduler"
SETTINGS = Settings(
    namespace="n",
    policy=Policy(
        frozenset({"gpushare-admission.n.svc", "127.0.0.1"}), timedelta(days=90), timedelta(days=30)
    ),
    writers=Writers(frozenset({AGENT, SCHEDULER}), AGENT, SCHEDULER),
    listen=("127.0.0.1", 0),
    metrics_listen=("127.0.0.1", 0),
    pace=Pace(period_s=0.05, overlap_s=0.3),
    drain_s=0.0,
)


async def pause() -> None:
    """Yield to the event loop between two polls."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.02):
            await asyncio.Event().wait()


async def reached(what: str, look: Callable[[], Awaitable[bool]]) -> None:
    """Poll until the condition holds."""
    deadline = Deadline(DEADLINE_S)
    while not await look():
        assert not deadline.passed(), f"not within {deadline}: {what}"
        await pause()


class JumpingClock(SystemClock):
    """The machine's clock, set to another time."""

    ahead: timedelta = timedelta()

    def time_ns(self) -> int:
        return super().time_ns() + int(self.ahead.total_seconds()) * 10**9


@dataclass
class Running:
    """A served webhook, its API server, and a client that acts as an API server does."""

    api: KeptApi
    clock: JumpingClock
    reviews: int
    probes: int
    http: aiohttp.ClientSession
    serving: asyncio.Task[None]

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.api.ca())

    async def post(self, path: str, body: bytes | io.BytesIO, **more: Any) -> tuple[int, bytes]:
        async with self.http.post(
            f"https://127.0.0.1:{self.reviews}{path}",
            data=body,
            ssl=more.pop("tls", None) or self.trusting(),
            **more,
        ) as answer:
            return answer.status, await answer.read()

    async def probe(self, path: str) -> tuple[int, str]:
        async with self.http.get(f"http://127.0.0.1:{self.probes}{path}") as answer:
            return answer.status, await answer.text()

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        async def look() -> bool:
            assert not self.serving.done(), self.serving
            return condition()

        await reached(what, look)

    async def ready(self) -> None:
        async def look() -> bool:
            assert not self.serving.done(), self.serving
            return (await self.probe("/readyz"))[0] == 200

        await reached("it is ready", look)

    async def says(self, what: str) -> None:
        """Wait until the readiness probe gives this reason."""

        async def look() -> bool:
            return what in (await self.probe("/readyz"))[1]

        await reached(f"it says {what}", look)

    async def shows_another_than(self, certificate: bytes) -> None:
        async def look() -> bool:
            return await self.certificate() != certificate

        await reached("it shows another certificate", look)

    async def certificate(self) -> bytes:
        """The certificate that a new connection receives, in DER."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", self.reviews, ssl=context)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return bytes(shown)


@asynccontextmanager
async def running_webhook(folder: Path, api: KeptApi | None = None, **changes: Any) -> AsyncIterator[Running]:
    """Serve until the end of the block, then stop by SIGTERM."""
    if api is None:
        async with kept_api() as made, running_webhook(folder, made, **changes) as running:
            yield running
        return
    ports, clock = folder / "ports", JumpingClock()
    settings = replace(SETTINGS, port_file=ports, **changes)
    serving = asyncio.create_task(serve(Access(api.url), settings, clock))
    async with asyncio.timeout(DEADLINE_S):
        while not ports.exists():
            assert not serving.done(), await serving
            await pause()
    reviews, probes = (int(port) for port in ports.read_text().split())
    async with aiohttp.ClientSession() as http:
        running = Running(api, clock, reviews, probes, http, serving)
        while True:  # until the probes are served too
            try:
                await running.probe("/healthz")
                break
            except aiohttp.ClientConnectorError:
                await pause()
        yield running
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, DEADLINE_S)
