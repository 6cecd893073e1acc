"""Mistakes in a pod that Kubernetes accepts, but that have no effect or that no node can serve. No I/O.

Admission returns them as warnings and rejects nothing (docs/decisions/0035); the doctor reports them for pending pods. The chart
has the same texts in CEL (``templates/admission/_mistakes.tpl``); ``tests/admission_cases.py`` compares all implementations with one table.
The module ``names`` detects misspelt names.
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
from gpushare.api.request.unit_conversion import CONVERTED_RESOURCES
from gpushare.api.submitted import SubmittedContainer, SubmittedPod
from gpushare.reasons.mistakes.names import instead, is_no_annotation, is_no_label, is_unknown, meant
from gpushare.reasons.mistakes.selectors import unmet

_LIKE_SCHEDULER: Final = re.compile(
    r"(?i)^(ac?k[-_.]?(gpu[-_.]?)?(co|gpu-?share)?[-_.]?s(ch?|h)ed[a-z]*|(ack[-_.]?)?co[-_.]?s(ch?|h)ed[a-z]*|gpu-?share(-?s(ch?|h)ed[a-z]*)?)$"
)
_COUNT: Final = re.compile(r"[1-9][0-9]{0,3}")
#: Measured size of a CUDA context on an H200, as the driver reports it (docs/measurements/2026-11-h200.md).
CONTEXT_MIB: Final = 518
_GPU_RESOURCES: Final = ("aliyun.com/gpu", "gpushare.dev/gpu-memory")
#: Labels of pods on the number, choice and use of GPUs. They are read only at placement.
_PLACEMENT_LABELS: Final = (
    names.LABEL_POD_GPU_COUNT,
    names.LABEL_POD_PLACEMENT,
    names.LABEL_POD_APART,
    names.LABEL_POD_COMPUTE_CLASS,
)
#: Values of ``gpushare.dev/admission``: the effective one, and its opposite, which is the default.
_ADMISSIONS: Final = ("disabled", "enabled")
_BOOLEANS: Final = ("true", "false")
#: Variables by which a node gives a container its GPU, or in mode ``mps`` its limits. The kubelet appends those of the manifest
#: to those of the device plugin, and the last one counts.
_GIVEN_BY_NODE: Final = (
    names.ENV_VISIBLE_DEVICES,
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
)


def mistakes_of(pod: SubmittedPod, unit: MemoryUnit) -> list[str]:
    """Mistakes in ``pod``, or in a pod template, each with a correction.

    ``unit``: the cluster's memory unit.
    """
    return mistakes_except_nodes(pod, unit) + unmet(pod)


def mistakes_except_nodes(pod: SubmittedPod, unit: MemoryUnit) -> list[str]:
    """As ``mistakes_of``, without those in node selection, for callers of ``selectors.mistyped``."""
    texts = (
        _unknown_resources(pod),
        _too_large(pod, unit),
        requests_zero_units(pod),
        too_small(pod, unit),
        _environment(pod),
        _gang(pod),
        misspelled_scheduler(pod),
    )
    return [text for text in texts if text] + _label_mistakes(pod)


def mistakes_of_change(pod: Pod, before: Pod) -> list[str]:
    """Mistakes in an update of a pod: changed labels that are read only at placement, after it was placed."""
    new, old = pod.metadata.labels or {}, before.metadata.labels or {}
    changed = [f"label {key}" for key in _PLACEMENT_LABELS if new.get(key) != old.get(key)]
    if not pod.spec.node_name or not changed or not _requests_gpu(pod):
        return []
    return [
        f"changes that have no effect on a pod that already has a node: {', '.join(changed)}; "
        "change the pod's template and recreate the pod"
    ]


def mistakes_of_pending(pod: Pod) -> list[str]:
    """Mistakes in a pending pod, without those on resources, sizes and schedulers, which other checks report more precisely."""
    return [text for text in (_gang(pod),) if text] + _label_mistakes(pod)


def _label_mistakes(pod: Pod) -> list[str]:
    """Mistakes in labels and annotations."""
    return [text for text in (_without_effect(pod), _admission(pod), _defragmentation(pod)) if text]


def _unknown_resources(pod: Pod) -> str:
    requests = [
        f"container {container.name} asks for {' and '.join(unknown)}"
        for container, limits in _limited(pod)
        if (unknown := [f"{name} (write {meant(name)})" for name in limits if is_unknown(name)])
    ]
    if not requests:
        return ""
    return f"unknown resources, which no node offers, so the pod stays pending: {', '.join(requests)}"


def _too_large(pod: Pod, unit: MemoryUnit) -> str:
    """Units larger than any GPU; not checked if admission converted the request from MiB or percent."""
    if names.ANN_REQUESTED in (pod.metadata.annotations or {}):
        return ""
    count = (pod.metadata.labels or {}).get(names.LABEL_POD_GPU_COUNT, "")
    limit = unit.count_in(MOST_GPU_MIB) * (int(count) if _COUNT.fullmatch(count) else 1)
    large = [
        f"container {container.name} asks for {limits[names.GPU_MEM]}"
        for container, limits in _limited(pod)
        if names.GPU_MEM in limits and _is_more(limits[names.GPU_MEM], limit)
    ]
    if not large:
        return ""
    return (
        f"{names.GPU_MEM} is a number of units of {unit.setting}, without Mi or Gi, and no GPU has that many: {', '.join(large)}; "
        f"write the number of units, or {names.GPU_MEMORY} such as 6144Mi or 6Gi"
    )


def requests_zero_units(pod: Pod) -> str:
    """A warning about requests of 0 units, which get no share and no isolation; not with whole GPUs, nor with resources that make it invalid."""
    nothing = [
        f"container {container.name}"
        for container, limits in _limited(pod)
        if _is_none(limits.get(names.GPU_MEM, "1"))
        and not _is_more(limits.get(names.GPU_WHOLE, "0"), 0)
        and limits.keys().isdisjoint((names.GPU_CORE, *CONVERTED_RESOURCES))
    ]
    if not nothing:
        return ""
    return (
        f"{names.GPU_MEM}: 0 requests nothing: no share of a GPU is allocated, and no limit is enforced: "
        f"{', '.join(nothing)}; write the number of units, or leave it out"
    )


def too_small(pod: Pod, unit: MemoryUnit) -> str:
    """A warning about shares that a CUDA context may fill or exceed; else empty.

    Whole GPUs are no shares. For nodes with a measured context, ``context_cost`` is more precise.
    """
    min_units, labels = -(-CONTEXT_MIB // unit.mib), pod.metadata.labels or {}
    if min_units < 2 or labels.get(names.LABEL_POD_PLACEMENT) == names.POD_PLACEMENT_WHOLE_DEVICE:
        return ""
    count = labels.get(names.LABEL_POD_GPU_COUNT, "")
    gpus = int(count) if _COUNT.fullmatch(count) else 1
    # MiB are rounded up to units.
    upper_bounds = {
        names.GPU_MEM: gpus * min_units - 1,
        names.GPU_MEMORY: gpus * (min_units - 1) * unit.mib << 20,
    }
    small = [
        f"container {container.name} asks for {resource}: {limits[resource]}"
        for container, limits in _limited(pod)
        for resource, bound in upper_bounds.items()
        if resource in limits and _is_more(limits[resource], 0) and not _is_more(limits[resource], bound)
    ]
    if not small:
        return ""
    return (
        f"the request may be too small for a CUDA context, which takes several hundred MiB ({CONTEXT_MIB} on an H200): "
        f"{', '.join(small)}; a program limited to that may not start: request {names.GPU_MEM} {min_units} or more, "
        f"in units of {unit.setting}"
    )


def _environment(pod: SubmittedPod) -> str:
    """A warning about variables in a manifest that replace those of the node, in containers that request a GPU."""
    replaced = [
        f"container {container.name} sets {' and '.join(variables)}"
        for container, limits in _limited(pod)
        if any(resource.startswith(_GPU_RESOURCES) for resource in limits)
        and isinstance(container, SubmittedContainer)
        and (variables := [one.name for one in container.env or () if one.name in _GIVEN_BY_NODE])
    ]
    if not replaced:
        return ""
    return (
        "variables under env override those that the node sets to assign the GPU share: "
        f"{', '.join(replaced)}; remove them"
    )


def _gang(pod: Pod) -> str:
    """A warning about incomplete gang labels. The labels are a standard's, so pods that request no GPU are not checked."""
    labels = pod.metadata.labels or {}
    requests_gpu = _requests_gpu(pod)
    try:
        incomplete = requests_gpu and gang_of(pod) is None and names.LABEL_GANG_LEAST in labels
    except InvalidRequest as error:
        return error.problem if requests_gpu else ""
    if not incomplete:
        return ""
    return (
        f"label {names.LABEL_GANG_LEAST} has no effect without label {names.LABEL_GANG_NAME}, the gang's name: "
        "the pod is scheduled by itself"
    )


def misspelled_scheduler(pod: Pod) -> str:
    """A warning about a misspelt name of our scheduler, for which no scheduler runs and which admission does not change; else empty."""
    name = pod.spec.scheduler_name
    if not _requests_gpu(pod) or name == names.SCHEDULER_NAME or not _LIKE_SCHEDULER.search(name):
        return ""
    return (
        f"schedulerName {name} is similar to {names.SCHEDULER_NAME}, but gpushare ignores it: write {names.SCHEDULER_NAME}, "
        "or leave it out"
    )


def _requests_gpu(pod: Pod) -> bool:
    return any(resource.startswith(_GPU_RESOURCES) for _, limits in _limited(pod) for resource in limits)


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


def _without_effect(pod: Pod) -> str:
    """A warning about labels and annotations that look like ours but have no effect."""
    keys = [
        *(f"label {key} ({instead(key)})" for key in pod.metadata.labels or () if is_no_label(key)),
        *(
            f"annotation {key} ({instead(key)})"
            for key in pod.metadata.annotations or ()
            if is_no_annotation(key)
        ),
    ]
    return f"unknown labels or annotations of a pod: {', '.join(keys)}" if keys else ""


def _admission(pod: Pod) -> str:
    value = (pod.metadata.labels or {}).get(names.LABEL_ADMISSION, "disabled")
    if value in _ADMISSIONS:
        return ""
    return (
        f"label {names.LABEL_ADMISSION} keeps the pod's scheduler if it is 'disabled', and has no effect otherwise: it is '{value}'; "
        "write disabled, or remove the label"
    )


def _defragmentation(pod: Pod) -> str:
    # The value may be any text, so the message does not repeat it.
    if (pod.metadata.annotations or {}).get(names.ANN_DEFRAGMENTATION, "true") in _BOOLEANS:
        return ""
    return (
        f"annotation {names.ANN_DEFRAGMENTATION} is neither 'true' nor 'false', so the pod is never moved; "
        "write one of them, or remove it"
    )


def _limited(pod: Pod) -> Iterator[tuple[Container, dict[str, str]]]:
    """Containers, then init containers, each with its limits as texts."""
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        limits = (container.resources.limits if container.resources else None) or {}
        yield container, {resource: str(amount) for resource, amount in limits.items()}
