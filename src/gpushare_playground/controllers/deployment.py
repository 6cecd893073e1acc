"""Deployments: ReplicaSets of successive templates, each replacing the previous one."""

import time
from collections.abc import Iterable
from typing import Final

from gpushare.kube.client.errors import ApiError
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare_playground.cache import Cache, Expectations
from gpushare_playground.controllers.latest_version import LatestVersions
from gpushare_playground.controllers.podcontrol import reference_to
from gpushare_playground.controllers.podtemplate import template_hash
from gpushare_playground.controllers.rollout import Limits, SetSize, limits_of, recreate, roll
from gpushare_playground.objects import (
    DEPLOYMENTS,
    REPLICA_SETS,
    Json,
    Objects,
    annotations_of,
    condition_of,
    controller_reference,
    is_deleting,
    name_of,
    namespace_of,
    spec_of,
    status_of,
    time_text,
    uid_of,
    with_condition,
)

HASH_LABEL: Final = "pod-template-hash"
REVISION: Final = "deployment.kubernetes.io/revision"
DESIRED: Final = "deployment.kubernetes.io/desired-replicas"
MOST: Final = "deployment.kubernetes.io/max-replicas"


class Deployments:
    """Reconciles Deployments."""

    name = "deployment"

    def __init__(
        self,
        objects: Objects,
        deployments: Cache,
        sets: Cache,
        pods: Cache,
        recorder: Recorder,
        clock: Clock,
    ) -> None:
        self._objects = objects
        self._deployments = LatestVersions(DEPLOYMENTS, objects, deployments)
        self._sets = LatestVersions(REPLICA_SETS, objects, sets)
        self._made = Expectations(sets, time.monotonic)
        self._pods = pods
        self._recorder = recorder
        self._clock = clock

    async def reconcile(self, key: str) -> float | None:
        """Take the next step of the rollout and report its progress."""
        item = self._deployments.get(key)
        if item is None or is_deleting(item):
            return None
        owned = {
            name_of(replica_set): self._sets.newer(replica_set)
            for replica_set in self._made.owned(uid_of(item))
        }
        name = f"{name_of(item)}-{template_hash(spec_of(item).get('template'))}"
        new = owned.pop(name, None)
        old = sorted(owned.values(), key=_revision)
        if not spec_of(item).get("paused"):
            item, new = await self._ensure_new(item, name, new, old)
            new = await self._resize(item, new, old)
            await self._drop_history(item, old)
        await self._report(item, new, old)
        return None

    async def _ensure_new(
        self, item: Json, name: str, new: Json | None, old: list[Json]
    ) -> tuple[Json, Json]:
        """The ReplicaSet of the current template, with the highest revision of all."""
        highest = max(map(_revision, old), default=0)
        if new is None:
            new = await self._create(item, name, highest + 1, old)
        elif _revision(new) <= highest:
            new = await self._sets.merge(new, {"metadata": {"annotations": {REVISION: str(highest + 1)}}})
        revision = annotations_of(new).get(REVISION, "1")
        if annotations_of(item).get(REVISION) != revision:
            item = await self._deployments.merge(item, {"metadata": {"annotations": {REVISION: revision}}})
        return item, new

    async def _create(self, item: Json, name: str, revision: int, old: list[Json]) -> Json:
        replicas = _first_size(item, name, old)
        template = spec_of(item).get("template") or {}
        hash_label = {HASH_LABEL: name.removeprefix(f"{name_of(item)}-")}
        metadata = template.get("metadata") or {}
        labels = {**(metadata.get("labels") or {}), **hash_label}
        selector = spec_of(item).get("selector") or {}
        match_labels = {**(selector.get("matchLabels") or {}), **hash_label}
        body: Json = {
            "metadata": {
                "name": name,
                "namespace": namespace_of(item),
                "labels": labels,
                "annotations": {REVISION: str(revision), **_sizes_noted(item)},
                "ownerReferences": [controller_reference(DEPLOYMENTS, item)],
            },
            "spec": {
                "replicas": replicas,
                "selector": {**selector, "matchLabels": match_labels},
                "template": {**template, "metadata": {**metadata, "labels": labels}},
            },
        }
        try:
            made = await self._objects.create(REPLICA_SETS, namespace_of(item), body)
        except ApiError as error:
            if not error.conflict:
                raise
            # An earlier request of ours whose response was lost, or a set that someone else created.
            made = await self._objects.get(REPLICA_SETS, namespace_of(item), name)
        else:
            if replicas:
                self._record_scaling(item, name, 0, replicas)
        self._made.created(uid_of(item), made)
        return made

    async def _resize(self, item: Json, new: Json, old: list[Json]) -> Json:
        replicas = int(spec_of(item).get("replicas", 1))
        strategy = spec_of(item).get("strategy") or {}
        sizes = [_size(replica_set) for replica_set in old]
        if strategy.get("type") == "Recreate":
            old_pods = sum(len(list(self._pods.controlled_by(uid_of(replica_set)))) for replica_set in old)
            wanted = recreate(replicas, _size(new), sizes, old_pods)
        else:
            wanted = roll(_limits(item), _size(new), sizes)
        for replica_set in (new, *old):
            if name_of(replica_set) in wanted:
                scaled = await self._scale(item, replica_set, wanted[name_of(replica_set)])
                new = scaled if replica_set is new else new
        return new

    async def _scale(self, item: Json, replica_set: Json, replicas: int) -> Json:
        before = int(spec_of(replica_set).get("replicas", 0))
        change = {"metadata": {"annotations": _sizes_noted(item)}, "spec": {"replicas": replicas}}
        scaled = await self._sets.merge(replica_set, change)
        self._record_scaling(item, name_of(replica_set), before, replicas)
        return scaled

    def _record_scaling(self, item: Json, name: str, before: int, replicas: int) -> None:
        direction = "up" if replicas > before else "down"
        self._recorder.record(
            reference_to(DEPLOYMENTS, item),
            kind="Normal",
            reason="ScalingReplicaSet",
            action="ScalingReplicaSet",
            note=f"Scaled {direction} replica set {name} from {before} to {replicas}",
        )

    async def _drop_history(self, item: Json, old: list[Json]) -> None:
        limit = int(spec_of(item).get("revisionHistoryLimit", 10))
        idle = [
            replica_set
            for replica_set in old
            if not spec_of(replica_set).get("replicas") and not status_of(replica_set).get("replicas")
        ]
        for replica_set in idle[: max(len(idle) - limit, 0)]:
            await self._objects.delete(REPLICA_SETS, replica_set)

    async def _report(self, item: Json, new: Json | None, old: list[Json]) -> None:
        now = self._clock.time_ns()
        sets = [*([new] if new is not None else []), *(self._sets.newer(replica_set) for replica_set in old)]
        status = _counts(item, new, sets)
        conditions = with_condition(status_of(item).get("conditions") or [], _available(item, status, now))
        if new is not None:
            conditions = with_condition(conditions, _progress(item, new, status, now))
        status["conditions"] = conditions
        await self._deployments.write_status(item, status)


def _revision(replica_set: Json) -> int:
    text = annotations_of(replica_set).get(REVISION, "0")
    return int(text) if text.isdecimal() else 0


def _size(replica_set: Json) -> SetSize:
    return SetSize(
        name_of(replica_set),
        int(spec_of(replica_set).get("replicas", 0)),
        int(status_of(replica_set).get("availableReplicas") or 0),
    )


def _limits(item: Json) -> Limits:
    replicas = int(spec_of(item).get("replicas", 1))
    rolling = (spec_of(item).get("strategy") or {}).get("rollingUpdate") or {}
    return limits_of(replicas, rolling.get("maxSurge", "25%"), rolling.get("maxUnavailable", "25%"))


def _recreates(item: Json) -> bool:
    return (spec_of(item).get("strategy") or {}).get("type") == "Recreate"


def _first_size(item: Json, name: str, old: list[Json]) -> int:
    """The replicas with which a new ReplicaSet is created."""
    if _recreates(item):
        return 0
    return roll(_limits(item), SetSize(name, 0, 0), [_size(replica_set) for replica_set in old]).get(name, 0)


def _sizes_noted(item: Json) -> dict[str, str]:
    """Annotations of a ReplicaSet with its Deployment's size."""
    limits = _limits(item)
    most_pods = limits.replicas + (0 if _recreates(item) else limits.surge)
    return {DESIRED: str(limits.replicas), MOST: str(most_pods)}


def _sum(sets: Iterable[Json], count: str) -> int:
    return sum(int(status_of(replica_set).get(count) or 0) for replica_set in sets)


def _counts(item: Json, new: Json | None, sets: list[Json]) -> Json:
    replicas = int(spec_of(item).get("replicas", 1))
    available = _sum(sets, "availableReplicas")
    counts = {
        "replicas": _sum(sets, "replicas"),
        "updatedReplicas": _sum([new] if new else [], "replicas"),
        "readyReplicas": _sum(sets, "readyReplicas"),
        "availableReplicas": available,
        "unavailableReplicas": max(replicas - available, 0),
    }
    collision_count = {name: value for name, value in status_of(item).items() if name == "collisionCount"}
    collision_count["observedGeneration"] = item["metadata"].get("generation", 0)
    collision_count["terminatingReplicas"] = _sum(sets, "terminatingReplicas")
    return {**collision_count, **{name: n for name, n in counts.items() if n}}


def _condition(kind: str, *, status: bool, reason: str, message: str, now: int) -> Json:
    return {
        "type": kind,
        "status": "True" if status else "False",
        "reason": reason,
        "message": message,
        "lastUpdateTime": time_text(now),
        "lastTransitionTime": time_text(now),
    }


def _available(item: Json, status: Json, now: int) -> Json:
    replicas = int(spec_of(item).get("replicas", 1))
    least = replicas if _recreates(item) else replicas - _limits(item).unavailable
    enough = int(status.get("availableReplicas") or 0) >= least
    reason = "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable"
    has = "has" if enough else "does not have"
    message = f"Deployment {has} minimum availability."
    return _unless_same(item, _condition("Available", status=enough, reason=reason, message=message, now=now))


def _progress(item: Json, new: Json, status: Json, now: int) -> Json:
    """The Progressing condition, by which ``kubectl rollout status`` knows when to end."""
    replicas = int(spec_of(item).get("replicas", 1))
    subject = f'ReplicaSet "{name_of(new)}"'
    counts = [int(status.get(name) or 0) for name in ("updatedReplicas", "replicas", "availableReplicas")]
    done = counts == [replicas] * 3
    reason = "NewReplicaSetAvailable" if done else "ReplicaSetUpdated"
    message = f"{subject} has successfully progressed." if done else f"{subject} is progressing."
    return _unless_same(item, _condition("Progressing", status=True, reason=reason, message=message, now=now))


def _unless_same(item: Json, condition: Json) -> Json:
    """``condition``, or the existing one if only its times would change."""
    before = condition_of(item, condition["type"])
    if before is not None and all(before.get(n) == condition[n] for n in ("status", "reason", "message")):
        return before
    return condition
