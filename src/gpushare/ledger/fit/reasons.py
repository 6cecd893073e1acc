"""Why a node does not take a request: every text that a person reads about a refusal."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from gpushare.api import names
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request import describe as asked
from gpushare.api.request.describe import memory_text
from gpushare.api.request.gpu_selection import RULES, GpuSelection
from gpushare.api.request.pluralize import counted
from gpushare.api.request.request import Request

UNKNOWN_NODE: Final = "node is not known to the scheduler yet"
_NO_GPU: Final = "node has no GPU"
_MAX_CACHED_TEXTS: Final = 20_000
#: How the refusal of a request that was written in another unit ends.
WITHOUT_SUFFIX: Final = (f"{asked.WITHOUT_SUFFIX})", f"{asked.NOT_OF_MIB})")


def standing_refusals(node: NodeDevices) -> tuple[str, str, str]:
    """Why ``node`` takes no new requests, whatever is free: for memory, for compute too, for a number of GPUs.

    Empty if it does. No eviction changes any of these.
    """
    if node.refusal:
        return node.refusal, node.refusal, node.refusal
    memory, core, whole = _of_mode(node.mode)
    if not node.devices:
        memory = core = memory or _NO_GPU
        whole = whole or _NO_GPU
    return memory, core, whole


@cache
def _of_mode(mode: NodeMode) -> tuple[str, str, str]:
    memory = "" if mode.shares_memory else mode.no_memory_text
    core = memory or ("" if mode.gives_core else mode.no_core_text)
    return memory, core, "" if mode.gives_whole else mode.no_whole_text


def unhealthy_text(devices: tuple[Device, ...]) -> str:
    """``GPU 0 is unhealthy: XID 79``, joined for all ``devices`` that are unhealthy, cordoned or withheld."""
    return "; ".join(_out_of_service(device) for device in devices if not device.in_service)


def shortage_note(devices: tuple[Device, ...]) -> str:
    """Why less may be free than the pods on ``devices`` account for: those out of service, and what is used without an allocation."""
    foreign = "; ".join(device.foreign_text for device in devices if device.in_service and device.foreign_mib)
    return "; ".join(filter(None, (unhealthy_text(devices), foreign)))


def _out_of_service(device: Device) -> str:
    if device.healthy:
        return f"GPU {device.label} is cordoned"
    if not device.is_faulty:
        return f"GPU {device.label} is {device.reason}"
    return f"GPU {device.label} is unhealthy" + (f": {device.reason}" if device.reason else "")


def gone_text(uuid: str) -> str:
    """A GPU that a pod holds and its node does not have any more."""
    return f"GPU {uuid} is not on the node any more"


def too_large(request: Request, largest_units: int, unit: MemoryUnit) -> str:
    """The request is larger than every GPU of the node, often because it was written in bytes or MiB."""
    asked_mib = request.memory_units * unit.mib
    largest = memory_text(largest_units * unit.mib) if largest_units else f"less than {memory_text(unit.mib)}"
    text = f"requests {memory_text(asked_mib)}, but the largest GPU has {largest}"
    hint = asked.wrong_unit(request, unit)
    return f"{text} ({hint})" if hint else text


def other_unit(request: Request, unit_mib: int) -> str:
    """The request was converted to units of another size than the node's."""
    asked = memory_text(request.memory_units * request.unit_mib)
    return (
        f"the request for {asked} was counted in units of {memory_text(request.unit_mib)} when it was submitted, the node "
        f"counts in {memory_text(unit_mib)}; delete the pod, so that it is recreated"
    )


def too_much_core(core_percent: int) -> str:
    """The pod's containers together request more than one GPU's compute."""
    return f"requests {core_percent}% compute, but one GPU has 100%"


def only_unhealthy(asked_mib: int, note: str) -> str:
    """All GPUs that are large enough are out of service."""
    return f"no GPU with {memory_text(asked_mib)} or more is in service ({note})"


def mixed(request: Request, others: int) -> str:
    """The node holds pods of the other kind."""
    pods = counted(others, "pod")
    # Without a semicolon: where nodes refuse for several reasons, the text after it is cut off.
    if request.wants_core:
        return f"node has {pods} with GPU memory only, so a pod that also requests compute cannot use it"
    return f"node has {pods} with GPU memory and compute, so a memory-only pod cannot use it"


def node_at_cap(pods: int) -> str:
    """The node's pod cap is reached."""
    return f"node already has {counted(pods, 'pod')} on its GPUs, the maximum (label {names.LABEL_MAX_NODE_PODS})"


def at_cap(max_pods: int) -> str:
    """Every GPU with enough free memory is at its pod cap."""
    return f"every GPU with enough free capacity already has {counted(max_pods, 'pod')}, the maximum"


def no_room(asked_mib: int) -> str:
    """The start of a refusal for lack of memory; ``largest_free`` follows."""
    return f"no single GPU has {memory_text(asked_mib)} free "


def no_compute(asked_mib: int, core_percent: int) -> str:
    """The start of a refusal for lack of compute; ``nearest`` follows."""
    return f"no single GPU has {memory_text(asked_mib)} and {core_percent}% compute free "


def largest_free(free_mib: int, gpu: str) -> str:
    """The GPU with the most free memory."""
    return f"(largest free: {memory_text(free_mib)} on GPU {gpu})" if free_mib else "(every GPU is full)"


def full_in_service(in_service: int, gpus: int) -> str:
    """All GPUs in service are full, and others are not in service."""
    return f"(every GPU in service is full: {in_service} of {gpus})"


def nearest(free_mib: int, gpu: str, core_percent: int) -> str:
    """Of the GPUs with enough memory, the one with the most free compute."""
    return f"(closest: GPU {gpu} with {memory_text(free_mib)} and {core_percent}%)"


def excluded(selection: GpuSelection, rules: Sequence[int]) -> str:
    """GPUs of a node that the pod's annotations exclude: ``2 GPUs are not A10 (gpushare.dev/gpu-model)``; empty if there are none.

    ``rules``: by GPU the position in ``gpu_selection.RULES``; 0 if the pod may have it, negative if there is no such GPU.
    """
    counts = Counter(rule for rule in rules if rule > 0)
    every = len(counts) == 1 and 0 not in rules
    parts = []
    for number, count in sorted(counts.items()):
        all_gpus, one, several = RULES[number].texts(selection)
        text = all_gpus if every else f"{counted(count, 'GPU')} {one if count == 1 else several}"
        parts.append(f"{text} ({RULES[number].annotation})")
    return ", ".join(parts)


def too_few_allowed(request: Request, allowed: int, note: str) -> str:
    """The pod's annotations allow fewer GPUs of the node than it requests; ``note`` is from ``excluded``."""
    if not allowed:
        return note
    return f"requests {request.gpu_count} GPUs, but its annotations allow only {allowed} of this node: {note}"


#: Requests for several GPUs.


def too_few_gpus(count: int, there: int) -> str:
    """The node has fewer GPUs than requested."""
    return f"requests {counted(count, 'GPU')}, but the node has {there}"


def too_few_large(request: Request, asked_mib: int, gpus: Sequence[int]) -> str:
    """Only ``gpus`` are as large as requested."""
    return f"requests {_wanted(request, asked_mib)}, but {_only(gpus, 'is', 'are')} as large"


def too_few_healthy(request: Request, asked_mib: int, note: str) -> str:
    """Too many of the GPUs that are large enough are out of service."""
    return f"requests {_wanted(request, asked_mib)}, but too few of them are in service ({note})"


def too_few_free(request: Request, asked_mib: int, gpus: Sequence[int]) -> str:
    """Only ``gpus`` have enough free, or are entirely free if whole GPUs are requested."""
    if request.whole_device:
        return f"needs {_wanted(request, asked_mib)} completely free, but {_only(gpus, 'is', 'are')}"
    return f"needs {_wanted(request, asked_mib)} free each, but {_only(gpus, 'has', 'have')}"


def too_few_below_cap(request: Request, asked_mib: int, max_pods: int, gpus: Sequence[int]) -> str:
    """Of the GPUs with enough free, only ``gpus`` may take one more pod."""
    than = f"fewer than {counted(max_pods, 'pod')}"
    return f"needs {_wanted(request, asked_mib)} free each and {than}, but {_only(gpus, 'has', 'have')}"


def too_few_with_compute(request: Request, asked_mib: int, gpus: Sequence[int]) -> str:
    """Of the GPUs with enough free memory, only ``gpus`` have the compute too."""
    asked = f"{_wanted(request, asked_mib)} and {request.core_percent}% compute"
    return f"needs {asked} free each, but {_only(gpus, 'has', 'have')}"


def _wanted(request: Request, asked_mib: int) -> str:
    gpus = "a GPU" if request.gpu_count == 1 else f"{request.gpu_count} GPUs"
    if request.by_gpu:
        return gpus
    return f"{gpus} with {memory_text(asked_mib)}{' or more' if request.whole_device else ''}"


def _only(gpus: Sequence[int], one: str, more: str) -> str:
    if not gpus:
        return f"no GPU {one}"
    if len(gpus) == 1:
        return f"only GPU {gpus[0]} {one}"
    return f"only GPUs {', '.join(map(str, gpus[:-1]))} and {gpus[-1]} {more}"


class Parts(dict[int, str]):
    """Texts by a number that encodes their contents; cached, because they recur.

    A loop over thousands of nodes then costs one lookup and one concatenation per node.
    """

    def __init__(self, write: Callable[[int], str]) -> None:
        super().__init__()
        self._write = write

    def __missing__(self, key: int) -> str:
        if len(self) >= _MAX_CACHED_TEXTS:
            self.clear()
        text = self[key] = self._write(key)
        return text
