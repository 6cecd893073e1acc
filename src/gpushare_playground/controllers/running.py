"""All controllers of one process, connected to the caches that they read."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpushare.kube.clock import SYSTEM_CLOCK, Clock
from gpushare.kube.event_recorder import Recorder
from gpushare_playground.cache import Cache, Expectations
from gpushare_playground.controllers.deployment import Deployments
from gpushare_playground.controllers.job import Jobs
from gpushare_playground.controllers.jobcount import FIRST_BACKOFF_S
from gpushare_playground.controllers.nodelifecycle import NodeLifecycle
from gpushare_playground.controllers.pod_gc import PATIENCE_S, PodGc
from gpushare_playground.controllers.podcontrol import PodControl, owner_key
from gpushare_playground.controllers.replicaset import ReplicaSets
from gpushare_playground.controllers.statefulset import StatefulSets
from gpushare_playground.controllers.workqueue import Reconciler, WorkQueue, work
from gpushare_playground.objects import (
    DEPLOYMENTS,
    JOBS,
    NODES,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Json,
    Kind,
    Objects,
    key_of,
    spec_of,
)
from gpushare_playground.supervised import run_together

#: Kinds that are watched.
WATCHED: Final = (PODS, NODES, JOBS, STATEFUL_SETS, REPLICA_SETS, DEPLOYMENTS)


@dataclass(frozen=True, slots=True)
class Timing:
    """Waits in seconds; those of kube-controller-manager unless a test sets others."""

    job_backoff_s: float = FIRST_BACKOFF_S
    lost_node_s: float = PATIENCE_S


class Controllers:
    """The controllers over ``caches`` (one per kind of ``WATCHED``), which the caller keeps in sync.

    ``recorder`` returns the recorder of events for a controller's name (``job-controller``).
    """

    def __init__(
        self,
        objects: Objects,
        caches: dict[Kind, Cache],
        recorder: Callable[[str], Recorder],
        *,
        clock: Clock = SYSTEM_CLOCK,
        timing: Timing = Timing(),
    ) -> None:
        self._caches = caches
        pods = caches[PODS]
        expectations = Expectations(pods, time.monotonic)

        def control(kind: Kind) -> PodControl:
            return PodControl(kind, objects, pods, expectations, recorder_of(kind))

        def recorder_of(kind: Kind) -> Recorder:
            return recorder(f"{kind.name.lower()}-controller")

        self._running: list[tuple[Reconciler, WorkQueue]] = []
        jobs = Jobs(
            objects,
            caches[JOBS],
            pods,
            control(JOBS),
            recorder_of(JOBS),
            clock,
            first_backoff_s=timing.job_backoff_s,
        )
        self._of_pods(JOBS, jobs)
        self._of_pods(
            STATEFUL_SETS,
            StatefulSets(objects, caches[STATEFUL_SETS], control(STATEFUL_SETS), recorder_of(STATEFUL_SETS)),
        )
        self._of_pods(REPLICA_SETS, ReplicaSets(objects, caches[REPLICA_SETS], control(REPLICA_SETS)))
        self._deployments(
            Deployments(
                objects, caches[DEPLOYMENTS], caches[REPLICA_SETS], pods, recorder_of(DEPLOYMENTS), clock
            )
        )
        self._lost_nodes(PodGc(objects, pods, caches[NODES], time.monotonic, timing.lost_node_s))
        self._nodes(NodeLifecycle(objects, caches[NODES], recorder("node-controller"), clock))

    @property
    def is_idle(self) -> bool:
        """Whether no key waits and none is being reconciled."""
        return all(queue.is_idle for _, queue in self._running)

    async def run(self) -> None:
        """Work until cancelled, starting when all caches are complete."""
        for cache in self._caches.values():
            await _synced(cache)
        await run_together(work(reconciler, queue) for reconciler, queue in self._running)

    def _of_pods(self, kind: Kind, reconciler: Reconciler) -> WorkQueue:
        """A controller whose objects own pods."""
        queue = WorkQueue()
        self._caches[kind].listen(_adding(queue, key_of))
        self._caches[PODS].listen(_adding(queue, lambda pod: owner_key(kind, pod)))
        self._running.append((reconciler, queue))
        return queue

    def _deployments(self, reconciler: Deployments) -> None:
        queue = WorkQueue()
        self._caches[DEPLOYMENTS].listen(_adding(queue, key_of))
        self._caches[REPLICA_SETS].listen(_adding(queue, lambda one: owner_key(DEPLOYMENTS, one)))

        def pod_gone(old: Json | None, new: Json | None) -> None:
            # A Deployment that recreates waits for the last pod of its old ReplicaSets.
            key = owner_key(REPLICA_SETS, old) if old is not None and new is None else None
            owner = self._caches[REPLICA_SETS].get(key) if key else None
            deployment = owner_key(DEPLOYMENTS, owner) if owner is not None else None
            if deployment:
                queue.add(deployment)

        self._caches[PODS].listen(pod_gone)
        self._running.append((reconciler, queue))

    def _nodes(self, reconciler: NodeLifecycle) -> None:
        queue = WorkQueue()
        self._caches[NODES].listen(_adding(queue, key_of))
        self._running.append((reconciler, queue))

    def _lost_nodes(self, reconciler: PodGc) -> None:
        queue = WorkQueue()

        def bound(old: Json | None, new: Json | None) -> None:
            if new is not None and self._caches[NODES].get(str(spec_of(new).get("nodeName") or "")) is None:
                queue.add(key_of(new))

        def node_gone(old: Json | None, new: Json | None) -> None:
            if old is not None and new is None:
                for pod in self._caches[PODS]:
                    if spec_of(pod).get("nodeName") == key_of(old):
                        queue.add(key_of(pod))

        self._caches[PODS].listen(bound)
        self._caches[NODES].listen(node_gone)
        self._running.append((reconciler, queue))


def _adding(
    queue: WorkQueue, key: Callable[[Json], str | None]
) -> Callable[[Json | None, Json | None], None]:
    def listener(old: Json | None, new: Json | None) -> None:
        for item in (old, new):
            queue_key = key(item) if item is not None else None
            if queue_key:
                queue.add(queue_key)

    return listener


async def _synced(cache: Cache) -> None:
    done = asyncio.Event()
    cache.when_synced(done.set)
    await done.wait()
