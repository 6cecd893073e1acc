"""What would help a pod that asks for a kind of thing that the nodes give out in another mode alone.

A label of one node is the nearest answer: that node is named, with its mode and the command. Only a node is named that would take the
pod then, at once or without the pods that are there (``trials``). Which nodes a pod may go to at all is known from kube-scheduler's
last question: those that its own rules (selector, affinity, tolerations) leave.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Final

from msgspec import structs

from gpushare.ledger import Ledger
from gpushare.model import names
from gpushare.model.device import NodeDevices, NodeMode
from gpushare.model.request import Request
from gpushare.scheduler.counted import have, nodes, pods
from gpushare.scheduler.trials import MOST_TRIED, pods_on, refusal

_RULES: Final = "the pod's node selector, affinity or tolerations"
#: Nodes that are looked at for one that would do; of thousands of equal ones the first is as good.
_MOST_LOOKED_AT: Final = 256


def wanted_mode(request: Request) -> NodeMode:
    """A mode in which nodes give what is asked for."""
    if request.by_gpu:
        return NodeMode.TOPOLOGY
    return NodeMode.CORE_MEM if request.wants_core else NodeMode.SHARE


def would_help(
    ledger: Ledger, request: Request, left: Sequence[str], *, of: int | None, elsewhere: str
) -> str:
    """``left``: the nodes that the pod's own rules and its ResourcePolicy leave, of so many that its rules alone do (``None``: all).

    ``elsewhere``: a node with room that they do not leave, or empty. Empty where no node's mode, and no slip on a node, is in the way.
    """
    wanted = wanted_mode(request)
    known = [one for name in sorted(left)[:_MOST_LOOKED_AT] if (one := ledger.node(name)) and one.devices]
    for slip in islice((one for one in known if one.problem), MOST_TRIED):
        # With its label the node has lost its mode: it is the pod's, for all that is known.
        mode = wanted if names.LABEL_MODE in slip.problem else slip.mode
        once = _once(ledger, request, structs.replace(slip, mode=mode, refusal="", problem=""))
        if once is not None:
            return f"node {slip.name}, once what is written on it is corrected{once}: {slip.problem}"
    wrong = [one for one in known if _in_the_way(request, one)]
    large = [one for one in wrong if _is_large_enough(request, one)]
    if wrong and not large:
        return f"a node in mode {wanted.value} with larger GPUs, or more of them; or ask for less"
    # One that has to be emptied first comes after one that has not.
    large.sort(key=lambda one: len(pods_on(ledger, one.name)) + len(ledger.kept_there(one.name)))
    useful: tuple[str, NodeDevices] | None = None
    for node in large[:MOST_TRIED]:
        once = _once(ledger, request, structs.replace(node, mode=wanted))
        if once is not None and (useful is None or not once):
            useful = once, node
        if once == "":
            break
    if useful is not None:
        once, node = useful
        label = f"`kubectl label node {node.name} {names.LABEL_MODE}={wanted.value} --overwrite`{once}"
        if of is None:
            return f"node {node.name} is in mode {node.mode.value}: {label}; or one node more, in mode {wanted.value}"
        return f"{_left(node, wrong, of)}: {label}; or {_elsewhere(wanted, elsewhere)}"
    return ""


def _in_the_way(request: Request, node: NodeDevices) -> bool:
    """Whether the node's mode is what stands against the request."""
    if node.refusal:
        return False
    if request.by_gpu:
        return node.mode is not NodeMode.TOPOLOGY
    if not node.mode.shares_memory or (request.wants_core and not node.mode.gives_core):
        return True
    return request.gpu_count > 1 and not node.mode.gives_several


def _is_large_enough(request: Request, node: NodeDevices) -> bool:
    large = sum(node.units_of(device) >= request.memory_units for device in node.devices)
    return large >= request.gpu_count and request.core_percent <= 100


def _once(ledger: Ledger, request: Request, changed: NodeDevices) -> str | None:
    """What the change waits for to be of use, empty for nothing; ``None`` where it is of none even without the node's pods."""
    if not refusal(ledger, request, changed):
        return ""
    if refusal(ledger, request, changed, emptied=True):
        return None
    there, kept = len(pods_on(ledger, changed.name)), len(ledger.kept_there(changed.name))
    now = ledger.node(changed.name)
    alone = changed.mode is NodeMode.CORE_MEM and now is not None and now.mode.shares_memory
    who = [f"its {pods(there)}{' with GPU memory alone' if alone else ''}"] if there or not kept else []
    if kept:
        who.append(f"{pods(kept)} for which room is kept there")
    return f", which is of use once {' and '.join(who)} {have(there + kept)} ended"


def _left(node: NodeDevices, wrong: Sequence[NodeDevices], count: int) -> str:
    if count == 1:
        return f"{_RULES} leave node {node.name} alone, which is in mode {node.mode.value}"
    modes = Counter(one.mode.value for one in wrong)
    told = ", ".join(f"{many} in mode {mode}" for mode, many in sorted(modes.items()))
    return f"{_RULES} leave {nodes(count)} ({told})"


def _elsewhere(wanted: NodeMode, elsewhere: str) -> str:
    if elsewhere:
        return f"other rules: node {elsewhere} has room"
    return f"rules that let it go to a node in mode {wanted.value}"
