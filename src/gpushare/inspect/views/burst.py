"""What pods may use of a GPU beyond their share, by ``gpushare.dev/gpu-memory-limit``."""

from typing import TYPE_CHECKING

from gpushare.api.allocation.allocation import Allocation
from gpushare.api.objects import Pod
from gpushare.api.request.memory_limit import bound_memory_limits
from gpushare.api.request.request import ContainerKind, listed_containers

if TYPE_CHECKING:
    from gpushare.inspect.views.allocation_model import PodShare


def with_limits(shares: "tuple[PodShare, ...]", pod: Pod, allocation: Allocation) -> "tuple[PodShare, ...]":
    """``shares`` with what the pod's containers that run together may use of each GPU."""
    lasting = {one.name for _, one, kind in listed_containers(pod) if kind is not ContainerKind.INIT}
    sharing = {name: parts for name, parts in allocation.containers.items() if name in lasting}
    limits_mib = bound_memory_limits(pod.metadata.annotations or {}, sharing)
    more_mib: dict[str, int] = {}
    for name, limit_mib in limits_mib.items():
        for part in sharing[name]:
            more_mib[part.uuid] = more_mib.get(part.uuid, 0) + max(limit_mib - part.mib, 0)
    return tuple(
        share._replace(limit_mib=min(share.mib + more_mib[share.device.uuid], share.device.total_mib))
        if more_mib.get(share.device.uuid)
        else share
        for share in shares
    )
