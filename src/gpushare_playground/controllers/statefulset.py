"""StatefulSets: pods with stable names, started, updated and stopped in order.

New pods always use the newest template: earlier revisions are not stored. A set with volume claim templates
or an update strategy other than a complete rolling update is rejected.
"""

from typing import Final

from gpushare.kube.event_recorder import Recorder
from gpushare_playground.cache import Cache
from gpushare_playground.controllers.latest_version import LatestVersions
from gpushare_playground.controllers.podcontrol import PodControl, reference_to
from gpushare_playground.controllers.podstate import is_finished, is_ready
from gpushare_playground.controllers.podtemplate import pod_from, template_hash
from gpushare_playground.objects import (
    STATEFUL_SETS,
    Json,
    Objects,
    is_deleting,
    labels_of,
    name_of,
    spec_of,
    status_of,
)

POD_NAME: Final = "statefulset.kubernetes.io/pod-name"
POD_INDEX: Final = "apps.kubernetes.io/pod-index"
REVISION: Final = "controller-revision-hash"


class StatefulSets:
    """Reconciles StatefulSets."""

    name = "statefulset"

    def __init__(self, objects: Objects, sets: Cache, pods: PodControl, recorder: Recorder) -> None:
        self._sets = LatestVersions(STATEFUL_SETS, objects, sets)
        self._pods = pods
        self._recorder = recorder

    async def reconcile(self, key: str) -> float | None:
        """Take the next steps that the order allows, and report the counts."""
        item = self._sets.get(key)
        if item is None:
            return None
        missing = unsupported(item)
        if missing:
            self._recorder.record(
                reference_to(STATEFUL_SETS, item),
                kind="Warning",
                reason="Unsupported",
                action="Reconciling",
                note=f"{missing} is not supported by the playground; remove it from the StatefulSet",
            )
            return None
        revision = f"{name_of(item)}-{template_hash(spec_of(item).get('template'))}"
        named = ((ordinal_of(item, pod), pod) for pod in self._pods.owned(item))
        by_ordinal = {ordinal: pod for ordinal, pod in named if ordinal is not None}
        if not is_deleting(item):
            await self._step(item, by_ordinal, revision)
        await self._report(item, revision)
        return None

    async def _step(self, item: Json, pods: dict[int, Json], revision: str) -> None:
        spec = spec_of(item)
        parallel = spec.get("podManagementPolicy") == "Parallel"
        wanted = range(int(spec.get("replicas", 1)))
        for ordinal in wanted:
            pod = pods.get(ordinal)
            if pod is None:
                await self._pods.create_named(item, _pod(item, ordinal, revision))
            elif is_finished(pod) and not self._pods.is_going(pod):
                await self._pods.delete(item, pod)
            elif self._is_healthy(pod):
                continue
            if not parallel:
                return
        surplus = sorted((ordinal for ordinal in pods if ordinal not in wanted), reverse=True)
        for ordinal in surplus:
            if not self._pods.is_going(pods[ordinal]):
                await self._pods.delete(item, pods[ordinal])
            if not parallel:
                return
        await self._update(item, [pods[ordinal] for ordinal in reversed(wanted) if ordinal in pods], revision)

    async def _update(self, item: Json, pods: list[Json], revision: str) -> None:
        """Replace the first outdated pod, once those before it are healthy; highest ordinal first."""
        for pod in pods:
            if labels_of(pod).get(REVISION) != revision:
                if not self._pods.is_going(pod):
                    await self._pods.delete(item, pod)
                return
            if not self._is_healthy(pod):
                return

    def _is_healthy(self, pod: Json) -> bool:
        return is_ready(pod) and not self._pods.is_going(pod)

    async def _report(self, item: Json, revision: str) -> None:
        pods = [pod for pod in self._pods.owned(item) if ordinal_of(item, pod) is not None]
        old = status_of(item)
        updated = sum(labels_of(pod).get(REVISION) == revision for pod in pods)
        current = str(old.get("currentRevision") or revision)
        replicas = int(spec_of(item).get("replicas", 1))
        ready = sum(is_ready(pod) for pod in pods)
        if updated == len(pods) == ready == replicas:
            current = revision
        status: Json = {
            **{name: old[name] for name in ("conditions", "collisionCount") if name in old},
            "observedGeneration": item["metadata"].get("generation", 0),
            "replicas": len(pods),
            "availableReplicas": ready,
            "currentRevision": current,
            "updateRevision": revision,
        }
        counts = {
            "readyReplicas": ready,
            "currentReplicas": sum(labels_of(pod).get(REVISION) == current for pod in pods),
            "updatedReplicas": updated,
        }
        status |= {name: count for name, count in counts.items() if count}
        status.setdefault("collisionCount", 0)
        await self._sets.write_status(item, status)


def unsupported(item: Json) -> str:
    """The field that the set uses and that is not implemented here; empty if it uses none."""
    spec = spec_of(item)
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type") == "OnDelete":
        return "updateStrategy: OnDelete"
    if (strategy.get("rollingUpdate") or {}).get("partition"):
        return "updateStrategy.rollingUpdate.partition"
    return next((name for name in ("volumeClaimTemplates", "ordinals") if spec.get(name)), "")


def ordinal_of(item: Json, pod: Json) -> int | None:
    """The pod's number in the set, ``None`` if its name is not one of the set's."""
    prefix, _, number = name_of(pod).rpartition("-")
    return int(number) if prefix == name_of(item) and number.isdecimal() else None


def _pod(item: Json, ordinal: int, revision: str) -> Json:
    name = f"{name_of(item)}-{ordinal}"
    labels = {POD_NAME: name, POD_INDEX: str(ordinal), REVISION: revision}
    pod = pod_from(STATEFUL_SETS, item, spec_of(item).get("template") or {}, name, labels=labels)
    pod["spec"]["hostname"] = name
    service = spec_of(item).get("serviceName")
    if service:
        pod["spec"]["subdomain"] = service
    return pod
