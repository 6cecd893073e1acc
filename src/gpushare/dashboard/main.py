"""The dashboard's process: watches, requests to node agents and scheduler, and the page's server, in one event loop."""

import asyncio
import gc
import logging
import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.api import names
from gpushare.api.node.device import Placement
from gpushare.api.quantity import MemoryUnit
from gpushare.dashboard.data.agent_client import Agents
from gpushare.dashboard.data.claims import CLAIMS, CLASSES, decode_claim, decode_class
from gpushare.dashboard.data.cluster import Cluster
from gpushare.dashboard.data.endpoints import SELECTOR, AgentsFile, Places, decode_place
from gpushare.dashboard.data.history import History
from gpushare.dashboard.data.http_get import HttpClient
from gpushare.dashboard.data.pending import TOKEN_S, LeaderFn, Source, TokenFn
from gpushare.dashboard.data.records import decode_seen, seen_node_decoder
from gpushare.dashboard.server import assets
from gpushare.dashboard.server.app import DashboardApp
from gpushare.dashboard.server.auth import Guard, TokenFile
from gpushare.dashboard.server.event_stream import Stream
from gpushare.dashboard.server.sessions import Live
from gpushare.httpserver.listeners import METRICS, PROBES, doors
from gpushare.httpserver.probes import Exposition, Probes, at_door
from gpushare.httpserver.server import open_doors, server_of, write_ports
from gpushare.kube.auth.access import Access
from gpushare.kube.auth.token_reviews import token_of
from gpushare.kube.client.client import Client
from gpushare.kube.client.session import Session
from gpushare.kube.clock import SYSTEM_CLOCK, Clock
from gpushare.kube.watch.informer import Informer
from gpushare.process.signals import stop_event
from gpushare.scheduler.cache.cache import NodeReader

logger = logging.getLogger(__name__)

#: Grace period for requests in progress at shutdown.
_SHUTDOWN_GRACE_S: Final = 5

_BACKLOG = 256
#: Namespace of the service account whose tokens permit reading decisions; with a Lease, that of the Lease is used instead.
_READER_NAMESPACE: Final = "kube-system"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings from the command line. The page is served at ``host`` and ``port`` (0: any).

    ``scheduler`` is the URL of a single extender; with several, ``lease`` (namespace, name) determines the leader. ``namespaces``
    contain gpushare's pods; ``agents_file`` lists agents that do not run as pods.
    """

    token_file: Path
    host: str = "127.0.0.1"
    port: int = 9453
    metrics_listen: tuple[str, int] | None = None  # default: the page's address
    probes_listen: tuple[str, int] | None = None
    port_file: Path | None = None
    scheduler: str = "http://127.0.0.1:9451"
    lease: tuple[str, str] | None = None
    namespaces: tuple[str, ...] = ()
    agents_file: Path | None = None
    unit: MemoryUnit = MemoryUnit.GIB
    isolated_cap: int = 16
    node_policy: Placement = Placement.BINPACK


def _leader(client: Client, lease: tuple[str, str]) -> LeaderFn:
    async def leader() -> str:
        # kube-scheduler's holder identity is HOST_UUID, and a pod's host name is its name.
        holder = await client.lease_holder(*lease)
        return f"{lease[0]}/{holder.rpartition('_')[0] or holder}" if holder else ""

    return leader


def _reader_token(session: Session, namespace: str) -> TokenFn:
    async def token() -> str:
        return await token_of(
            session, namespace, names.READER_ACCOUNT, names.READER_AUDIENCE, seconds=TOKEN_S
        )

    return token


async def serve(access: Access, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> None:
    """Run until SIGTERM or SIGINT.

    Raises ``InvalidSetting`` for an unusable token, ``OSError`` when an address is in use or the port file cannot be written.
    """
    token = TokenFile(settings.token_file)
    with ExitStack() as close_on_error:
        other_addresses = {METRICS: settings.metrics_listen, PROBES: settings.probes_listen}
        opened = open_doors(doors((settings.host, settings.port), other_addresses), close_on_error, _BACKLOG)
        bound = next(iter(opened))
        if settings.port_file is not None:
            write_ports("--port-file", settings.port_file, *opened)
        close_on_error.pop_all()
    stop = stop_event()
    async with Session(access, part="dashboard") as session, HttpClient() as http:
        cluster, places = Cluster(settings.node_policy), Places()
        stream = Stream(secrets.token_hex(4))
        source = Source(
            http,
            settings.scheduler,
            clock,
            leader=None if settings.lease is None else _leader(Client(session), settings.lease),
            address=places.scheduler,
            token=_reader_token(session, _READER_NAMESPACE if settings.lease is None else settings.lease[0]),
        )

        agent = places.agent if settings.agents_file is None else AgentsFile(settings.agents_file).agent
        agents = Agents(http, agent, cluster.gpu_uuids, cluster.board.put_real, clock)
        live = Live(cluster, agents, source, stream, History(), clock)
        reader = NodeReader(
            unit=settings.unit, isolated_cap=settings.isolated_cap, node_policy=settings.node_policy
        )
        nodes = Informer(session, "/api/v1/nodes", seen_node_decoder(reader), cluster.seen_nodes)
        pods = Informer(session, "/api/v1/pods", decode_seen, cluster.pods)
        claims = Informer(session, CLAIMS, decode_claim, cluster.claims, may_be_absent=True)
        classes = Informer(session, CLASSES, decode_class, cluster.claims.classes, may_be_absent=True)
        component_pods = [
            Informer(
                session,
                f"/api/v1/namespaces/{namespace}/pods",
                decode_place,
                places,
                params={"labelSelector": SELECTOR},
            )
            for namespace in settings.namespaces
        ]

        def missing() -> str:
            if stop.is_set():
                return "it is ending"
            unsynced = [
                kind for kind, informer in (("nodes", nodes), ("pods", pods)) if not informer.synced.is_set()
            ]
            if unsynced:
                return f"{' and '.join(unsynced)} not read yet"
            return "" if live.shown.is_set() else "the cluster is not shown yet"

        app = DashboardApp(
            assets.load(),
            Guard(token.read, lambda: clock.time_ns() / 1e9),
            live,
            stream,
            Probes(missing, _exposition(cluster, stream)),
        )
        servers = {
            server_of(at_door(app, pages), stop_s=_SHUTDOWN_GRACE_S): listener
            for listener, pages in opened.items()
        }
        running = [
            asyncio.create_task(part, name=name)
            for name, part in (
                ("nodes", nodes.run()),
                ("pods", pods.run()),
                ("claims", claims.run()),
                ("device classes", classes.run()),
                *(
                    (f"pods of ours, {number}", informer.run())
                    for number, informer in enumerate(component_pods)
                ),
                ("updates", _run_once_synced(live, nodes, pods)),
                ("waiting", live.poll_pending()),
                ("sweep", agents.sweep(cluster.by_interest, lambda: stream.pages > 0)),
            )
        ]
        logger.info("serving http://%s:%d/, API server %s", *bound.getsockname()[:2], access.server)
        serving = [
            asyncio.create_task(server.serve(sockets=[listener]), name="http")
            for server, listener in servers.items()
        ]
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            done, _ = await asyncio.wait([stopped, *serving, *running], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()
        finally:
            stream.end()
            for server in servers:
                server.should_exit = True
            for task in (stopped, *running):
                task.cancel()
            await asyncio.gather(stopped, *serving, *running, return_exceptions=True)


async def _run_once_synced(live: Live, *watches: Informer[Any]) -> None:
    """Run ``live`` once all watches are synced: an incomplete cluster would look broken."""
    for watch in watches:
        await watch.synced.wait()
    gc.collect()
    gc.freeze()
    logger.info("ready")
    await live.run()


def _exposition(cluster: Cluster, stream: Stream) -> Exposition:
    exposition = Exposition()
    exposition.watch(
        "gpushare_dashboard_subscribers",
        "Browser pages that are subscribed to updates.",
        lambda: stream.pages,
    )
    exposition.watch("gpushare_dashboard_gpus", "GPUs on the dashboard.", lambda: cluster.board.gpus)
    exposition.watch(
        "gpushare_dashboard_invalid_objects",
        "Pods and nodes that cannot be parsed.",
        lambda: len(cluster.view.malformed),
    )
    return exposition
