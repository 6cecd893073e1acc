"""How many nodes of a shape would have to be added so that no pod is pending."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from gpushare.simulate.engine.engine import Settings
from gpushare.simulate.engine.simulation import Fate, Result, simulate
from gpushare.simulate.input.manifests import NewPod
from gpushare.simulate.input.node_shapes import Shape, nodes_of
from gpushare.simulate.snapshot import ClusterState

OnResult = Callable[[str], None]
#: The most pods for which a node each is added before it is concluded that more nodes would not help.
_FEW: Final = 64


class Enough(msgspec.Struct, frozen=True):
    """With ``count`` added nodes of ``shape`` all pods that such nodes can help are placed; with one less they are not.

    ``result`` is the run with them. ``still_waiting`` are pods that stay pending with any number. ``runs``: how many runs it took.
    """

    shape: Shape
    count: int
    result: Result
    still_waiting: tuple[Fate, ...]
    runs: int


def enough(
    state: ClusterState,
    new_pods: Sequence[NewPod],
    settings: Settings,
    shape: Shape,
    *,
    reschedule: bool = False,
    on_run: OnResult = lambda text: None,
) -> Enough:
    """The smallest number of nodes of ``shape`` that helps as much as any number does. Raises ``SimulateError``.

    Both sides of the result were run: this number is enough, and one less is not. Placement does not search for the best packing,
    so a still smaller number could be enough by chance; it is not searched for.
    """
    results: dict[int, Result] = {}

    def waiting(count: int) -> int:
        if count not in results:
            on_run(f"{shape.text}: {count} more node{'' if count == 1 else 's'}")
            extended = msgspec.structs.replace(state, nodes=(*state.nodes, *nodes_of(shape, count)))
            results[count] = simulate(extended, new_pods, settings, reschedule=reschedule)
        return len(results[count].waiting)

    # A node for each pending pod, and as many for other pods that take those: a few pods may all prefer the new nodes.
    most = 2 * waiting(0)
    if most:
        most = max(most, min(len(results[0].fates), _FEW))
    least_waiting = waiting(most)
    low, high = 0, 1
    if waiting(0) == least_waiting:
        high = 0
    while high < most and waiting(high) > least_waiting:
        low, high = high, min(high * 2, most)
    while high - low > 1:
        middle = (low + high) // 2
        if waiting(middle) > least_waiting:
            low = middle
        else:
            high = middle
    waiting(high)
    return Enough(shape, high, results[high], tuple(results[high].waiting), len(results))
