"""The pods of a workload that are there already: they count, and only those that it lacks are made.

A template that is another than theirs would be rolled out by its controller. Nothing of that is played through: they are taken as they
are, and in what they differ is told. Of templates only what decides about places is compared: a saved cluster has nothing else.
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

#: What the API server, or a plugin of it, gives pods besides what their templates say.
_GIVEN: Final = "node.kubernetes.io/"
_OURS: Final = (names.GPU_MEM, names.GPU_CORE, names.GPU_WHOLE)
_DEFAULT_SCHEDULER: Final = "default-scheduler"
#: The label by which each pod of a StatefulSet has its own name.
LABEL_POD_NAME: Final = "statefulset.kubernetes.io/pod-name"


class There(msgspec.Struct, frozen=True):
    """Of ``workload`` (``NAMESPACE/Kind NAME``), which wants ``asked`` pods, ``pods`` are there already and ``coming`` come.

    ``leaving`` of them are being deleted; ``differs`` says in what any is not as the template has it. ``ended``: the condition of a Job that
    has ended there (``Complete``, ``Failed``), for which no controller makes what comes here.
    """

    workload: str
    asked: int
    pods: int
    coming: int
    leaving: int = 0
    differs: tuple[str, ...] = ()
    ended: str = ""


def pods_by_workload(pods: Iterable[Json]) -> Mapping[str, Sequence[Json]]:
    """Pods by what made them, and by the Deployment behind that (``NAMESPACE/Kind NAME``)."""
    found: dict[str, list[Json]] = {}
    for pod in pods:
        owners = [
            f"{namespace_of(pod)}/{owner.get('kind')} {owner.get('name')}"
            for owner in pod["metadata"].get("ownerReferences") or ()
            if owner.get("controller")
        ]
        for key in {*owners, workload_of(pod)}:
            found.setdefault(key, []).append(pod)
    return found


def counted(kind: str, pods: Iterable[Json]) -> list[Json]:
    """Those of a workload's pods in whose place its controller makes none.

    A StatefulSet's pod has its name until it is gone; all others are made again as soon as they are being deleted.
    """
    return [pod for pod in pods if kind == "StatefulSet" or not is_leaving(pod)]


def is_leaving(pod: Json) -> bool:
    """Whether the pod is being deleted."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def missing(document: Json, asked: int, there: Sequence[Json], taken: Collection[str]) -> Iterator[int]:
    """The numbers of the pods that the workload lacks: a StatefulSet's ordinals, and others whose names are not ``taken``."""
    meta = document["metadata"]
    if document["kind"] == "StatefulSet":
        start = (spec_of(document).get("ordinals") or {}).get("start") or 0
        present = set(map(name_of, there))
        return (number for number in range(start, start + asked) if f"{meta['name']}-{number}" not in present)
    free = (
        number for number in count(len(there)) if f"{meta['namespace']}/{meta['name']}-{number}" not in taken
    )
    return islice(free, max(asked - len(there), 0))


def differences(made: Json, there: Iterable[Json]) -> tuple[str, ...]:
    """In what any pod of ``there`` is not as ``made``, a pod of the template that admission has let in."""
    found: dict[str, None] = {}
    for pod in there:
        found |= dict.fromkeys(_differences(made, pod))
    return tuple(found)


def _differences(made: Json, pod: Json) -> Iterator[str]:
    new, old = spec_of(made), spec_of(pod)
    asks, has = requests_of(made), requests_of(pod)
    if _asked(asks, asks) != _asked(has, asks):
        yield "resources"
    for field in ("nodeSelector", "affinity"):
        if (new.get(field) or {}) != (old.get(field) or {}):
            yield field
    wanted, found = _tolerations(made), _tolerations(pod)
    if not wanted <= found or any(
        not key.startswith(_GIVEN) and key not in has for key, *_ in found - wanted
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


def _asked(amounts: Amounts, wanted: Collection[str]) -> Amounts:
    """What is asked for of our resources and of those in ``wanted``: defaults of others are a namespace's."""
    return {name: amount for name, amount in amounts.items() if amount and (name in wanted or name in _OURS)}


def _tolerations(pod: Json) -> set[tuple[str, str, str, str]]:
    return {
        (
            one.get("key") or "",
            one.get("operator") or "Equal",
            one.get("value") or "",
            one.get("effect") or "",
        )
        for one in spec_of(pod).get("tolerations") or ()
    }
