"""The dashboard as a process: watches, agents and scheduler asked, and the page's server in one event loop."""

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
from gpushare.dashboard.data.cluster import Cluster
from gpushare.dashboard.data.endpoints import SELECTOR, AgentsFile, Places, decode_place
from gpushare.dashboard.data.history import History
from gpushare.dashboard.data.http_get import Asking
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

#: How long requests under way may take once we are told to stop.
_STOP_S: Final = 5

_BACKLOG = 256
#: Where the account is whose tokens let us read decisions, but for a Lease that says where the scheduler is.
_READERS_IN: Final = "kube-system"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line sets. ``host`` and ``port`` (0: any) are where the page is served.

    ``scheduler`` is the extender beside us; ``lease`` (namespace, name) says which scheduler leads where there are
    several, and ``pod`` is our own ``NAMESPACE/NAME`` then. ``namespaces`` hold our pods; ``agents_file`` says where agents are
    that are no pods.
    """

    token_file: Path
    host: str = "127.0.0.1"
    port: int = 9453
    metrics_listen: tuple[str, int] | None = None  # at the page's
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
        # kube-scheduler calls itself HOST_UUID, and a pod's host name is its name.
        holder = await client.lease_holder(*lease)
        return f"{lease[0]}/{holder.rpartition('_')[0] or holder}" if holder else ""

    return leader


def _reader_token(session: Session, namespace: str) -> TokenFn:
    async def made() -> str:
        return await token_of(
            session, namespace, names.READER_ACCOUNT, names.READER_AUDIENCE, seconds=TOKEN_S
        )

    return made


async def serve(access: Access, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> None:
    """Run until SIGTERM or SIGINT.

    Raises ``InvalidSetting`` where the token cannot be used, ``OSError`` when an address is taken or the port cannot be written.
    """
    token = TokenFile(settings.token_file)
    with ExitStack() as unless_served:
        apart = {METRICS: settings.metrics_listen, PROBES: settings.probes_listen}
        opened = open_doors(doors((settings.host, settings.port), apart), unless_served, _BACKLOG)
        bound = next(iter(opened))
        if settings.port_file is not None:
            write_ports("--port-file", settings.port_file, *opened)
        unless_served.pop_all()
    stop = stop_event()
    async with Session(access, part="dashboard") as session, Asking() as asking:
        cluster, places = Cluster(settings.node_policy), Places()
        stream = Stream(secrets.token_hex(4))
        source = Source(
            asking,
            settings.scheduler,
            clock,
            leader=None if settings.lease is None else _leader(Client(session), settings.lease),
            address=places.scheduler,
            token=_reader_token(session, _READERS_IN if settings.lease is None else settings.lease[0]),
        )

        agent = places.agent if settings.agents_file is None else AgentsFile(settings.agents_file).agent
        agents = Agents(asking, agent, cluster.gpu_uuids, cluster.board.put_real, clock)
        live = Live(cluster, agents, source, stream, History(), clock)
        reader = NodeReader(
            unit=settings.unit, isolated_cap=settings.isolated_cap, node_policy=settings.node_policy
        )
        nodes = Informer(session, "/api/v1/nodes", seen_node_decoder(reader), cluster.seen_nodes)
        pods = Informer(session, "/api/v1/pods", decode_seen, cluster.pods)
        ours = [
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
            kinds = [kind for kind, one in (("nodes", nodes), ("pods", pods)) if not one.synced.is_set()]
            if kinds:
                return f"{' and '.join(kinds)} not read yet"
            return "" if live.shown.is_set() else "the cluster is not shown yet"

        app = DashboardApp(
            assets.load(),
            Guard(token.read, lambda: clock.time_ns() / 1e9),
            live,
            stream,
            Probes(missing, _exposition(cluster, stream)),
        )
        servers = {server_of(at_door(app, pages), stop_s=_STOP_S): at for at, pages in opened.items()}
        running = [
            asyncio.create_task(part, name=name)
            for name, part in (
                ("nodes", nodes.run()),
                ("pods", pods.run()),
                *((f"pods of ours, {at}", one.run()) for at, one in enumerate(ours)),
                ("news", _once_read(live, nodes, pods)),
                ("waiting", live.follow_waiting()),
                ("sweep", agents.sweep(cluster.by_interest, lambda: stream.pages > 0)),
            )
        ]
        logger.info("serving http://%s:%d/, API server %s", *bound.getsockname()[:2], access.server)
        serving = [asyncio.create_task(one.serve(sockets=[at]), name="http") for one, at in servers.items()]
        told = asyncio.create_task(stop.wait(), name="stop")
        try:
            done, _ = await asyncio.wait([told, *serving, *running], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {told}:
                task.result()
        finally:
            stream.end()
            for one in servers:
                one.should_exit = True
            for task in (told, *running):
                task.cancel()
            await asyncio.gather(told, *serving, *running, return_exceptions=True)


async def _once_read(live: Live, *watches: Informer[Any]) -> None:
    """Show nothing before everything was read: half a cluster would look like a broken one."""
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
