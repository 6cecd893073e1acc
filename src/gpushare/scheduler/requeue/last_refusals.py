"""The nodes that last refused each pending pod, for a bounded number of pods: the names of 5,000 nodes take 300 KiB per pod."""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Final

#: Maximum number of remembered pods.
MOST_PODS: Final = 256


class RefusingNodes:
    """The refusing nodes of the pods (UIDs) that were refused last.

    Callers must know how long a pod is pending independently of this: if more pods are refused again and again than are remembered here,
    each of them still gets its turn.
    """

    def __init__(self) -> None:
        self._nodes_of: OrderedDict[str, list[str]] = OrderedDict()

    def __iter__(self) -> Iterator[str]:
        """The pods, the most recently refused last."""
        return iter(self._nodes_of)

    def note(self, uid: str, nodes: Collection[str]) -> None:
        """The pod was refused by these nodes."""
        self._nodes_of[uid] = list(nodes)
        self._nodes_of.move_to_end(uid)
        if len(self._nodes_of) > MOST_PODS:
            self._nodes_of.popitem(last=False)

    def of(self, uid: str) -> list[str]:
        """The nodes that last refused the pod; empty if they are no longer remembered."""
        return self._nodes_of.get(uid, [])

    def forget(self, uid: str) -> None:
        """The pod is no longer pending."""
        self._nodes_of.pop(uid, None)

    def clear(self) -> None:
        """Forget all pods."""
        self._nodes_of.clear()
