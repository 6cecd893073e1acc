"""Slips in what a pod says: valid for Kubernetes, read by nobody or served by no node. Pure.

Whoever admits tells them as warnings, at once and with nothing held up (docs/decisions/0035); the doctor tells them of pods that
wait. The chart says the same in CEL (``templates/admission/_slips.tpl``), word for word; ``tests/admission_cases.py`` holds all
to one table. So nearness is told by patterns that both know, RE2's and Python's alike, not by a distance of letters.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from gpushare.model import names
from gpushare.model.asked import MOST_GPU_MIB
from gpushare.model.errors import InvalidQuantity, InvalidRequest
from gpushare.model.gang import gang_of
from gpushare.model.objects import Container, Pod
from gpushare.model.quantity import MemoryUnit, parse_quantity
from gpushare.model.requested import PEOPLES
from gpushare.model.selecting import unmet

#: What containers may ask for; of ``aliyun.com/gpu-count`` a rule of its own speaks.
_RESOURCES: Final = (names.GPU_MEM, names.GPU_CORE, names.GPU_WHOLE, names.GPU_COUNT, *PEOPLES)
_LIKE_RESOURCES: Final = re.compile(
    r"(?i)^(gpushare\.dev/|(al[iy][a-z]*n(\.[a-z]+)*|gpu-?share[a-z.-]*)/[cv]?(gpu|gup|pgu))"
)
#: What a pod may carry, people's first; components write the rest.
_LABELS: Final = (
    names.LABEL_ADMISSION,
    names.LABEL_POD_GPU_COUNT,
    names.LABEL_POD_PLACEMENT,
    names.LABEL_POD_APART,
    names.LABEL_STANDS_FOR,
)
_ANNOTATIONS: Final = (
    names.ANN_DEFRAGMENTATION,
    names.ANN_SHARE,
    names.ANN_ALSO,
    names.ANN_RETRY,
    names.ANN_REQUESTED,
    names.ANN_ROOM_MADE,
    names.ANN_STANDS_FOR,
    names.ANN_COST_WRITTEN,
    names.ANN_UNIT_LABELS,
    "gpushare.dev/config-checksum",  # the chart's own, on the scheduler's pods
)
_LIKE_KEYS: Final = re.compile(
    r"(?i)^(gpu-?sh?are?s?\.(dev|io|org)/.*(adm|dmi|frag|gpu|mem|core|cordon|pod|mode|place|sched)|ack\.(node\.gpu|gpu[-.]?share)\.|aliyun\.com/gpu(-mem|-core\.percentage|s?[-_.]?(counts?|num|number))$)"
)
_LIKE_SCHEDULER: Final = re.compile(
    r"(?i)^(ac?k[-_.]?(gpu[-_.]?)?(co|gpu-?share)?[-_.]?s(ch?|h)ed[a-z]*|(ack[-_.]?)?co[-_.]?s(ch?|h)ed[a-z]*|gpu-?share(-?s(ch?|h)ed[a-z]*)?)$"
)
_ON_NODES: Final = (names.LABEL_MAX_NODE_PODS, names.ANN_CORDONED)
_COUNT: Final = re.compile(r"[1-9][0-9]{0,3}")
#: What the limit takes a context to cost where the driver does not tell (``isolation/hook_contexts.c``, UNMEASURED_BYTES).
CONTEXT_MIB: Final = 512
_ASKS: Final = ("aliyun.com/gpu", "gpushare.dev/gpu-memory")
#: Of ``gpushare.dev/admission``: the one that says something, and its contrary, which says what is so anyway.
_ADMISSIONS: Final = ("disabled", "enabled")
_WISHES: Final = ("true", "false")


def slips_of(pod: Pod, unit: MemoryUnit) -> list[str]:
    """What in ``pod``, or in a template of pods, can only be a slip, each with what to write instead.

    ``unit`` is the one in which the cluster counts memory.
    """
    return slips_besides_nodes(pod, unit) + ([text] if (text := unmet(pod)) else [])


def slips_besides_nodes(pod: Pod, unit: MemoryUnit) -> list[str]:
    """As ``slips_of``, for whoever says more of the nodes that a pod wants (``selecting.mistyped``)."""
    told = (
        _unknown_resources(pod),
        _too_large(pod, unit),
        _too_small(pod, unit),
        _gang(pod),
        _scheduler(pod),
    )
    return [text for text in told if text] + unheeded(pod)


def unheeded(pod: Pod) -> list[str]:
    """Of ``slips_of`` those in labels and annotations."""
    return [text for text in (_unread(pod), _admission(pod), _defragmentation(pod)) if text]


def _unknown_resources(pod: Pod) -> str:
    strange = [
        f"container {container.name} asks for {' and '.join(unknown)}"
        for container, limits in _limited(pod)
        if (unknown := [f"{one} (write {meant(one)})" for one in limits if is_unknown(one)])
    ]
    if not strange:
        return ""
    return f"gpushare knows no such resource, and a pod waits for ever for what no node offers: {', '.join(strange)}"


def is_unknown(resource: str) -> bool:
    """Whether ``resource`` looks like one of ours, and is none."""
    return resource not in _RESOURCES and _LIKE_RESOURCES.search(resource) is not None


def meant(resource: str) -> str:
    """What to write for a resource that looks like ours."""
    if re.search("(?i)mem.*(percent|ratio)", resource):
        return names.GPU_MEMORY_PERCENT
    if re.search("(?i)mem", resource):
        return f"{names.GPU_MEM} in units, or {names.GPU_MEMORY} such as 6Gi"
    if re.search("(?i)core|percent|comput", resource):
        return names.GPU_CORE
    if re.search("(?i)count|num", resource):
        return f"{names.GPU_WHOLE}, or the pod's label {names.LABEL_POD_GPU_COUNT}"
    return f"{names.GPU_MEM} for a share, or {names.GPU_WHOLE} for a whole one"


def _too_large(pod: Pod, unit: MemoryUnit) -> str:
    """Units, as written; what admission has counted itself was asked for in clear units."""
    if names.ANN_REQUESTED in (pod.metadata.annotations or {}):
        return ""
    count = (pod.metadata.labels or {}).get(names.LABEL_POD_GPU_COUNT, "")
    most = unit.count_in(MOST_GPU_MIB) * (int(count) if _COUNT.fullmatch(count) else 1)
    large = [
        f"container {container.name} asks for {limits[names.GPU_MEM]}"
        for container, limits in _limited(pod)
        if names.GPU_MEM in limits and _is_more(limits[names.GPU_MEM], most)
    ]
    if not large:
        return ""
    return (
        f"{names.GPU_MEM} is a number of units of {unit.setting}, without Mi or Gi, and no GPU has as many: {', '.join(large)}; "
        f"write the number of units, or {names.GPU_MEMORY} such as 6144Mi or 6Gi"
    )


def _too_small(pod: Pod, unit: MemoryUnit) -> str:
    """Shares that a program's CUDA context may not leave anything of, or not fit into. A GPU that is given whole is no share."""
    least, labels = CONTEXT_MIB // unit.mib, pod.metadata.labels or {}
    if least < 2 or labels.get(names.LABEL_POD_PLACEMENT) == names.POD_PLACEMENT_WHOLE_DEVICE:
        return ""
    count = labels.get(names.LABEL_POD_GPU_COUNT, "")
    gpus = int(count) if _COUNT.fullmatch(count) else 1
    # MiB are rounded up to units.
    limits_ = {names.GPU_MEM: gpus * least - 1, names.GPU_MEMORY: gpus * (CONTEXT_MIB - unit.mib) << 20}
    small = [
        f"container {container.name} asks for {resource}: {limits[resource]}"
        for container, limits in _limited(pod)
        for resource, most in limits_.items()
        if resource in limits and _is_more(limits[resource], 0) and not _is_more(limits[resource], most)
    ]
    if not small:
        return ""
    return (
        f"less of each GPU than a CUDA context may take, some hundred MiB ({CONTEXT_MIB} where the driver does not say): "
        f"{', '.join(small)}; a program that is held to that may not start: ask for {names.GPU_MEM} {least} or more, "
        f"in units of {unit.setting}"
    )


def _gang(pod: Pod) -> str:
    """Labels of a gang that make none. They are a standard's, so of pods that ask for nothing of ours they are not our business."""
    labels = pod.metadata.labels or {}
    asks = any(one.startswith(_ASKS) for _, limits in _limited(pod) for one in limits)
    try:
        alone = asks and gang_of(pod) is None and names.LABEL_GANG_LEAST in labels
    except InvalidRequest as error:
        return error.problem if asks else ""
    if not alone:
        return ""
    return (
        f"label {names.LABEL_GANG_LEAST} says nothing without {names.LABEL_GANG_NAME} beside it, the gang's name: "
        "the pod runs by itself"
    )


def _scheduler(pod: Pod) -> str:
    """A name that is nearly our scheduler's: nobody looks at the pod, and admission points it nowhere else."""
    named = pod.spec.scheduler_name
    asks = any(one.startswith(_ASKS) for _, limits in _limited(pod) for one in limits)
    if not asks or named == names.SCHEDULER_NAME or not _LIKE_SCHEDULER.search(named):
        return ""
    return (
        f"schedulerName {named} is nearly {names.SCHEDULER_NAME}, and gpushare does not answer to it: write {names.SCHEDULER_NAME}, "
        "or leave it out"
    )


def _is_more(text: str, most: int) -> bool:
    try:
        return parse_quantity(text) > most
    except InvalidQuantity:
        return False


def _unread(pod: Pod) -> str:
    """Labels and annotations that nobody reads, though they look as if we did."""
    strange = [
        *(f"label {one} ({_instead(one)})" for one in _like_ours(pod.metadata.labels, _LABELS)),
        *(
            f"annotation {one} ({_instead(one)})"
            for one in _like_ours(pod.metadata.annotations, _ANNOTATIONS)
        ),
    ]
    return f"nobody reads these of a pod: {', '.join(strange)}" if strange else ""


def _like_ours(found: Mapping[str, str] | None, known: tuple[str, ...]) -> list[str]:
    return [one for one in found or () if one not in known and _LIKE_KEYS.search(one)]


def _instead(key: str) -> str:
    if key in (
        names.LABEL_ADMISSION,
        names.LABEL_POD_GPU_COUNT,
        names.LABEL_POD_PLACEMENT,
        names.LABEL_POD_APART,
    ):
        return "it is a label: write it under labels"
    if key == names.ANN_DEFRAGMENTATION:
        return "it is an annotation: write it under annotations"
    if key in (names.GPU_MEM, names.GPU_CORE, *PEOPLES):
        return "it is a resource: write it in the limits of a container"
    if key.startswith("ack.node.gpu."):
        return "labels of nodes begin so: to choose nodes by one, write it under nodeSelector"
    if key in _ON_NODES:
        return "it belongs on nodes"
    if re.search("(?i)^ack", key):
        return f"write label {names.LABEL_POD_PLACEMENT}"
    if re.search("(?i)^aliyun", key):
        return f"write label {names.LABEL_POD_GPU_COUNT}"
    return f"there are label {names.LABEL_ADMISSION} and annotation {names.ANN_DEFRAGMENTATION}"


def _admission(pod: Pod) -> str:
    value = (pod.metadata.labels or {}).get(names.LABEL_ADMISSION, "disabled")
    if value in _ADMISSIONS:
        return ""
    return (
        f"label {names.LABEL_ADMISSION} keeps a pod's scheduler where it is disabled, and does nothing where it is '{value}'; "
        "write disabled, or remove the label"
    )


def _defragmentation(pod: Pod) -> str:
    # Its value may be any text, so it is not repeated.
    if (pod.metadata.annotations or {}).get(names.ANN_DEFRAGMENTATION, "true") in _WISHES:
        return ""
    return (
        f"annotation {names.ANN_DEFRAGMENTATION} is neither 'true' nor 'false', and so keeps the pod from being moved; "
        "write one of them, or remove it"
    )


def _limited(pod: Pod) -> Iterator[tuple[Container, dict[str, str]]]:
    """Containers, then init containers, each with its limits as texts."""
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        limits = (container.resources.limits if container.resources else None) or {}
        yield container, {one: str(amount) for one, amount in limits.items()}
