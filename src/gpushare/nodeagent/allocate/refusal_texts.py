"""What is said of an ``Allocate`` that nobody waits for, or nobody may be given. Pure."""

from collections.abc import Collection, Mapping, Sequence

from gpushare.api.node.device import NodeDevices
from gpushare.nodeagent.allocate.pod_allocations import Claim
from gpushare.nodeagent.allocate.requested_devices import worded
from gpushare.nodeagent.errors import ClaimRefused


def gpus_named(place: Collection[str], node: NodeDevices) -> str:
    """GPUs (UUIDs) in words: ``GPU 0`` or ``GPU 0 and GPU 1``; by their UUIDs those that the node has not."""
    known = [device for device in node.devices if device.uuid in place]
    unknown = sorted(set(place) - {device.uuid for device in known})
    return " and ".join([*(f"GPU {device.index}" for device in known), *(f"GPU {uuid}" for uuid in unknown)])


def refusal(
    node: NodeDevices,
    resource: str,
    amount: int,
    counted: Mapping[str, int],
    waiting: Sequence[tuple[Claim, Collection[str]]],
) -> ClaimRefused:
    """That nobody can be given ``amount`` devices, so many of each GPU (UUID) as were ``counted``; ``waiting`` are the pods
    that want as many, and where these are expected."""
    of = f" of {gpus_named(counted, node)}" if counted else ""
    if len(counted) > 1:
        on = ", ".join(f"{count} on {gpus_named([uuid], node)}" for uuid, count in counted.items())
        of = f" with devices on several GPUs ({on})"
    text = f"no pod bound to node {node.name} waits for {worded(resource, amount)}{of}"
    if waiting:
        where = ", ".join(f"{claim.pod.key} on {gpus_named(place, node)}" for claim, place in waiting[:3])
        more = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
        text += f"; as much is decided for {where}{more}, and it can be given nowhere else"
    return ClaimRefused("", text, tuple(claim.uid for claim, _ in waiting))
