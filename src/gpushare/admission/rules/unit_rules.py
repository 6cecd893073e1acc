"""MiB and percentage requests: validation, and conversion to units. Pure.

The chart says the same in CEL (``templates/admission/_memory_amounts.tpl`` and ``_rules.tpl``), word for word. Whatever is
wrong in one container leaves the whole pod as it is, so that rules say of pods what they say of templates.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gpushare.api import names
from gpushare.api.objects import Container, Pod
from gpushare.api.request.unit_conversion import (
    CONVERTED_RESOURCES,
    Counting,
    mib_of,
    percent_of,
    requested_text,
)

_WAYS: Final = (names.GPU_MEM, *CONVERTED_RESOURCES)
_COUNT: Final = re.compile(r"[1-9][0-9]{0,3}")

Texts = Mapping[str, str]
"""A container's requests by resource, as written."""


def problem(asking: Mapping[str, Texts], counting: Counting) -> str:
    """The first violated rule on MiB and percentage requests; empty if none. ``asking``: requests by container name."""
    return (
        _no_mib(asking)
        or _no_percent(asking)
        or _in_two_ways(asking)
        or _no_reference(asking, counting)
        or _less_than_a_unit(asking, counting)
    )


def conversion(pod: Pod, counting: Counting) -> list[dict[str, Any]]:
    """The JSON patch that replaces MiB and percentage requests by units, and records the original request.

    Empty if nothing is requested in MiB or percent, or if a request is invalid, which is rejected by ``problem``, or by
    Kubernetes itself.
    """
    listed = list(_listed(pod))
    asking = {container.name: texts for _, container, texts in listed}
    if not any(one in texts for texts in asking.values() for one in CONVERTED_RESOURCES):
        return []
    if problem(asking, counting) or any(_differs(container) for _, container, _ in listed):
        return []
    gpus = gpus_of(pod)
    patch: list[dict[str, Any]] = []
    noted: dict[str, str] = {}
    for path, container, texts in listed:
        for resource in CONVERTED_RESOURCES:
            if resource in texts:
                units, noted[container.name] = _counted(resource, texts[resource], counting, gpus)
                patch += _replaced(path, container, resource, units)
    if not pod.metadata.annotations:
        patch.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    note = requested_text(counting, noted)
    patch.append({"op": "add", "path": f"/metadata/annotations/{_step(names.ANN_REQUESTED)}", "value": note})
    return patch


def _listed(pod: Pod) -> Iterator[tuple[str, Container, dict[str, str]]]:
    """Containers, then init containers, each with its index and memory limits."""
    for place, containers in (
        ("containers", pod.spec.containers),
        ("initContainers", pod.spec.init_containers or ()),
    ):
        for index, container in enumerate(containers):
            limits = (container.resources.limits if container.resources else None) or {}
            texts: dict[str, str] = {one: str(limits[one]) for one in _WAYS if one in limits}
            yield f"/spec/{place}/{index}/resources", container, texts


def _differs(container: Container) -> bool:
    """Whether requests differ from limits: left unchanged, for Kubernetes to reject."""
    resources = container.resources
    limits, requests = (resources.limits or {}, resources.requests or {}) if resources else ({}, {})
    return any(
        one in requests and (one not in limits or str(requests[one]) != str(limits[one]))
        for one in CONVERTED_RESOURCES
    )


def gpus_of(pod: Pod) -> int:
    """The number of GPUs in the pod's label; 1 if the label is invalid, which another rule reports."""
    count = (pod.metadata.labels or {}).get(names.LABEL_POD_GPU_COUNT, "")
    return int(count) if _COUNT.fullmatch(count) else 1


def _counted(resource: str, text: str, counting: Counting, gpus: int) -> tuple[int, str]:
    """Units, and the text to record."""
    if resource == names.GPU_MEMORY:
        mib = mib_of(text)
        assert mib is not None, "problem() has refused it"
        return counting.units_of_mib(mib, gpus), f"{mib}Mi"
    percent = percent_of(text)
    assert percent is not None, "problem() has refused it"
    return counting.units_of_percent(percent, gpus), f"{percent}%"


def _replaced(path: str, container: Container, resource: str, units: int) -> Iterator[dict[str, Any]]:
    requests = (container.resources.requests if container.resources else None) or {}
    for amounts in ("limits", "requests") if resource in requests else ("limits",):
        yield {"op": "remove", "path": f"{path}/{amounts}/{_step(resource)}"}
        yield {"op": "add", "path": f"{path}/{amounts}/{_step(names.GPU_MEM)}", "value": str(units)}


def _step(name: str) -> str:
    """A name as a JSON pointer segment."""
    return name.replace("~", "~0").replace("/", "~1")


def _no_mib(asking: Mapping[str, Texts]) -> str:
    name = names.GPU_MEMORY
    wrong = _violations(asking, name, lambda text: mib_of(text) is None)
    return f"{name} must be a whole number of MiB up to 16Ti, such as 6144Mi or 6Gi: {wrong}" if wrong else ""


def _no_percent(asking: Mapping[str, Texts]) -> str:
    name = names.GPU_MEMORY_PERCENT
    wrong = _violations(asking, name, lambda text: percent_of(text) is None)
    return f"{name} must be a whole number from 1 to 100: {wrong}" if wrong else ""


def _in_two_ways(asking: Mapping[str, Texts]) -> str:
    twice = [
        f"container {name} requests {' and '.join(one for one in _WAYS if one in texts)}"
        for name, texts in asking.items()
        if sum(one in texts for one in _WAYS) > 1
    ]
    if not twice:
        return ""
    return f"GPU memory must be requested in only one way per container: {', '.join(twice)}; keep one of them"


def _no_reference(asking: Mapping[str, Texts], counting: Counting) -> str:
    name = names.GPU_MEMORY_PERCENT
    containers = [f"container {one}" for one, texts in asking.items() if name in texts]
    if counting.reference_units or not containers:
        return ""
    return (
        f"{name} requires a reference GPU size, which is not configured in this cluster (chart value "
        f"admission.referenceGpuMemoryMiB): request {names.GPU_MEMORY} in {', '.join(containers)}"
    )


def _less_than_a_unit(asking: Mapping[str, Texts], counting: Counting) -> str:
    name = names.GPU_MEMORY_PERCENT
    small = _violations(asking, name, lambda text: counting.units_of_percent(percent_of(text) or 0) == 0)
    if not small:
        return ""
    return (
        f"{name} is less than one unit of {counting.unit.setting} on a GPU of {counting.reference_mib} MiB: {small}; "
        f"request {counting.least_percent} or more"
    )


def _violations(asking: Mapping[str, Texts], resource: str, wrong: Callable[[str], bool]) -> str:
    return ", ".join(
        f"container {name} requests {texts[resource]}"
        for name, texts in asking.items()
        if resource in texts and wrong(texts[resource])
    )
