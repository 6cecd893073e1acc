"""Requests of HAMi: ``nvidia.com/gpumem``, ``gpumem-percentage``, ``gpucores``, and ``nvidia.com/gpu`` as the number of GPUs.

Semantics: ``docs/config.md``, ``docs/develop/scheduler-policy.md`` and ``pkg/device/nvidia/device.go`` of Project-HAMi/HAMi. Amounts are of
each GPU. A container without a memory amount gets what HAMi's own settings say, which nobody here knows.
"""

from collections.abc import Callable, Mapping
from typing import Final

from gpushare.admission.accept.product import (
    Product,
    Share,
    Translation,
    Untranslatable,
    amounts,
    containers,
)
from gpushare.api import names
from gpushare.api.errors import InvalidQuantity
from gpushare.api.objects import Pod
from gpushare.api.quantity import parse_amount
from gpushare.api.request.request import listed_containers
from gpushare.api.request.unit_conversion import MOST_MIB

GPU: Final = "nvidia.com/gpu"
MEMORY: Final = "nvidia.com/gpumem"
MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"
CORES: Final = "nvidia.com/gpucores"
#: A container with one of these asks for a share. ``nvidia.com/gpu`` alone belongs to NVIDIA's device plugin.
SIZES: Final = (MEMORY, MEMORY_PERCENT, CORES)
_MODEL_ANNOTATIONS: Final = {
    "nvidia.com/use-gputype": names.ANN_GPU_MODEL,
    "nvidia.com/nouse-gputype": names.ANN_GPU_MODEL_EXCLUDE,
}
_UUID_ANNOTATIONS: Final = {
    "nvidia.com/use-gpuuuid": names.ANN_GPU_UUID,
    "nvidia.com/nouse-gpuuuid": names.ANN_GPU_UUID_EXCLUDE,
}
_POLICY_ANNOTATIONS: Final = {
    "hami.io/gpu-scheduler-policy": names.ANN_GPU_PLACEMENT,
    "hami.io/node-scheduler-policy": names.ANN_NODE_PLACEMENT,
}
_POLICIES: Final = ("binpack", "spread")
#: HAMi's own prefix of a model's name, which is ``NVIDIA-Tesla V100-SXM2-16GB`` there.
_VENDOR: Final = "NVIDIA-"
_MOST_GPUS: Final = 9999

_Limits = Mapping[str, Mapping[str, str]]
"""NVIDIA's and HAMi's resources of each container that has any, as written."""


def _read(pod: Pod) -> Translation | None:
    limits = _limits(pod)
    shared = {name: asked for name, asked in limits.items() if any(size in asked for size in SIZES)}
    if not shared:
        return None
    annotations = pod.metadata.annotations or {}
    _reject_unknown(limits, annotations)
    whole = {name: asked for name, asked in limits.items() if name not in shared and not _is_zero(asked[GPU])}
    if whole:
        raise Untranslatable(
            f"{GPU} without {MEMORY} requests a whole GPU, which cannot be combined with shares in one pod: whole GPUs for {containers(whole)}, "
            f"shares for {containers(shared)}; add {MEMORY}, or use two pods"
        )
    gpus = _gpus(shared)
    return Translation(
        shares=_shares(shared, gpus),
        gpus=gpus,
        annotations=_annotations(annotations),
        resources=frozenset((GPU, *SIZES)),
        replaced=frozenset((*_MODEL_ANNOTATIONS, *_UUID_ANNOTATIONS, *_POLICY_ANNOTATIONS)),
    )


def _limits(pod: Pod) -> _Limits:
    limits = {
        container.name: (container.resources and container.resources.limits) or {}
        for _, container, _ in listed_containers(pod)
    }
    return {
        name: found
        for name, asked in limits.items()
        if (found := {one: str(text) for one, text in asked.items() if one.startswith("nvidia.com/")})
    }


def _is_zero(text: str) -> bool:
    try:
        return parse_amount(text) == 0
    except InvalidQuantity:
        return False


def _reject_unknown(limits: _Limits, annotations: Mapping[str, str]) -> None:
    resources = sorted({one for asked in limits.values() for one in asked} - {GPU, *SIZES})
    known = {*_MODEL_ANNOTATIONS, *_UUID_ANNOTATIONS, *_POLICY_ANNOTATIONS}
    unknown = sorted(
        one for one in annotations if one.startswith(("nvidia.com/", "hami.io/")) and one not in known
    )
    if resources or unknown:
        listed = [*resources, *(f"annotation {one}" for one in unknown)]
        raise Untranslatable(
            f"no equivalent in gpushare for {', '.join(listed)}; remove it from the manifest"
        )


def _gpus(shared: _Limits) -> int:
    """The number of GPUs of each container; HAMi's default is 1."""
    counts = _read_amounts(shared, GPU, lambda count: 1 <= count <= _MOST_GPUS, f"from 1 to {_MOST_GPUS}")
    of_each = {name: counts.get(name, 1) for name in shared}
    if len(set(of_each.values())) > 1:
        asked = {name: str(count) for name, count in of_each.items()}
        raise Untranslatable(
            f"{GPU} must be the same in all containers of a pod: {amounts(asked)}; use a pod for each"
        )
    return next(iter(of_each.values()))


def _shares(shared: _Limits, gpus: int) -> dict[str, Share]:
    twice = {name: asked for name, asked in shared.items() if MEMORY in asked and MEMORY_PERCENT in asked}
    if twice:
        raise Untranslatable(
            f"{MEMORY} and {MEMORY_PERCENT} exclude each other: keep one of them in {containers(twice)}"
        )
    mib = _read_amounts(shared, MEMORY, lambda mib: 1 <= mib <= MOST_MIB, f"of MiB from 1 to {MOST_MIB}")
    percent = _read_amounts(shared, MEMORY_PERCENT, lambda percent: 1 <= percent <= 100, "from 1 to 100")
    cores = _read_amounts(
        shared,
        CORES,
        lambda percent: percent <= 100 and percent % 5 == 0,
        "from 0 to 100 that is divisible by 5",
    )
    unsized = {name: asked for name, asked in shared.items() if name not in mib and name not in percent}
    if unsized:
        raise Untranslatable(
            f"{CORES} without memory would get HAMi's default memory, which gpushare does not know: "
            f"add {MEMORY} to the limits of {containers(unsized)}"
        )
    computing = {name: asked for name, asked in shared.items() if cores.get(name)}
    if gpus > 1 and computing:
        raise Untranslatable(
            f"{CORES} has no equivalent on several GPUs: {GPU} is {gpus}, and {CORES} is set for {containers(computing)}; "
            f"remove {CORES}, or request 1 GPU"
        )
    return {name: Share(mib.get(name, 0), percent.get(name, 0), cores.get(name, 0)) for name in shared}


def _read_amounts(shared: _Limits, resource: str, valid: Callable[[int], bool], words: str) -> dict[str, int]:
    """The amounts of ``resource`` by container; raises ``Untranslatable`` for amounts that are not ``valid``."""
    values: dict[str, int] = {}
    wrong: dict[str, str] = {}
    for name, asked in shared.items():
        if resource in asked:
            try:
                values[name] = parse_amount(asked[resource])
            except InvalidQuantity:
                wrong[name] = asked[resource]
            else:
                if not valid(values[name]):
                    wrong[name] = asked[resource]
    if wrong:
        raise Untranslatable(f"{resource} must be a whole number {words}: {amounts(wrong)}")
    return values


def _annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    ours: dict[str, str] = {}
    # Blank values have no effect in HAMi.
    chosen = {name: text for name, text in annotations.items() if text.strip(" ,")}
    for theirs, name in _MODEL_ANNOTATIONS.items():
        if theirs in chosen:
            ours[name] = ",".join(_model(entry) for entry in chosen[theirs].split(","))
    for theirs, name in _UUID_ANNOTATIONS.items():
        if theirs in chosen:
            ours[name] = chosen[theirs]
    for theirs, name in _POLICY_ANNOTATIONS.items():
        if theirs in chosen:
            ours[name] = _policy(theirs, chosen[theirs])
    return ours


def _model(entry: str) -> str:
    entry = entry.strip()
    return entry[len(_VENDOR) :] if entry.upper().startswith(_VENDOR) else entry


def _policy(annotation: str, text: str) -> str:
    if text not in _POLICIES:
        raise Untranslatable(
            f"annotation {annotation} can be {' or '.join(_POLICIES)} in gpushare: it is '{text}'; change it, or remove it"
        )
    return text


HAMI: Final = Product("hami", "hami-scheduler", MEMORY_PERCENT, _read)
