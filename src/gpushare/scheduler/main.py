"""The scheduler extender's process: the core, the plugins and the HTTP servers in one event loop."""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Collection, Mapping
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING, Final

from gpushare.httpserver.authorization import Readers
from gpushare.httpserver.fast_path import QuickProtocol
from gpushare.httpserver.relay_launcher import behind_relay, relay
from gpushare.httpserver.server import bind, open_doors, server_of, write_ports
from gpushare.kube.auth.access import Access
from gpushare.kube.auth.token_reviews import AccessReviews
from gpushare.kube.client.session import Session
from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.core import Core, Watches
from gpushare.scheduler.framework.binder import Reservations
from gpushare.scheduler.framework.runtime import Framework
from gpushare.scheduler.observability.metrics import Metrics
from gpushare.scheduler.plugins.registry import built_in, third_party
from gpushare.scheduler.server.app import ExtenderApp
from gpushare.scheduler.server.read_only_app import PREFIX, ReadOnly
from gpushare.scheduler.settings import Settings

if TYPE_CHECKING:
    from gpushare.scheduler.framework.interface import Task

logger = logging.getLogger(__name__)

_STOP_S: Final = 3
_FLUSH_TIMEOUT_S: Final = 1.0
#: Clients that connect before the first accept are queued, not refused.
_BACKLOG: Final = 1024
#: Connections to the API server. A backlog of pods uses them all, and each costs both sides a handshake and memory. At
#: 50 ms per bind they carry 600 binds per second.
_CONNECTIONS: Final = 32
_YOUNG_OBJECTS: Final = 5000


async def serve(access: Access, settings: Settings) -> None:
    """Run until SIGTERM or SIGINT.

    Raises ``OSError`` if an address is in use or the port file cannot be written, and ``InvalidSettings``.
    """
    with ExitStack() as sockets:
        bound = sockets.enter_context(closing(bind(settings.host, settings.port)))
        bound.listen(_BACKLOG)
        doors = open_doors(settings.doors, sockets, _BACKLOG)
        if settings.port_file is not None:
            write_ports("--port-file", settings.port_file, bound)
        await _run(access, settings, bound, doors)


async def _run(
    access: Access, settings: Settings, bound: socket.socket, doors: Mapping[socket.socket, Collection[str]]
) -> None:
    # The first lists stay in memory: collecting garbage after every 700 new objects, the default, would find none.
    gc.set_threshold(_YOUNG_OBJECTS)
    async with Session(access, connections=_CONNECTIONS) as session:
        core = Core(session, settings, SYSTEM_CLOCK)

        def synced() -> bool:
            return watches.synced()  # called only once plugins run; the watches are created below

        async def relist_pods() -> None:
            await watches.relist_pods()

        handle = core.handle(synced=synced, relist_pods=relist_pods)
        framework = Framework([*built_in(core, handle), *third_party(handle, settings.plugins)])
        watches = Watches(core, framework)
        binder = core.binder(framework)
        export(core.metrics, core.cache, core.reservations)
        core.observing.export(watches.figures)
        readers = Readers(AccessReviews(session))
        app = ExtenderApp(
            core.cache,
            binder,
            core.metrics,
            watches.missing,
            framework,
            core.takeover,
            readers,
        )
        server = server_of(app, stop_s=_STOP_S, protocol=QuickProtocol)
        servers = [(server, bound)]
        tasks: list[Task] = [
            *watches.tasks(),
            *core.tasks(),
            ("sweep", binder.sweep()),
            *framework.tasks(),
            ("settle", _settle(watches)),
        ]
        if doors:
            # Clients of these ports must not delay kube-scheduler, so a separate process accepts their connections.
            relayed = behind_relay()
            read_only = ReadOnly(watches.missing, core.metrics, framework.pages, readers)
            servers.append((server_of(read_only, stop_s=_STOP_S), relayed))
            tasks.append(("relay", relay(doors, relayed)))
            for listening, pages in doors.items():
                logger.info("%s on http://%s:%d", " and ".join(pages), *listening.getsockname()[:2])
        running = [asyncio.create_task(coroutine, name=name) for name, coroutine in tasks]
        address = bound.getsockname()
        logger.info("serving http://%s:%d%s, API server %s", *address[:2], PREFIX, access.server)
        serving = [asyncio.create_task(one.serve(sockets=[at]), name="http") for one, at in servers]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, setattr, server, "should_exit", True)
        try:
            await _first_failure(serving[0], [*serving[1:], *running])
        finally:
            for one, _ in servers:
                one.should_exit = True
            for task in running:
                task.cancel()
            await asyncio.gather(*serving, *running, return_exceptions=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                    await core.recorder.flush()


async def _first_failure(http: asyncio.Task[None], running: list[asyncio.Task[None]]) -> None:
    """Wait until the server was asked to stop, or a task failed: then raise its exception."""
    while not http.done():
        done, _ = await asyncio.wait([http, *running], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task
        running = [task for task in running if task not in done]


async def _settle(watches: Watches) -> None:
    """After the first lists, exclude all objects from garbage collection, as they live as long as the process."""
    await watches.settled()
    gc.collect()
    gc.freeze()
    logger.info("ready")


def export(metrics: Metrics, view: ClusterCache, reservations: Reservations) -> None:
    """Export the cluster's sums as metrics."""
    metrics.watch(
        "gpushare_scheduler_reservations",
        "Reservations of GPU memory or quota whose Binding was not observed yet.",
        lambda: len(reservations.deadlines),
    )
    totals = view.ledger.totals
    metrics.watch("gpushare_scheduler_gpus", "GPUs of all known nodes.", lambda: totals().gpus)
    metrics.watch(
        "gpushare_scheduler_memory_capacity_bytes",
        "Memory of all known GPUs.",
        lambda: totals().total_mib << 20,
    )
    metrics.watch(
        "gpushare_scheduler_memory_allocated_bytes",
        "Memory of all known GPUs that is allocated to pods.",
        lambda: totals().used_mib << 20,
    )
    metrics.watch("gpushare_scheduler_allocated_pods", "Pods with an allocation.", lambda: totals().pods)
    metrics.watch(
        "gpushare_scheduler_invalid_objects",
        "Pods and nodes that cannot be parsed.",
        lambda: len(view.malformed),
    )
