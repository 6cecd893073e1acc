"""Building blocks of the admission table: pods in short notation, and the messages that reject them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpushare.api import names
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request import choice_formats
from gpushare.api.request.unit_conversion import Counting

JsonObject = dict[str, Any]
Who = Literal["gpushare", "kubernetes"]

MEM, CORE, COUNT, WHOLE = names.GPU_MEM, names.GPU_CORE, names.GPU_COUNT, names.GPU_WHOLE
MEMORY, PERCENT = names.GPU_MEMORY, names.GPU_MEMORY_PERCENT
#: A reference GPU of 15 units.
COUNTING = Counting(MemoryUnit.GIB, 16160)
OURS, DEFAULT = names.SCHEDULER_NAME, "default-scheduler"


@dataclass(frozen=True)
class PodCase:
    """A pod; ``says`` empty: accepted, with ``scheduler`` in its spec then."""

    id: str
    containers: tuple[JsonObject, ...]
    init: tuple[JsonObject, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    says: str = ""
    by: Who = "gpushare"
    scheduler: str = DEFAULT
    units: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    """The containers in its annotation ``gpushare.dev/requested`` then."""
    warns: tuple[str, ...] = ()
    """Our warnings, in this order."""

    @property
    def refused(self) -> bool:
        return bool(self.says)


def box(
    name: str = "c",
    *,
    requests: Mapping[str, str] | None = None,
    sidecar: bool = False,
    mounts: tuple[str, ...] = (),
    env: tuple[str, ...] = (),
    claims: tuple[str, ...] = (),
    **limits: str,
) -> JsonObject:
    """A container with limits ``mem``, ``core``, ``count``, ``whole``, ``memory``, ``percent`` (and ``cpu``), as users write them."""
    resource_names = {
        "mem": MEM,
        "core": CORE,
        "count": COUNT,
        "whole": WHOLE,
        "memory": MEMORY,
        "percent": PERCENT,
    }
    resources: JsonObject = {}
    if limits:
        resources["limits"] = {resource_names.get(short, short): amount for short, amount in limits.items()}
    if requests:
        resources["requests"] = {
            resource_names.get(short, short): amount for short, amount in requests.items()
        }
    if claims:
        resources["claims"] = [{"name": claim} for claim in claims]
    made: JsonObject = {"name": name, "image": "busybox", "resources": resources}
    if sidecar:
        made["restartPolicy"] = "Always"
    if mounts:
        made["volumeMounts"] = [{"name": "scratch", "mountPath": path} for path in mounts]
    if env:
        made["env"] = [{"name": variable, "value": "0"} for variable in env]
    return made


def mib_words(*requests: tuple[str, str]) -> str:
    """The message about memory that is not a whole number of MiB, of ``(container, amount)``."""
    containers = ", ".join(f"container {name} requests {amount}" for name, amount in requests)
    return f"{MEMORY} must be a whole number of MiB up to 16Ti, such as 6144Mi or 6Gi: {containers}"


def percent_words(*requests: tuple[str, str]) -> str:
    containers = ", ".join(f"container {name} requests {amount}" for name, amount in requests)
    return f"{PERCENT} must be a whole number from 1 to 100: {containers}"


def ways_words(*requests: tuple[str, str]) -> str:
    """The message about memory requested twice, of ``(container, resources)``."""
    containers = ", ".join(f"container {name} requests {resources}" for name, resources in requests)
    return f"GPU memory must be requested in only one way per container: {containers}; keep one of them"


def small_words(containers: str) -> str:
    return f"{PERCENT} is less than one unit of 1GiB on a GPU of 16160 MiB: {containers}; request 7 or more"


def core_words(*requests: tuple[str, str]) -> str:
    """The message about a wrong compute share, of ``(container, amount)``."""
    containers = ", ".join(f"container {name} requests {amount}" for name, amount in requests)
    return f"{CORE} must be a multiple of 5 from 5 to 100: {containers}"


def lonely_words(containers: str) -> str:
    return f"{CORE} requires {MEM} in the same container: add {MEM} to the limits of {containers}"


def kinds_words(both: str, alone: str) -> str:
    return (
        f"either all GPU containers of a pod request {CORE} or none does: with it {both}, without it {alone}; "
        "add it to all of them, or to none"
    )


def whole_words(whole: str, shared: str) -> str:
    return (
        f"{WHOLE} cannot be combined with {MEM}, because no node offers both: whole GPUs for {whole}, a share for {shared}; "
        "use the same one in all containers"
    )


def count_words(value: str) -> str:
    return (
        f"label {COUNT} must be a whole number from 1 to 9999, without leading zeros: it is '{value}'; "
        "write the number of GPUs, or remove the label"
    )


def uneven_words(count: str, containers: str) -> str:
    return (
        f"label {COUNT}={count} spreads {MEM} over {count} GPUs equally, in whole units: {containers}; "
        f"use a multiple of {count}, or change the label"
    )


def spread_core_words(count: str, containers: str) -> str:
    return (
        f"label {COUNT}={count} and {CORE} exclude each other: remove the label, or {CORE} from {containers}"
    )


def placement_words(value: str) -> str:
    return (
        f"label {names.LABEL_POD_PLACEMENT} accepts only the value {names.POD_PLACEMENT_WHOLE_DEVICE}: it is '{value}'; "
        "correct it, or remove the label"
    )


def class_words(value: str) -> str:
    label = names.LABEL_POD_COMPUTE_CLASS
    return f"label {label} must be 'latency' or 'batch': it is '{value}'; correct it, or remove the label"


def choice_words(name: str, value: str) -> str:
    what = choice_formats.FORMATS[name].words
    return f"annotation {name} must be {what}: it is '{value}'; correct it, or remove the annotation"


def hiding_words(*mounted: tuple[str, str]) -> str:
    """The message about volumes over files of the isolation, of ``(container, paths)``."""
    containers = "; ".join(f"container {name} mounts {paths}" for name, paths in mounted)
    return f"volumes would hide the isolation files: {containers}; use other mount paths"


def node_words(node: str) -> str:
    return (
        f"spec.nodeName is {node}: no scheduler would allocate a GPU to the pod; "
        "remove it, and select nodes with nodeSelector or affinity"
    )


def resource_words(containers: str) -> str:
    return (
        f"{COUNT} cannot be requested by containers: remove it from the limits of {containers}, "
        "and set the pod's label of that name to spread a pod over GPUs"
    )


def carried_words(*annotations: str) -> str:
    return (
        f"annotations that only gpushare itself writes: {', '.join(annotations)}; remove them and resubmit "
        "(manifests exported from a cluster contain them)"
    )


#: Every annotation that records a pod's share, in the order of messages.
RECORDS = (
    names.ANN_SHARE,
    names.ANN_ALSO,
    names.ANN_RETRY,
    names.ANN_ALLOCATION,
    names.ANN_ASSIGNED,
    names.ANN_ASSUME_TIME,
    names.ANN_CORE,
    names.ANN_MEM_INDEX,
    names.ANN_MEM_POD,
    names.ANN_MEM_DEVICE,
    names.ANN_MEM_ASSIGNED,
    names.ANN_MEM_ASSUME_TIME,
)

SCRATCH = {"volumes": [{"name": "scratch", "emptyDir": {}}]}
CLAIM = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "share"}]}
PLACED = {names.LABEL_POD_PLACEMENT: names.POD_PLACEMENT_WHOLE_DEVICE}


def counted(case: PodCase, stored: Any) -> str:
    """The problem with the units of the ``stored`` pod of ``case``; empty if they are as in the table."""
    containers = [*stored["spec"]["containers"], *stored["spec"].get("initContainers", ())]
    resources_of = {one["name"]: one.get("resources", {}) for one in containers}
    for name, resources in resources_of.items():
        amounts = [resources.get(which) or {} for which in ("limits", "requests")]
        if any(one in amount for amount in amounts for one in (MEMORY, PERCENT)):
            return f"container {name} still requests MiB or percent: {resources}"
    if not case.units:
        return (
            ""
            if names.ANN_REQUESTED not in (stored["metadata"].get("annotations") or {})
            else "a note is there"
        )
    for which in ("limits", "requests"):
        found = {
            name: str(one[which][MEM]) for name, one in resources_of.items() if MEM in one.get(which, {})
        }
        if found != case.units:
            return f"{which} {found}, not {dict(case.units)}"
    note = f'{{"unitMib":1024,"cardMib":16160,"containers":{case.note}}}'
    annotations = stored["metadata"]["annotations"]
    if {**case.annotations, names.ANN_REQUESTED: note} != annotations:
        return f"annotations {annotations}"
    return ""
