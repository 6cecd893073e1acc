"""Results of the ledger: immutable values."""

import msgspec

from gpushare.api.allocation.allocation import Allocation, GpuShare
from gpushare.api.quantity import MemoryUnit


class Held(msgspec.Struct, frozen=True):
    """What the pod ``uid`` holds on ``node``; ``pod`` is its ``namespace/name``.

    ``confirmed`` is false while it is only reserved, true once the API server has reported it. ``priority`` decides whether it may
    be evicted for a more important pod (``priorities.LEAVING``: it is terminating; ``ANY``: it is, but not soon, and an eviction would not help).
    """

    uid: str
    pod: str
    node: str
    allocation: Allocation
    confirmed: bool
    priority: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """Where a request fits, in the order of the query, and for every other node the reason, for people.

    ``hopeless`` are the nodes on which no eviction could make it fit; ``refused`` all others.
    """

    fits: list[str]
    refused: dict[str, str]
    hopeless: dict[str, str]


class GpuUsage(msgspec.Struct, frozen=True):
    """One GPU of a node: what it has and what is held of it.

    ``used_mib`` is the sum over its pods, larger than ``total_mib`` if others overcommitted it.
    Units are those of the node at present: what was recorded in them counts exactly, the rest as the
    least number of units that holds its MiB. ``pods`` are UIDs, sorted.
    """

    uuid: str
    index: int
    healthy: bool
    total_mib: int
    used_mib: int
    total_units: int
    used_units: int
    used_core: int
    pods: tuple[str, ...]
    foreign_mib: int = 0
    """MiB that processes hold without an allocation by us."""

    @property
    def free_mib(self) -> int:
        """Free MiB; 0 if more is held than the GPU has."""
        return max(self.total_mib - self.used_mib - self.foreign_mib, 0)


class PendingShare(msgspec.Struct, frozen=True):
    """A share that the pod ``uid`` holds of a GPU that its node does not have at present."""

    uid: str
    share: GpuShare


class NodeUsage(msgspec.Struct, frozen=True):
    """A node's GPUs by index, and what is held of GPUs that it does not have (sorted by UID and UUID).

    ``unit`` is ``None`` for an unknown node, which has no GPUs here, but may have pods.
    """

    node: str
    unit: MemoryUnit | None
    gpus: tuple[GpuUsage, ...]
    pending: tuple[PendingShare, ...]


class Totals(msgspec.Struct, frozen=True):
    """The whole cluster in figures, for metrics.

    ``gpus`` and their MiB are those of all known nodes, in any mode; ``used_core`` is in percent of one GPU; ``pods`` counts
    all that hold something, ``reserved`` those of them that the API server has not confirmed; ``pending`` counts shares of
    missing GPUs.
    """

    nodes: int
    gpus: int
    total_mib: int
    used_mib: int
    used_core: int
    pods: int
    reserved: int
    pending: int
