"""What the node agent watches: its own node and the pods bound to it."""

from collections.abc import Coroutine, Mapping
from typing import Any, Final

from gpushare.kube.client.session import Session
from gpushare.kube.clock import SYSTEM_CLOCK, Clock
from gpushare.kube.watch.informer import Handler, Informer
from gpushare.nodeagent.allocate.pod_allocations import BoundPod, bound_pod, decode_reporting_pod
from gpushare.nodeagent.dra.claiming_pods import ClaimHolders, ClaimingPod, claiming_pod
from gpushare.nodeagent.node.node_handler import ReportingNode, decode_reporting_node
from gpushare.nodeagent.observability.metrics import Metrics

#: What each is called in figures, and for people.
_CALLED: Final[Mapping[str, str]] = {"nodes": "node", "pods": "pods of this node"}


PodRecord = BoundPod | ClaimingPod


def decode_pod_record(raw: bytes) -> tuple[str, PodRecord] | None:
    """A pod's JSON as the informer keeps it: of pods that request GPUs, or use ResourceClaims; raises ``msgspec.DecodeError``."""
    pod = decode_reporting_pod(raw)
    record = bound_pod(pod) or claiming_pod(pod)
    return None if record is None else (record.key, record)


class PodRecords:
    """The handler of the pod informer: passes each pod on to what handles its kind. No node has GPUs for both."""

    def __init__(self, bound: Handler[BoundPod], claiming: ClaimHolders) -> None:
        self._bound = bound
        self._claiming = claiming

    def synced(self) -> None:
        """The first list is complete."""
        self._bound.synced()

    def upsert(self, item: PodRecord) -> None:
        """A pod came to this node or changed."""
        if isinstance(item, BoundPod):
            self._bound.upsert(item)
        else:
            self._claiming.put(item)

    def remove(self, key: str, last: PodRecord) -> None:
        """A pod has finished or is gone."""
        if isinstance(last, BoundPod):
            self._bound.remove(key, last)
        else:
            self._claiming.remove(last.uid)


class Watches:
    """The informers of ``node`` and of its pods."""

    def __init__(
        self,
        node: str,
        session: Session,
        nodes: Handler[ReportingNode],
        pods: Handler[PodRecord],
        metrics: Metrics,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._by_kind: dict[str, Informer[Any]] = {
            "nodes": Informer(
                session,
                "/api/v1/nodes",
                decode_reporting_node,
                nodes,
                params={"fieldSelector": f"metadata.name={node}"},
                clock=clock,
            ),
            "pods": Informer(
                session,
                "/api/v1/pods",
                decode_pod_record,
                pods,
                params={"fieldSelector": f"spec.nodeName={node}"},
                clock=clock,
            ),
        }

    def running(self) -> list[Coroutine[None, None, None]]:
        """What follows them until it is cancelled."""
        return [informer.run() for informer in self._by_kind.values()]

    async def synced(self) -> None:
        """Return once both are synced."""
        for informer in self._by_kind.values():
            await informer.synced.wait()

    def missing(self) -> list[str]:
        """What is not synced or not watched; one text each."""
        missing = []
        for kind, informer in self._by_kind.items():
            figures, what = informer.figures, _CALLED[kind]
            if not figures.synced:
                missing.append(
                    f"{what} not read yet: {figures.last_error or 'the API server has not answered'}"
                )
            elif figures.last_error:
                missing.append(f"{what} not watched: {figures.last_error}")
        return missing

    def count(self) -> None:
        """Update the metrics of the watches."""
        metrics = self._metrics
        for kind, informer in self._by_kind.items():
            figures = informer.figures
            received_s = figures.last_received_s
            silent_s = float("inf") if received_s is None else self._clock.monotonic() - received_s
            metrics.watch_last_event_age_s.set(kind, value=silent_s)
            metrics.watch_failing.set(kind, value=float(not figures.synced or bool(figures.last_error)))
            metrics.watched_objects.set(kind, value=figures.objects)
            metrics.watch_relists.set(kind, value=figures.relists)
