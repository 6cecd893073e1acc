"""How much CPU of each node is not requested by its pods. The ledger gets this number, as it does not see CPU requests itself.

As in kube-scheduler, the requests of bound pods count, not their use.
"""

from collections.abc import Callable


class CpuUsage:
    """Nodes and pods may be added in any order. ``on_change`` is called with a node and its free CPU in thousandths."""

    def __init__(self, on_change: Callable[[str, int], None]) -> None:
        self._on_change = on_change
        self._allocatable_milli: dict[str, int] = {}
        self._requested_milli: dict[str, int] = {}
        self._pods: dict[str, tuple[str, int]] = {}

    def set_node(self, name: str, allocatable_milli: int) -> None:
        """Set the allocatable CPU of a node, in thousandths."""
        self._allocatable_milli[name] = allocatable_milli
        self._report(name)

    def remove_node(self, name: str) -> None:
        """A node was deleted. Its pods' requests stay counted until the pods are deleted too."""
        self._allocatable_milli.pop(name, None)

    def take(self, uid: str, node: str, milli: int) -> None:
        """The pod is bound to ``node`` and requests ``milli`` thousandths there. Replaces its previous request."""
        if self._pods.get(uid) == (node, milli):
            return
        self.release(uid)
        if milli:
            self._pods[uid] = (node, milli)
            self._add(node, milli)

    def release(self, uid: str) -> None:
        """The pod finished or was deleted."""
        held = self._pods.pop(uid, None)
        if held is not None:
            self._add(held[0], -held[1])

    def _add(self, node: str, milli: int) -> None:
        requested = self._requested_milli.get(node, 0) + milli
        if requested:
            self._requested_milli[node] = requested
        else:
            self._requested_milli.pop(node, None)
        self._report(node)

    def _report(self, node: str) -> None:
        allocatable = self._allocatable_milli.get(node)
        if allocatable is not None:
            self._on_change(node, max(allocatable - self._requested_milli.get(node, 0), 0))
