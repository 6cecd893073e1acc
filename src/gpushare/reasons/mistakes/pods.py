"""Mistakes in what a pod says: valid for Kubernetes, read by nobody or served by no node. Pure.

Whoever admits tells them as warnings, at once and with nothing held up (docs/decisions/0035); the doctor tells them of pods that
wait. The chart says the same in CEL (``templates/admission/_mistakes.tpl``), word for word; ``tests/admission_cases.py`` holds all
to one table. Which names are nearly ours ``lookalikes`` knows.
"""

import re
from collections.abc import Iterator
from typing import Final

from gpushare.api import names
from gpushare.api.errors import InvalidQuantity, InvalidRequest
from gpushare.api.objects import Container, Pod
from gpushare.api.quantity import MemoryUnit, parse_quantity
from gpushare.api.request.describe import MOST_GPU_MIB
from gpushare.api.request.pod_group import gang_of
from gpushare.api.request.unit_conversion import PEOPLES
from gpushare.reasons.mistakes.names import instead, is_no_annotation, is_no_label, is_unknown, meant
from gpushare.reasons.mistakes.selectors import unmet

_LIKE_SCHEDULER: Final = re.compile(
    r"(?i)^(ac?k[-_.]?(gpu[-_.]?)?(co|gpu-?share)?[-_.]?s(ch?|h)ed[a-z]*|(ack[-_.]?)?co[-_.]?s(ch?|h)ed[a-z]*|gpu-?share(-?s(ch?|h)ed[a-z]*)?)$"
)
_COUNT: Final = re.compile(r"[1-9][0-9]{0,3}")
#: What a context was measured to take of an H200, by the driver's count (docs/measurements/2026-11-h200.md).
CONTEXT_MIB: Final = 518
_ASKS: Final = ("aliyun.com/gpu", "gpushare.dev/gpu-memory")
#: Labels of pods that say how many GPUs, which, and how they are used. All are read once.
_PLACED_BY: Final = (
    names.LABEL_POD_GPU_COUNT,
    names.LABEL_POD_PLACEMENT,
    names.LABEL_POD_APART,
    names.LABEL_POD_COMPUTE_CLASS,
)
#: Of ``gpushare.dev/admission``: the one that says something, and its contrary, which says what is so anyway.
_ADMISSIONS: Final = ("disabled", "enabled")
_WISHES: Final = ("true", "false")


def mistakes_of(pod: Pod, unit: MemoryUnit) -> list[str]:
    """What in ``pod``, or in a template of pods, can only be a slip, each with what to write instead.

    ``unit`` is the one in which the cluster counts memory.
    """
    return mistakes_besides_nodes(pod, unit) + unmet(pod)


def mistakes_besides_nodes(pod: Pod, unit: MemoryUnit) -> list[str]:
    """As ``mistakes_of``, for whoever says more of the nodes that a pod wants (``selecting.mistyped``)."""
    found = (
        _unknown_resources(pod),
        _too_large(pod, unit),
        asks_for_nothing(pod),
        too_small(pod, unit),
        _gang(pod),
        misspelled_scheduler(pod),
    )
    return [text for text in found if text] + _in_keys(pod)


def mistakes_of_change(pod: Pod, before: Pod) -> list[str]:
    """What in a change of a pod that is there can only be a slip: labels that are read when it is placed, after it was."""
    now, then = pod.metadata.labels or {}, before.metadata.labels or {}
    changed = [f"label {key}" for key in _PLACED_BY if now.get(key) != then.get(key)]
    if not pod.spec.node_name or not changed or not _asks_for_gpu(pod):
        return []
    return [
        f"read only when a pod is placed, and this one has its node: {', '.join(changed)}; what it holds stays as it is: "
        "change its template, and recreate it"
    ]


def mistakes_of_pending(pod: Pod) -> list[str]:
    """Those of ``mistakes_of`` that nothing else says of a pod that waits: it is known which resources, sizes and schedulers there are."""
    return [text for text in (_gang(pod),) if text] + _in_keys(pod)


def _in_keys(pod: Pod) -> list[str]:
    """Those in labels and annotations."""
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


def asks_for_nothing(pod: Pod) -> str:
    """No units: the container is given no share, and held to none; empty where that is not so. Whole GPUs may be meant, and what else stands beside it is refused."""
    nothing = [
        f"container {container.name}"
        for container, limits in _limited(pod)
        if _is_none(limits.get(names.GPU_MEM, "1"))
        and not _is_more(limits.get(names.GPU_WHOLE, "0"), 0)
        and limits.keys().isdisjoint((names.GPU_CORE, *PEOPLES))
    ]
    if not nothing:
        return ""
    return (
        f"{names.GPU_MEM}: 0 asks for nothing, so that no share of a GPU is given, and nothing holds programs to one: "
        f"{', '.join(nothing)}; write the number of units, or leave it out"
    )


def too_small(pod: Pod, unit: MemoryUnit) -> str:
    """Shares that a program's CUDA context may not leave anything of, or not fit into; empty where there are none.

    A GPU that is given whole is no share. Of nodes that have measured a context ``contexts`` says more.
    """
    least, labels = -(-CONTEXT_MIB // unit.mib), pod.metadata.labels or {}
    if least < 2 or labels.get(names.LABEL_POD_PLACEMENT) == names.POD_PLACEMENT_WHOLE_DEVICE:
        return ""
    count = labels.get(names.LABEL_POD_GPU_COUNT, "")
    gpus = int(count) if _COUNT.fullmatch(count) else 1
    # MiB are rounded up to units.
    limits_ = {names.GPU_MEM: gpus * least - 1, names.GPU_MEMORY: gpus * (least - 1) * unit.mib << 20}
    small = [
        f"container {container.name} asks for {resource}: {limits[resource]}"
        for container, limits in _limited(pod)
        for resource, most in limits_.items()
        if resource in limits and _is_more(limits[resource], 0) and not _is_more(limits[resource], most)
    ]
    if not small:
        return ""
    return (
        f"less of each GPU than a CUDA context may take, some hundred MiB ({CONTEXT_MIB} on an H200): "
        f"{', '.join(small)}; a program that is held to that may not start: ask for {names.GPU_MEM} {least} or more, "
        f"in units of {unit.setting}"
    )


def _gang(pod: Pod) -> str:
    """Labels of a gang that make none. They are a standard's, so of pods that ask for nothing of ours they are not our business."""
    labels = pod.metadata.labels or {}
    asks = _asks_for_gpu(pod)
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


def misspelled_scheduler(pod: Pod) -> str:
    """A name that is nearly our scheduler's: nobody looks at the pod, and admission points it nowhere else; empty for all others."""
    named = pod.spec.scheduler_name
    if not _asks_for_gpu(pod) or named == names.SCHEDULER_NAME or not _LIKE_SCHEDULER.search(named):
        return ""
    return (
        f"schedulerName {named} is nearly {names.SCHEDULER_NAME}, and gpushare does not answer to it: write {names.SCHEDULER_NAME}, "
        "or leave it out"
    )


def _asks_for_gpu(pod: Pod) -> bool:
    return any(one.startswith(_ASKS) for _, limits in _limited(pod) for one in limits)


def _is_more(text: str, most: int) -> bool:
    try:
        return parse_quantity(text) > most
    except InvalidQuantity:
        return False


def _is_none(text: str) -> bool:
    try:
        return parse_quantity(text) == 0
    except InvalidQuantity:
        return False


def _unread(pod: Pod) -> str:
    """Labels and annotations that nobody reads, though they look as if we did."""
    strange = [
        *(f"label {one} ({instead(one)})" for one in pod.metadata.labels or () if is_no_label(one)),
        *(
            f"annotation {one} ({instead(one)})"
            for one in pod.metadata.annotations or ()
            if is_no_annotation(one)
        ),
    ]
    return f"nobody reads these of a pod: {', '.join(strange)}" if strange else ""


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
