"""The scheduler extender as a process: watches, ledger, binder and HTTP server in one event loop."""

import asyncio
import gc
import logging
import signal
import socket
from collections import ChainMap
from collections.abc import Callable, Collection, Coroutine
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpushare.api.node.device import Placement
from gpushare.api.objects import decode_node, decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.httpserver.authorization import Readers
from gpushare.httpserver.fast_path import QuickProtocol
from gpushare.httpserver.listeners import Door
from gpushare.httpserver.relay_launcher import behind_relay, relay
from gpushare.httpserver.server import bind, open_doors, server_of, write_ports
from gpushare.kube.auth.access import Access
from gpushare.kube.auth.token_reviews import AccessReviews
from gpushare.kube.client.client import Client
from gpushare.kube.client.session import Session
from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.kube.event_recorder import EventRecorder
from gpushare.kube.watch.informer import Informer
from gpushare.ledger import Ledger
from gpushare.scheduler.cache.cache import ClusterView, NodeReader, NodeRecord
from gpushare.scheduler.cache.pod_records import PodRecord, counted_record_of, record_of
from gpushare.scheduler.framework.binder import RESERVATION_TTL_S, Binder, Reservations
from gpushare.scheduler.framework.precompute import Foreseeing
from gpushare.scheduler.leader.lease import Leading, LeadWatch
from gpushare.scheduler.leader.resync import Takeover
from gpushare.scheduler.observability.cluster_metrics import Observing
from gpushare.scheduler.observability.metrics import Metrics
from gpushare.scheduler.observability.pending_pod_events import FromDecisions, WaitingNews
from gpushare.scheduler.observability.pod_lifecycle_log import Sightings
from gpushare.scheduler.plugins.autoscaling.settings import Autoscaling
from gpushare.scheduler.plugins.autoscaling.wiring import scaling_of
from gpushare.scheduler.plugins.defragmentation.limits import Limits
from gpushare.scheduler.plugins.elastic_quota.pod_resync import QuotaPods, following_decoder
from gpushare.scheduler.plugins.elastic_quota.watch import QuotaWatch
from gpushare.scheduler.plugins.explain.decision_log import Decisions
from gpushare.scheduler.plugins.preemption.nominations import Nominated
from gpushare.scheduler.plugins.preemption.plugin import Preemptor
from gpushare.scheduler.plugins.resource_policy.wiring import PolicyParts
from gpushare.scheduler.requeue.requeuer import Retries
from gpushare.scheduler.server.app import ExtenderApp
from gpushare.scheduler.server.read_only_app import PREFIX, ReadOnly

if TYPE_CHECKING:
    from gpushare.scheduler.plugins.defragmentation.mobility import DecodeFn
    from gpushare.scheduler.plugins.defragmentation.plugin import Defragmenter

logger = logging.getLogger(__name__)

_STOP_S: Final = 3
_LAST_WORDS_S: Final = 1.0
#: Callers that come before the first accept wait in the queue, and are not refused.
_BACKLOG: Final = 1024
#: To the API server. A backlog of pods fills them all, and each costs both sides a handshake and memory; at 50 ms a
#: bind they carry 600 a second.
_CONNECTIONS: Final = 32
_YOUNG_OBJECTS: Final = 5000


class Settings(msgspec.Struct, frozen=True):
    """What the command line sets. ``host`` and ``port`` (0: any) are where the verbs are served.

    ``doors`` are where probes, metrics and decisions are served, for those who must not bind pods.
    ``defragmentation``: how often pods may be moved for others (``None``: never).
    """

    host: str = "127.0.0.1"
    port: int = 9451
    port_file: Path | None = None
    doors: tuple[Door, ...] = ()
    unit: MemoryUnit = MemoryUnit.GIB
    isolated_cap: int = 16
    node_policy: Placement = Placement.BINPACK
    reservation_ttl_s: float = RESERVATION_TTL_S
    lease: tuple[str, str] | None = None
    """Namespace and name of the Lease by which the kube-scheduler beside us leads; ``None``: there is one alone."""
    defragmentation: Limits | None = None
    autoscaling: Autoscaling | None = None


class _Pods:
    """Feeds the informer's pods to the view."""

    def __init__(
        self,
        view: ClusterView,
        mover: "Defragmenter | None",
        decisions: Decisions,
        nominated: Nominated,
    ) -> None:
        self._view = view
        self._nominated = nominated
        self._mover = mover
        self._decisions = decisions
        self._sightings = Sightings(view, decisions)

    def synced(self) -> None:
        """The first list is complete."""
        if self._mover is not None:
            self._mover.synced()

    def upsert(self, item: PodRecord) -> None:
        """A pod was added or changed."""
        self._sightings.seen(item)
        if self._mover is not None:
            self._mover.seen(item)
        self._view.upsert_pod(item)
        self._nominated.seen(item)
        if item.finished:
            self._decisions.gone(item.uid)

    def remove(self, key: str, last: PodRecord) -> None:
        """A pod is gone."""
        self._sightings.gone(last)
        self._view.remove_pod(last)
        self._nominated.gone(last.uid)
        self._decisions.gone(last.uid)


class _Nodes:
    """Feeds the informer's nodes to the view."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    def synced(self) -> None:
        """The first list is complete."""

    def upsert(self, item: NodeRecord) -> None:
        """A node was added or changed."""
        self._view.upsert_node(item)

    def remove(self, key: str, last: NodeRecord) -> None:
        """A node is gone."""
        self._view.remove_node(key)


def decode_record(raw: bytes) -> tuple[str, PodRecord] | None:
    """A pod's JSON as the view takes it; ``None`` when it has nothing to do with our GPUs."""
    record = record_of(decode_pod(raw))
    return None if record is None else (record.pod, record)


def node_decoder(reader: NodeReader) -> Callable[[bytes], tuple[str, NodeRecord]]:
    """A decoder of nodes' JSON with this scheduler's settings."""

    def decode(raw: bytes) -> tuple[str, NodeRecord]:
        record = reader.read(decode_node(raw))
        return record.devices.name, record

    return decode


async def serve(access: Access, settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises ``OSError`` when an address is taken or the port cannot be written."""
    with ExitStack() as unless_served:
        bound = unless_served.enter_context(closing(bind(settings.host, settings.port)))
        bound.listen(_BACKLOG)
        read_at = open_doors(settings.doors, unless_served, _BACKLOG)
        if settings.port_file is not None:
            write_ports("--port-file", settings.port_file, bound)
        unless_served.pop_all()
    # What is read first stays: looking for garbage in it after every 700 objects would find none.
    gc.set_threshold(_YOUNG_OBJECTS)
    async with Session(access, connections=_CONNECTIONS) as session:
        events = EventRecorder(session, controller="gpushare.dev/scheduler", instance=socket.gethostname())
        ledger = Ledger(node_policy=settings.node_policy)
        reservations = Reservations(settings.reservation_ttl_s)
        client = Client(session)
        metrics = Metrics(ledger)
        leading = LeadWatch(Leading(client, settings.lease), SYSTEM_CLOCK)
        observing = Observing(metrics, events, reservations, leading, SYSTEM_CLOCK)
        takeover = Takeover(leading)
        policies = PolicyParts(session, client, ledger, SYSTEM_CLOCK, settings.lease)
        view = ClusterView(
            ledger,
            events,
            observing.confirmed,
            isolated_cap=settings.isolated_cap,
            governs=policies.policies.governs,
        )
        decisions = Decisions(
            view,
            SYSTEM_CLOCK,
            leads=lambda: leading.known,
            in_turn=policies.policies.by_unit,
            without_gpu=lambda uid: view.waiting_besides.get(uid) or policies.policies.kept(uid),
        )
        news = WaitingNews(FromDecisions(decisions), events, SYSTEM_CLOCK, leading)
        binder = Binder(view, policies.binding, reservations, SYSTEM_CLOCK)
        binder.reservation_expired.subscribe(observing.stale)
        retries = Retries(ChainMap(view.waiting, view.waiting_besides), client, SYSTEM_CLOCK)
        preemptor = Preemptor(
            view,
            client,
            events,
            SYSTEM_CLOCK,
            in_turn=policies.policies.by_unit,
            must_lead=takeover.must_lead,
        )
        preemptor.decided.subscribe(decisions.preempted)
        mover: Defragmenter | None = None
        if settings.defragmentation is not None:
            # Mostly nobody asks for it: not to be imported before the first answer.
            from gpushare.scheduler.plugins.defragmentation import plugin as defragmentation
            from gpushare.scheduler.plugins.resource_policy import move_targets

            mover = defragmentation.Defragmenter(
                view,
                client,
                events,
                SYSTEM_CLOCK,
                settings.defragmentation,
                move_targets.PolicyPlaces(policies.policies),
                must_lead=takeover.must_lead,
                hurry=retries.hurry,
                told=lambda result: metrics.moved.labels(result).inc(),
            )
        foreseeing = Foreseeing(ledger, told=metrics.foreseen.inc)
        view.pod_arrived.subscribe(foreseeing.arrived)
        view.capacity_freed.subscribe(retries.freed)
        view.reservation_released.subscribe(retries.given_back)
        view.gangs.reservation_released.subscribe(retries.given_back)
        for wanting in (view.gangs, view.quotas, preemptor):
            wanting.retry_wanted.subscribe(retries.hurry)
        view.gangs.satisfied.subscribe(retries.asked)
        quotas = QuotaWatch(session, client, view.quotas, SYSTEM_CLOCK)
        reader = NodeReader(
            unit=settings.unit, isolated_cap=settings.isolated_cap, node_policy=settings.node_policy
        )
        by_fragments = settings.node_policy is Placement.FRAGMENTATION
        decode: DecodeFn = following_decoder(view.quotas, counted_record_of if by_fragments else record_of)
        if mover is not None:
            from gpushare.scheduler.plugins.defragmentation.mobility import with_mobility

            decode = with_mobility(decode)
        scaling = scaling_of(
            settings.autoscaling,
            session,
            view,
            events,
            SYSTEM_CLOCK,
            settings.lease,
            metrics,
            read=lambda: nodes.synced.is_set() and pods.synced.is_set(),
        )
        nodes = Informer(
            session, "/api/v1/nodes", scaling.noticing(node_decoder(reader)), scaling.following(_Nodes(view))
        )
        pods = Informer(
            session,
            "/api/v1/pods",
            policies.noticing(decode),
            _Pods(view, mover, decisions, Nominated(view, preemptor.kept)),
        )
        quota_pods = QuotaPods(view.quotas, pods, quotas.read)
        watches: dict[str, Informer[NodeRecord] | Informer[PodRecord]] = {"nodes": nodes, "pods": pods}
        takeover.follow(*watches.values(), policies.watches, quotas)
        takeover.resynced.subscribe(binder.begin_anew)
        export(metrics, view, reservations)
        observing.export(
            lambda: {**watches, "elasticquotatrees": quotas, **policies.watches.followed()}, news
        )

        def missing() -> str:
            waiting = [kind for kind, watch in watches.items() if not watch.synced.is_set()]
            waiting += [] if quotas.read.is_set() else ["elastic quotas"]
            if not waiting and not policies.watches.ready.is_set():
                waiting = ["ResourcePolicies"]
            return f"{' and '.join(waiting)} not read yet" if waiting else ""

        def refused(uid: str, nodes: Collection[str]) -> None:
            retries.refused(uid)
            preemptor.refused(uid, nodes)
            if mover is not None:
                mover.refused(uid, nodes)
            scaling.refused(uid, nodes)

        readers = Readers(AccessReviews(session))
        server = server_of(
            ExtenderApp(
                view,
                binder,
                refused,
                preemptor.left_to_scheduler,
                client,
                metrics,
                missing,
                policies.policies,
                decisions,
                takeover,
                readers,
            ),
            stop_s=_STOP_S,
            protocol=QuickProtocol,
        )
        servers = [(server, bound)]
        relaying: list[tuple[str, Coroutine[Any, Any, None]]] = []
        if read_at:
            # Whoever reaches those ports must not keep kube-scheduler waiting: another process faces them.
            behind = behind_relay()
            servers.append(
                (server_of(ReadOnly(missing, metrics, decisions, readers), stop_s=_STOP_S), behind)
            )
            relaying = [("relay", relay(read_at, behind))]
            for listening, pages in read_at.items():
                logger.info("%s on http://%s:%d", " and ".join(pages), *listening.getsockname()[:2])
        running = [
            asyncio.create_task(coroutine, name=name)
            for name, coroutine in (
                ("nodes", nodes.run()),
                ("pods", _follow_pods(pods, quota_pods)),
                ("events", events.run()),
                ("sweep", binder.sweep()),
                ("retries", retries.run()),
                ("foreseeing", foreseeing.run()),
                ("preemption", preemptor.run()),
                ("decisions", decisions.run()),
                ("leading", leading.run()),
                ("takeover", takeover.run()),
                ("waiting news", news.run()),
                ("quotas", quotas.run()),
                ("quotas' pods", quota_pods.run()),
                ("settle", _settle(pods, nodes)),
                *policies.running(),
                *([] if mover is None else [("defragmentation", mover.run())]),
                *scaling.running(),
                *relaying,
            )
        ]
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
                async with asyncio.timeout(_LAST_WORDS_S):
                    await events.flush()


async def _first_failure(http: asyncio.Task[None], running: list[asyncio.Task[None]]) -> None:
    """Wait until the server was told to stop, or a part of the process failed: then raise that."""
    while not http.done():
        done, _ = await asyncio.wait([http, *running], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task
        running = [task for task in running if task not in done]


async def _follow_pods(pods: Informer[PodRecord], quota_pods: QuotaPods) -> None:
    await quota_pods.begin()
    await pods.run()


async def _settle(*watches: Informer[NodeRecord] | Informer[PodRecord]) -> None:
    """Once everything is read, keep it out of the garbage collector's way: it lives as long as we do."""
    for watch in watches:
        await watch.synced.wait()
    gc.collect()
    gc.freeze()
    logger.info("ready")


def export(metrics: Metrics, view: ClusterView, reservations: Reservations) -> None:
    """Have the sums of the cluster in every scrape."""
    metrics.watch(
        "gpushare_scheduler_waiting_pods",
        "Pods without a node that ask for a GPU.",
        lambda: len(view.waiting),
    )
    metrics.watch(
        "gpushare_scheduler_reservations",
        "Shares, and charges of elastic quotas without one, whose Binding was not seen yet.",
        lambda: len(reservations.deadlines),
    )
    totals = view.ledger.totals
    metrics.watch("gpushare_scheduler_gpus", "GPUs of all known nodes.", lambda: totals().gpus)
    metrics.watch(
        "gpushare_scheduler_memory_total_mebibytes", "Memory of all known GPUs.", lambda: totals().total_mib
    )
    metrics.watch(
        "gpushare_scheduler_memory_given_mebibytes", "Memory that pods hold.", lambda: totals().used_mib
    )
    metrics.watch(
        "gpushare_scheduler_core_given_percent",
        "Compute that pods hold, 100 a GPU.",
        lambda: totals().used_core,
    )
    metrics.watch("gpushare_scheduler_holding_pods", "Pods that hold a share.", lambda: totals().pods)
    metrics.watch(
        "gpushare_scheduler_malformed_objects",
        "Pods and nodes that could not be understood.",
        lambda: len(view.malformed),
    )
