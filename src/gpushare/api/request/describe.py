"""Textual descriptions of requests."""

from typing import Final

from gpushare.api import names
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import Request

#: 1 TiB, several times the largest GPU: such a request was probably written in another unit.
MOST_GPU_MIB: Final = 1 << 20
#: Ends of the hints on a wrong unit: with a suffix written, and with a number of MiB.
WITHOUT_SUFFIX: Final = ", without Mi or Gi"
NOT_OF_MIB: Final = ", and not of MiB"


def wrong_unit(request: Request, unit: MemoryUnit) -> str:
    """The hint that ``aliyun.com/gpu-mem`` counts in ``unit``, for requests apparently in bytes or MiB; empty for others."""
    if request.by_gpu or request.unit_mib or request.memory_units * unit.mib < MOST_GPU_MIB:
        return ""
    end = NOT_OF_MIB if _written_mib(request) else WITHOUT_SUFFIX
    return f"{names.GPU_MEM} is a number of units of {memory_text(unit.mib)}{end}"


def right_unit(request: Request, unit: MemoryUnit) -> str:
    """The correction for a request with a ``wrong_unit``."""
    mib = _written_mib(request)
    if not mib:
        return f"write {names.GPU_MEM} as a number of units, without Mi or Gi"
    return (
        f"{mib} looks like MiB: write {names.GPU_MEM}: {-(-mib // unit.mib)}, or {names.GPU_MEMORY}: {mib}Mi"
    )


def _written_mib(request: Request) -> int:
    """The number that a single container with one GPU apparently wrote in MiB; 0 if it may be bytes, or for other requests."""
    if len(request.containers) != 1 or request.gpu_count != 1:
        return 0
    written = request.containers[0].memory_units
    return written if written <= MOST_GPU_MIB else 0


def asks_text(request: Request | None, unit_mib: int = 0) -> str:
    """A pod's requests as in its manifest; empty if unreadable.

    ``unit_mib``: the unit of the nodes, to add GiB or MiB; 0: unknown.
    """
    if request is None:
        return ""
    chosen = [] if request.selection is None else request.selection.written()
    placements = {
        names.ANN_GPU_PLACEMENT: request.gpu_placement,
        names.ANN_NODE_PLACEMENT: request.node_placement,
    }
    chosen += [f"{name}: {policy.value}" for name, policy in placements.items() if policy is not None]
    if request.by_gpu:
        return ", ".join([f"{names.GPU_WHOLE}: {request.gpu_count}", *chosen])
    parts = [units_text(request.memory_units * request.gpu_count, unit_mib)]
    if request.unit_mib:
        parts = [
            f"{names.GPU_MEMORY}: {memory_text(request.memory_units * request.gpu_count * request.unit_mib)}"
        ]
    if request.core_percent:
        parts.append(f"{names.GPU_CORE}: {request.core_percent * request.gpu_count}")
    if request.apart:
        parts.append(f"{names.LABEL_POD_APART}: true")
    elif request.gpu_count > 1:
        parts.append(f"{names.LABEL_POD_GPU_COUNT}: {request.gpu_count}")
    if request.whole_device:
        parts.append(f"{names.LABEL_POD_PLACEMENT}: {names.POD_PLACEMENT_WHOLE_DEVICE}")
    return ", ".join(parts + chosen)


def short_text(request: Request, unit: MemoryUnit) -> str:
    """``3 GiB``, ``2 GiB + 30%``, ``4 × 8 GiB``, ``1 whole GPU``; ``unit`` is that of the nodes, unless admission used another one."""
    times = f"{request.gpu_count} × " if request.gpu_count > 1 else ""
    if request.by_gpu:
        return f"{request.gpu_count} whole GPU{'s' if request.gpu_count > 1 else ''}"
    unit = next((candidate for candidate in MemoryUnit if candidate.mib == request.unit_mib), unit)
    memory = f"{request.memory_units} {'GiB' if unit is MemoryUnit.GIB else '× 128 MiB'}"
    core = f" + {request.core_percent}%" if request.wants_core else ""
    return f"{times}{memory}{core}{' of a whole GPU' if request.whole_device else ''}"


def units_text(units: int, unit_mib: int) -> str:
    """The resource with its units, and their size if ``unit_mib`` is not 0: ``aliyun.com/gpu-mem: 40 (40 GiB)``."""
    text = f"{names.GPU_MEM}: {units}"
    return f"{text} ({memory_text(units * unit_mib)})" if unit_mib else text


def memory_text(mib: int) -> str:
    """``8 GiB`` or ``128 MiB``: GiB if it is a whole number of them."""
    return f"{mib >> 10} GiB" if mib % 1024 == 0 else f"{mib} MiB"
