"""What pods ask for, as people write it."""

from gpushare.api.errors import ModelError
from gpushare.api.json_objects import Json
from gpushare.api.objects import decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import Request, request_of


def asked_by(pod: Json, unit: MemoryUnit) -> str:
    """``3 GiB``, ``2 GiB + 30%``, ``4 × 8 GiB``, ``a whole GPU``; ``no GPU``, and ``?`` for what cannot be understood."""
    try:
        request = request_of(decode_pod(pod))
    except ModelError:
        return "?"
    return "no GPU" if request is None else asked(request, unit)


def asked(request: Request, unit: MemoryUnit) -> str:
    """What ``request`` is for; units are those of ``unit`` unless admission has counted it in another."""
    times = f"{request.gpu_count} × " if request.gpu_count > 1 else ""
    if request.by_gpu:
        return f"{request.gpu_count} whole GPU{'s' if request.gpu_count > 1 else ''}"
    unit = next((one for one in MemoryUnit if one.mib == request.unit_mib), unit)
    memory = f"{request.memory_units} {'GiB' if unit is MemoryUnit.GIB else '× 128 MiB'}"
    core = f" + {request.core_percent}%" if request.wants_core else ""
    return f"{times}{memory}{core}{' of a whole GPU' if request.whole_device else ''}"
