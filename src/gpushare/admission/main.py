"""The admission webhook as a process: certificate controller, reviews over TLS, probes, in one event loop."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpushare.admission.accept.product import Product
from gpushare.admission.certs.controller import Keeper, Pace
from gpushare.admission.certs.rotation import Policy
from gpushare.admission.certs.store import ApiStore
from gpushare.admission.certs.tls import ServerTls
from gpushare.admission.claims.templates import Templates
from gpushare.admission.metrics import Metrics
from gpushare.admission.review.annotation_guard import Writers
from gpushare.admission.review.dispatcher import Reviewer
from gpushare.admission.review.http_app import ReviewApp
from gpushare.admission.review.matching_gpus import MatchingGpus
from gpushare.admission.review.node_restriction import TokenPlaces
from gpushare.api import names
from gpushare.api.request.unit_conversion import Counting
from gpushare.httpserver.listeners import PROBES, doors
from gpushare.httpserver.probes import Probes, at_door
from gpushare.httpserver.server import Server, bind, open_doors, server_of, write_ports
from gpushare.kube.auth.access import Access
from gpushare.kube.client.client import Client
from gpushare.kube.client.session import Session
from gpushare.kube.clock import SYSTEM_CLOCK, Clock
from gpushare.process.signals import stop_event

logger = logging.getLogger(__name__)

#: Grace period of running requests at shutdown, in seconds.
_STOP_S: Final = 5


@dataclass(frozen=True, slots=True)
class Settings:
    """The webhook's settings. Addresses are host and port (0: any free one)."""

    namespace: str
    policy: Policy
    writers: Writers
    listen: tuple[str, int] = ("0.0.0.0", 9443)  # noqa: S104  a pod serves the cluster
    metrics_listen: tuple[str, int] = ("0.0.0.0", 9452)  # noqa: S104
    probes_listen: tuple[str, int] | None = None  # at metrics_listen
    secret: str = "gpushare-admission"  # noqa: S105  its name
    configuration: str = "gpushare-admission"
    scheduler: str = names.SCHEDULER_NAME
    bind_agents: bool = True
    counting: Counting = field(default_factory=Counting)
    accepted: tuple[Product, ...] = ()
    to_claims: bool = False
    require_matching_gpu: bool = False
    pace: Pace = field(default_factory=Pace)
    drain_s: float = 5.0
    port_file: Path | None = None


async def serve(access: Access, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> None:
    """Run until SIGTERM or SIGINT. Raises ``OSError`` if an address is in use or a file cannot be written."""
    async with Session(access) as session:
        with ExitStack() as sockets:
            reviewed = sockets.enter_context(bind(*settings.listen))
            read_at = open_doors(doors(settings.metrics_listen, {PROBES: settings.probes_listen}), sockets)
            if settings.port_file is not None:
                write_ports("--port-file", settings.port_file, reviewed, *read_at)
            tls, metrics = ServerTls(), Metrics()
            store = ApiStore(session, settings.namespace, settings.secret, settings.configuration)
            keeper = Keeper(store, tls, settings.policy, settings.pace, clock)
            reviewer = Reviewer(
                settings.writers,
                TokenPlaces(Client(session)),
                settings.scheduler,
                settings.bind_agents,
                settings.counting,
                settings.accepted,
                Templates(session) if settings.to_claims else None,
                MatchingGpus(session, clock) if settings.require_matching_gpu else None,
            )
            reviews = server_of(ReviewApp(reviewer, metrics), stop_s=_STOP_S, tls=tls.context)
            stop = stop_event()

            def closed() -> str:
                """Why an API server that a Service routes here would get no response."""
                return keeper.missing() or ("" if reviews.started else "not listening yet")

            def missing() -> str:
                return "shutting down" if stop.is_set() else closed()

            _export(metrics, keeper, closed)
            probes = Probes(missing, metrics)
            readable = {
                server_of(at_door(probes, pages), stop_s=_STOP_S): at for at, pages in read_at.items()
            }
            logger.info("serving at %s:%d, API server %s", *settings.listen, access.server)
            await _until(
                _drained(stop, settings.drain_s),
                [reviews, *readable],
                {
                    "certificates": keeper.run(),
                    "reviews": _once_certified(tls, reviews, reviewed),
                    **{" and ".join(read_at[at]): one.serve(sockets=[at]) for one, at in readable.items()},
                },
            )


async def _once_certified(tls: ServerTls, server: Server, bound: Any) -> None:
    """Listen once there is a certificate; until then connections are refused, which callers handle best."""
    await tls.certified.wait()
    await server.serve(sockets=[bound])


async def _drained(stop: asyncio.Event, drain_s: float) -> None:
    """Wait for the stop signal, and then for as long as Services may still route API servers here."""
    await stop.wait()
    logger.info("ending in %.0f s", drain_s)
    await asyncio.sleep(drain_s)


async def _until(
    stop: Coroutine[Any, Any, None], servers: list[Server], parts: dict[str, Coroutine[Any, Any, None]]
) -> None:
    """Run all components until ``stop`` returns or one fails, and raise that failure."""
    running = [asyncio.create_task(part, name=name) for name, part in parts.items()]
    stopping = asyncio.create_task(stop, name="stop")
    try:
        done, _ = await asyncio.wait([stopping, *running], return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stopping}:
            await task
    finally:
        for server in servers:
            server.should_exit = True
        keeper, reviews, *_ = running
        keeper.cancel()
        if not servers[0].started:
            reviews.cancel()
        stopping.cancel()
        await asyncio.gather(stopping, *running, return_exceptions=True)


def _export(metrics: Metrics, keeper: Keeper, closed: Callable[[], str]) -> None:
    figures = keeper.figures
    metrics.watch(
        "gpushare_admission_certificate_expiry_timestamp_seconds",
        "When the serving certificate expires, in seconds since 1970; 0 while there is none.",
        lambda: figures.expires_s or 0.0,
    )
    metrics.watch_total(
        "gpushare_admission_certificates_issued",
        "Certificates that this process has issued.",
        lambda: figures.generations,
    )
    metrics.watch_total(
        "gpushare_admission_certificate_check_failures",
        "Checks of the certificates that failed.",
        lambda: figures.rounds_failed,
    )
    metrics.watch(
        "gpushare_admission_ready", "1 while API servers can call this process.", lambda: not closed()
    )
