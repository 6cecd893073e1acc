"""StatefulSets: pods with stable names, brought up, updated and taken down in order.

Pods that are made anew always follow the newest template: earlier revisions are not stored, so a
rolled-back update recreates from the template that is written, and ``partition`` only keeps running
pods from being replaced. Volume claim templates are not supported; a set with them is refused.
"""

from typing import Final

from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare_playground.cache import Cache
from gpushare_playground.controllers.freshest import Freshest
from gpushare_playground.controllers.podcontrol import PodControl, reference_to
from gpushare_playground.controllers.podstate import available_in_s, is_finished, is_ready
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

    def __init__(
        self, objects: Objects, sets: Cache, pods: PodControl, recorder: Recorder, clock: Clock
    ) -> None:
        self._sets = Freshest(STATEFUL_SETS, objects, sets)
        self._pods = pods
        self._recorder = recorder
        self._clock = clock

    async def reconcile(self, key: str) -> float | None:
        """Take the next steps that the order allows, and report the counts."""
        item = self._sets.get(key)
        if item is None:
            return None
        if spec_of(item).get("volumeClaimTemplates"):
            self._recorder.record(
                reference_to(STATEFUL_SETS, item),
                kind="Warning",
                reason="Unsupported",
                action="Reconciling",
                note="the playground has no volumes: remove volumeClaimTemplates from the StatefulSet",
            )
            return None
        revision = f"{name_of(item)}-{template_hash(spec_of(item).get('template'))}"
        named = ((ordinal_of(item, pod), pod) for pod in self._pods.owned(item))
        by_ordinal = {ordinal: pod for ordinal, pod in named if ordinal is not None}
        if not is_deleting(item):
            await self._step(item, by_ordinal, revision)
        return await self._report(item, revision)

    async def _step(self, item: Json, pods: dict[int, Json], revision: str) -> None:
        spec = spec_of(item)
        parallel = spec.get("podManagementPolicy") == "Parallel"
        start = int((spec.get("ordinals") or {}).get("start") or 0)
        wanted = range(start, start + int(spec.get("replicas", 1)))
        for ordinal in wanted:
            pod = pods.get(ordinal)
            if pod is None:
                await self._pods.create_named(item, _pod(item, ordinal, revision))
            elif is_finished(pod) and not self._pods.is_going(pod):
                await self._pods.delete(item, pod)
            elif self._is_healthy(item, pod):
                continue
            if not parallel:
                return
        surplus = sorted((ordinal for ordinal in pods if ordinal not in wanted), reverse=True)
        for ordinal in surplus:
            if not self._pods.is_going(pods[ordinal]):
                await self._pods.delete(item, pods[ordinal])
            if not parallel:
                return
        await self._update(item, {ordinal: pods[ordinal] for ordinal in wanted if ordinal in pods}, revision)

    async def _update(self, item: Json, pods: dict[int, Json], revision: str) -> None:
        """Replace the outdated pod with the highest ordinal, once those above it are well."""
        strategy = spec_of(item).get("updateStrategy") or {}
        if strategy.get("type") == "OnDelete":
            return
        partition = int((strategy.get("rollingUpdate") or {}).get("partition") or 0)
        for ordinal in sorted(pods, reverse=True):
            pod = pods[ordinal]
            if ordinal < partition:
                return
            if labels_of(pod).get(REVISION) != revision:
                if not self._pods.is_going(pod):
                    await self._pods.delete(item, pod)
                return
            if not self._is_healthy(item, pod):
                return

    def _is_healthy(self, item: Json, pod: Json) -> bool:
        return self._available_in_s(item, pod) == 0.0 and not self._pods.is_going(pod)

    def _available_in_s(self, item: Json, pod: Json) -> float | None:
        min_ready_s = float(spec_of(item).get("minReadySeconds") or 0)
        return available_in_s(pod, min_ready_s, self._clock.time_ns() / 1e9)

    async def _report(self, item: Json, revision: str) -> float | None:
        pods = [pod for pod in self._pods.owned(item) if ordinal_of(item, pod) is not None]
        waits = [self._available_in_s(item, pod) for pod in pods]
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
            "availableReplicas": sum(wait == 0.0 for wait in waits),
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
        return min((wait for wait in waits if wait), default=None)


def ordinal_of(item: Json, pod: Json) -> int | None:
    """The pod's number in the set, ``None`` when its name is not one that the set gives."""
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
