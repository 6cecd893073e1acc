"""The core of the scheduler: ledger, cache, binding and leadership, and the events that connect them."""

import socket
from collections import ChainMap
from collections.abc import Awaitable, Callable
from typing import Final

from gpushare.api.node.device import Placement
from gpushare.kube.client.client import Client
from gpushare.kube.client.session import Session
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import EventRecorder
from gpushare.kube.watch.informer import Informer
from gpushare.ledger import Ledger
from gpushare.scheduler.cache.cache import ClusterCache, NodeReader, NodeRecord
from gpushare.scheduler.cache.pod_records import PodRecord, counted_record_of, decoder_of, record_of
from gpushare.scheduler.framework.binder import Binder, Reservations
from gpushare.scheduler.framework.interface import Handle, Task, Watch
from gpushare.scheduler.framework.precompute import Precomputer
from gpushare.scheduler.framework.runtime import Framework
from gpushare.scheduler.leader.lease import LeaderWatch, Leading
from gpushare.scheduler.leader.resync import LeaderResync
from gpushare.scheduler.observability.cluster_metrics import ClusterMetrics
from gpushare.scheduler.observability.metrics import Metrics
from gpushare.scheduler.requeue.requeuer import Requeuer
from gpushare.scheduler.settings import Settings

_RECORDER: Final = "gpushare.dev/scheduler"


class Core:
    """The parts that exist whichever plugins are enabled."""

    def __init__(self, session: Session, settings: Settings, clock: Clock) -> None:
        self.session = session
        self.settings = settings
        self.clock = clock
        self.client = Client(session)
        self.recorder = EventRecorder(session, controller=_RECORDER, instance=socket.gethostname())
        self.ledger = Ledger(node_policy=settings.node_policy)
        self.reservations = Reservations(settings.reservation_ttl_s)
        self.metrics = Metrics(self.ledger)
        self.leading = LeaderWatch(Leading(self.client, settings.lease), clock)
        self.takeover = LeaderResync(self.leading)
        self.observing = ClusterMetrics(self.metrics, self.recorder, self.reservations, self.leading, clock)
        self.cache = ClusterCache(
            self.ledger,
            self.recorder,
            self.observing.confirmed,
            isolated_cap=settings.isolated_cap,
            clock=clock,
        )
        # A ChainMap begins with its last mapping: pods that request a GPU are preferred.
        waiting = ChainMap(self.cache.waiting_non_gpu, self.cache.waiting)
        self.requeuer = Requeuer(waiting, self.client, clock)
        self.precompute = Precomputer(self.ledger, self.metrics.precomputed.inc)
        self._subscribe()

    def _subscribe(self) -> None:
        """Subscribe the parts to each other's events. Subscribers are called in this order."""
        cache, requeuer = self.cache, self.requeuer
        cache.pod_arrived.subscribe(self.precompute.arrived)
        cache.capacity_freed.subscribe(requeuer.freed)
        cache.reservation_released.subscribe(requeuer.reservation_released)

    def binder(self, framework: Framework) -> Binder:
        """Create the bind verb, with the plugins. Call this once."""
        binder = Binder(self.cache, self.client, self.reservations, self.clock, framework)
        binder.reservation_expired.subscribe(self.observing.stale)
        self.takeover.resynced.subscribe(binder.forget_reservations)
        return binder

    def handle(self, *, synced: Callable[[], bool], relist_pods: Callable[[], Awaitable[None]]) -> Handle:
        """Create the plugins' handle; ``Handle`` describes ``synced`` and ``relist_pods``."""
        return Handle(
            session=self.session,
            client=self.client,
            cache=self.cache,
            recorder=self.recorder,
            clock=self.clock,
            lease=self.settings.lease,
            must_lead=self.takeover.must_lead,
            retry=self.requeuer.hurry,
            placed=self.requeuer.placed,
            resynced=self.takeover.resynced,
            synced=synced,
            relist_pods=relist_pods,
            leading=self.leading,
            gauge_by=self.metrics.watch_by,
            gauge=self.metrics.watch,
        )

    def tasks(self) -> list[Task]:
        """The tasks that run as long as the process, without the watches."""
        return [
            ("events", self.recorder.run()),
            ("precompute", self.precompute.run()),
            ("leading", self.leading.run()),
            ("leader resync", self.takeover.run()),
        ]


class Watches:
    """The informers of nodes and pods. Plugins watch further kinds themselves."""

    def __init__(self, core: Core, framework: Framework) -> None:
        settings, session = core.settings, core.session
        reader = NodeReader(
            unit=settings.unit, isolated_cap=settings.isolated_cap, node_policy=settings.node_policy
        )
        read_pod = counted_record_of if settings.node_policy is Placement.FRAGMENTATION else record_of
        nodes = framework.nodes(core.cache)
        self._nodes: Informer[NodeRecord] = Informer(
            session, "/api/v1/nodes", nodes.decoder(reader.decode), nodes
        )
        self._pods: Informer[PodRecord] = Informer(
            session,
            "/api/v1/pods",
            framework.pod_decoder(decoder_of(read_pod)),
            framework.pods(core.cache),
        )
        self._framework = framework
        self._kinds = framework.watched_kinds
        core.takeover.follow(self._nodes, self._pods, *self._kinds)

    def figures(self) -> dict[str, Watch]:
        """The watches by kind, those of plugins included."""
        return {
            "nodes": self._nodes,
            "pods": self._pods,
            **{kind: watch for plugin in self._kinds for kind, watch in plugin.watched().items()},
        }

    def synced(self) -> bool:
        """Whether the first lists of pods and nodes are complete."""
        return self._nodes.synced.is_set() and self._pods.synced.is_set()

    def missing(self) -> str:
        """The kinds that were not listed yet, in words; empty once the scheduler may serve requests."""
        listed = {"nodes": self._nodes.synced.is_set(), "pods": self._pods.synced.is_set()}
        missing = [kind for kind, done in listed.items() if not done]
        missing += filter(None, (one.not_listed() for one in self._kinds))
        return f"{' and '.join(missing)} not read yet" if missing else ""

    async def relist_pods(self) -> None:
        """List all pods again and return when that is done."""
        await self._pods.relist()

    async def settled(self) -> None:
        """Wait for the first lists of pods and nodes."""
        await self._pods.synced.wait()
        await self._nodes.synced.wait()

    def tasks(self) -> list[Task]:
        """The tasks that run as long as the process."""
        return [
            ("nodes", self._nodes.run()),
            ("pods", self._follow_pods()),
        ]

    async def _follow_pods(self) -> None:
        await self._framework.before_pods()
        await self._pods.run()
