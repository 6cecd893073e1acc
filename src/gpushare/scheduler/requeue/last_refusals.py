"""By which nodes waiting pods were refused last, within a bound: of 5,000 nodes the names alone are 300 KiB a pod."""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Final

#: Pods of which that is remembered.
MOST_PODS: Final = 256


class RefusingNodes:
    """Of the pods (UIDs) that were refused last. How long a pod has waited is to be known of all of them: where more are refused
    again and again than are remembered here, each has its turn all the same."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, list[str]] = OrderedDict()

    def __iter__(self) -> Iterator[str]:
        """The pods, who was refused last last."""
        return iter(self._of)

    def note(self, uid: str, nodes: Collection[str]) -> None:
        """The pod was refused by these nodes."""
        self._of[uid] = list(nodes)
        self._of.move_to_end(uid)
        if len(self._of) > MOST_PODS:
            self._of.popitem(last=False)

    def of(self, uid: str) -> list[str]:
        """The nodes; empty where they are not remembered any more."""
        return self._of.get(uid, [])

    def forget(self, uid: str) -> None:
        """The pod waits no more."""
        self._of.pop(uid, None)

    def clear(self) -> None:
        """Forget all of them."""
        self._of.clear()
