"""Existing pods of a workload: they count, and only those that it lacks are created.

If the template differs from theirs the controller would start a rollout, which is not simulated: the pods are taken as they are, and
the differences are reported. Only fields of the template that matter for placement are compared, as a saved cluster has no others.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.json_objects import Json, labels_of, name_of, namespace_of, spec_of
from gpushare.kubescheduler.node_usage import host_ports_of, priority_of
from gpushare.kubescheduler.resources import Amounts, requests_of
from gpushare.simulate.snapshot import workload_of

#: Prefix of tolerations that the API server, or a plugin of it, adds to those of the template.
_ADDED_TOLERATIONS: Final = "node.kubernetes.io/"
_OURS: Final = (names.GPU_MEM, names.GPU_CORE, names.GPU_WHOLE)
_DEFAULT_SCHEDULER: Final = "default-scheduler"
#: The label that contains the name of a StatefulSet's pod.
LABEL_POD_NAME: Final = "statefulset.kubernetes.io/pod-name"


class ExistingPods(msgspec.Struct, frozen=True):
    """Pods of ``workload`` (``NAMESPACE/Kind NAME``), which requests ``asked`` pods: ``pods`` exist and ``coming`` are created.

    ``leaving`` of them are terminating; ``differs`` names the differences from the template. ``ended``: the condition of a Job that has
    ended in the cluster (``Complete``, ``Failed``), so that no controller would create the pods that are added here.
    """

    workload: str
    asked: int
    pods: int
    coming: int
    leaving: int = 0
    differs: tuple[str, ...] = ()
    ended: str = ""


def pods_by_workload(pods: Iterable[Json]) -> Mapping[str, Sequence[Json]]:
    """Pods by their controller, and by the Deployment that owns it (``NAMESPACE/Kind NAME``)."""
    workload_pods: dict[str, list[Json]] = {}
    for pod in pods:
        owners = [
            f"{namespace_of(pod)}/{owner.get('kind')} {owner.get('name')}"
            for owner in pod["metadata"].get("ownerReferences") or ()
            if owner.get("controller")
        ]
        for key in {*owners, workload_of(pod)}:
            workload_pods.setdefault(key, []).append(pod)
    return workload_pods


def counted(kind: str, pods: Iterable[Json]) -> list[Json]:
    """Those of a workload's pods that its controller does not replace.

    A StatefulSet's pod keeps its name until it is gone; other pods are replaced as soon as they are terminating.
    """
    return [pod for pod in pods if kind == "StatefulSet" or not is_terminating(pod)]


def is_terminating(pod: Json) -> bool:
    """Whether the pod is terminating."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def missing(document: Json, replicas: int, existing: Sequence[Json], taken: Collection[str]) -> Iterator[int]:
    """The numbers of the pods that the workload lacks: a StatefulSet's ordinals, for others any whose names are not ``taken``."""
    meta = document["metadata"]
    if document["kind"] == "StatefulSet":
        start = (spec_of(document).get("ordinals") or {}).get("start") or 0
        present = set(map(name_of, existing))
        return (
            number for number in range(start, start + replicas) if f"{meta['name']}-{number}" not in present
        )
    free = (
        number
        for number in count(len(existing))
        if f"{meta['namespace']}/{meta['name']}-{number}" not in taken
    )
    return islice(free, max(replicas - len(existing), 0))


def differences(made: Json, existing: Iterable[Json]) -> tuple[str, ...]:
    """The differences of any pod of ``existing`` from ``made``, a pod of the template after admission."""
    fields: dict[str, None] = {}
    for pod in existing:
        fields |= dict.fromkeys(_differences(made, pod))
    return tuple(fields)


def _differences(made: Json, pod: Json) -> Iterator[str]:
    new, old = spec_of(made), spec_of(pod)
    requested, has = requests_of(made), requests_of(pod)
    if _relevant(requested, requested) != _relevant(has, requested):
        yield "resources"
    for field in ("nodeSelector", "affinity"):
        if (new.get(field) or {}) != (old.get(field) or {}):
            yield field
    wanted, actual = _tolerations(made), _tolerations(pod)
    if not wanted <= actual or any(
        not key.startswith(_ADDED_TOLERATIONS) and key not in has for key, *_ in actual - wanted
    ):
        yield "tolerations"
    if host_ports_of(made) != host_ports_of(pod):
        yield "ports"
    if priority_of(made) != priority_of(pod):
        yield "priority"
    if (new.get("schedulerName") or _DEFAULT_SCHEDULER) != (old.get("schedulerName") or _DEFAULT_SCHEDULER):
        yield "schedulerName"
    if any(labels_of(pod).get(key) != text for key, text in labels_of(made).items() if key != LABEL_POD_NAME):
        yield "labels"


def _relevant(amounts: Amounts, wanted: Collection[str]) -> Amounts:
    """The requests for our resources and those in ``wanted``; others may be defaults of the namespace."""
    return {name: amount for name, amount in amounts.items() if amount and (name in wanted or name in _OURS)}


def _tolerations(pod: Json) -> set[tuple[str, str, str, str]]:
    return {
        (
            toleration.get("key") or "",
            toleration.get("operator") or "Equal",
            toleration.get("value") or "",
            toleration.get("effect") or "",
        )
        for toleration in spec_of(pod).get("tolerations") or ()
    }
