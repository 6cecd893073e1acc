"""How many processors of each node its pods leave free: told to the ledger, which cannot see them.

Counted as kube-scheduler does, by what bound pods ask for; by no means what they use.
"""

from collections.abc import Callable


class CpuUsage:
    """Nodes and pods may come in any order. ``on_change`` is told a node and the thousandths that are free on it."""

    def __init__(self, on_change: Callable[[str, int], None]) -> None:
        self._on_change = on_change
        self._allocatable_milli: dict[str, int] = {}
        self._taken_milli: dict[str, int] = {}
        self._pods: dict[str, tuple[str, int]] = {}

    def set_node(self, name: str, allocatable_milli: int) -> None:
        """A node has so many thousandths to give."""
        self._allocatable_milli[name] = allocatable_milli
        self._tell(name)

    def remove_node(self, name: str) -> None:
        """A node is gone; what its pods take stays counted until they are gone too."""
        self._allocatable_milli.pop(name, None)

    def take(self, uid: str, node: str, milli: int) -> None:
        """The pod is bound to ``node`` and takes so many there, in place of what it took before."""
        if self._pods.get(uid) == (node, milli):
            return
        self.release(uid)
        if milli:
            self._pods[uid] = (node, milli)
            self._add(node, milli)

    def release(self, uid: str) -> None:
        """The pod finished or is gone."""
        held = self._pods.pop(uid, None)
        if held is not None:
            self._add(held[0], -held[1])

    def _add(self, node: str, milli: int) -> None:
        taken = self._taken_milli.get(node, 0) + milli
        if taken:
            self._taken_milli[node] = taken
        else:
            self._taken_milli.pop(node, None)
        self._tell(node)

    def _tell(self, node: str) -> None:
        allocatable = self._allocatable_milli.get(node)
        if allocatable is not None:
            self._on_change(node, max(allocatable - self._taken_milli.get(node, 0), 0))
