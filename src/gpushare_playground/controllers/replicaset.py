"""ReplicaSets: the requested number of pods."""

from typing import Final

from gpushare_playground.cache import Cache
from gpushare_playground.controllers.latest_version import LatestVersions
from gpushare_playground.controllers.podcontrol import PodControl
from gpushare_playground.controllers.podstate import is_finished, is_ready, phase_of, restarts_of
from gpushare_playground.controllers.podtemplate import pod_from
from gpushare_playground.objects import (
    REPLICA_SETS,
    Json,
    Objects,
    annotations_of,
    condition_of,
    is_deleting,
    labels_of,
    name_of,
    seconds_of,
    spec_of,
    status_of,
)

#: Pods created at once, so that a large set does not delay the others.
BURST: Final = 50
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"


class ReplicaSets:
    """Reconciles ReplicaSets."""

    name = "replicaset"

    def __init__(self, objects: Objects, sets: Cache, pods: PodControl) -> None:
        self._sets = LatestVersions(REPLICA_SETS, objects, sets)
        self._pods = pods

    async def reconcile(self, key: str) -> float | None:
        """Create missing pods, delete surplus ones, report the counts."""
        item = self._sets.get(key)
        if item is None:
            return None
        pods = [pod for pod in self._pods.owned(item) if not is_finished(pod)]
        active = [pod for pod in pods if not self._pods.is_going(pod)]
        missing = 0
        if not is_deleting(item):
            missing = int(spec_of(item).get("replicas", 1)) - len(active)
        for _ in range(min(missing, BURST)):
            await self._pods.create_generated(item, f"{name_of(item)}-", lambda name: _pod(item, name))
        for pod in sorted(active, key=deletion_order)[: max(-missing, 0)]:
            await self._pods.delete(item, pod)
        remaining = active if missing >= 0 else [pod for pod in active if not self._pods.is_going(pod)]
        await self._sets.write_status(item, _status(item, remaining, len(pods) - len(remaining)))
        return 0.0 if missing > BURST else None


def deletion_order(pod: Json) -> tuple[object, ...]:
    """Sorts pods so that the least valuable comes first, as Kubernetes ranks them.

    Unscheduled, pending, not ready, low deletion cost, often restarted, young.
    """
    cost = annotations_of(pod).get(DELETION_COST, "0")
    created = seconds_of(pod["metadata"].get("creationTimestamp")) or 0.0
    ready_since = seconds_of((condition_of(pod, "Ready") or {}).get("lastTransitionTime")) or 0.0
    return (
        bool(spec_of(pod).get("nodeName")),
        {"Pending": 0, "Unknown": 1}.get(phase_of(pod), 2),
        is_ready(pod),
        int(cost) if cost.lstrip("+-").isdecimal() else 0,
        -ready_since if is_ready(pod) else 0.0,
        -restarts_of(pod),
        -created,
        name_of(pod),
    )


def _pod(item: Json, name: str) -> Json:
    return pod_from(REPLICA_SETS, item, spec_of(item).get("template") or {}, name)


def _status(item: Json, pods: list[Json], going: int) -> Json:
    described = ((spec_of(item).get("template") or {}).get("metadata") or {}).get("labels") or {}
    status = {key: value for key, value in status_of(item).items() if key == "conditions"}
    ready = sum(is_ready(pod) for pod in pods)
    counts = {
        "fullyLabeledReplicas": sum(described.items() <= dict(labels_of(pod)).items() for pod in pods),
        "readyReplicas": ready,
        "availableReplicas": ready,
    }
    status["terminatingReplicas"] = going
    status["replicas"] = len(pods)
    status["observedGeneration"] = item["metadata"].get("generation", 0)
    # Counts of 0 are omitted, except replicas.
    return {**status, **{name: count for name, count in counts.items() if count}}
