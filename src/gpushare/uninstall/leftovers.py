"""What node agents left on a node. Pure."""

from typing import Final

from gpushare.api import names
from gpushare.api.errors import InvalidQuantity
from gpushare.api.objects import Node
from gpushare.api.quantity import parse_amount

#: Every resource that an agent advertises or counts.
RESOURCES: Final = (names.GPU_COUNT, names.GPU_MEM, names.GPU_CORE, names.GPU_WHOLE)


def is_described(node: Node) -> bool:
    """Whether the node has our device annotation, or one that is still being removed."""
    metadata = node.metadata
    return names.ANN_DEVICES in (metadata.annotations or {}) or names.LABEL_DESCRIBED in (
        metadata.labels or {}
    )


def advertised(node: Node) -> list[str]:
    """Our resources in the node's status."""
    named = {**(node.status.capacity or {}), **(node.status.allocatable or {})}
    return [resource for resource in RESOURCES if resource in named]


def used_up(node: Node) -> list[str]:
    """Our resources in the node's status with amount 0.

    That is all that is left of a mode that the node once had; on nodes of others it says nothing.
    """
    named = [*(node.status.capacity or {}).items(), *(node.status.allocatable or {}).items()]

    def amount(resource: str) -> int:
        try:
            return sum(parse_amount(value) for name, value in named if name == resource)
        except InvalidQuantity:
            return 1

    return [resource for resource in advertised(node) if amount(resource) == 0]
