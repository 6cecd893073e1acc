"""What would help a pod that asks for a kind of thing that the nodes give out in another mode alone.

A label of one node is the nearest answer: that node is named, with its mode and the command. Which nodes a pod may go to at all is known
from kube-scheduler's last question: those that its own rules (selector, affinity, tolerations) leave.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from gpushare.ledger import Ledger
from gpushare.model import names
from gpushare.model.device import NodeDevices, NodeMode
from gpushare.model.request import Request
from gpushare.scheduler.counted import have, nodes, pods

_RULES: Final = "the pod's node selector, affinity or tolerations"
#: Nodes that are looked at for one that would do; of thousands of equal ones the first is as good.
_MOST_LOOKED_AT: Final = 256


def wanted_mode(request: Request) -> NodeMode:
    """A mode in which nodes give what is asked for."""
    if request.by_gpu:
        return NodeMode.TOPOLOGY
    return NodeMode.CORE_MEM if request.wants_core else NodeMode.SHARE


def would_help(ledger: Ledger, request: Request, asked: Collection[str] | None) -> str:
    """``asked``: the nodes that the pod's own rules leave; ``None``: all. Empty where no node's mode, and no slip on a node, is in the way."""
    wanted = wanted_mode(request)
    left = sorted(ledger.node_names() if asked is None else asked)
    slip = next((one for name in left[:_MOST_LOOKED_AT] if (one := ledger.node(name)) and one.problem), None)
    if slip is not None:
        return f"node {slip.name}, once what is written on it is corrected: {slip.problem}"
    wrong = [one for name in left[:_MOST_LOOKED_AT] if (one := _in_the_way(ledger, request, name))]
    if not wrong:
        return ""
    # One that has to be emptied first comes after one that has not.
    node, busy = min(((one, _others(ledger, one, wanted)) for one in wrong), key=lambda found: found[1])
    label = f"kubectl label node {node.name} {names.LABEL_MODE}={wanted.value} --overwrite"
    if busy:
        label += f", which is of use once its {pods(busy)} with GPU memory alone {have(busy)} ended"
    if asked is None:
        return f"node {node.name} is in mode {node.mode.value}: {label}; or one node more, in mode {wanted.value}"
    return f"{_left(wrong, len(left))}: {label}; or {_elsewhere(ledger, request, wanted, frozenset(asked))}"


def _in_the_way(ledger: Ledger, request: Request, name: str) -> NodeDevices | None:
    """The node, where its mode is what stands against the request, and not that it has no GPU."""
    node = ledger.node(name)
    if node is None or node.refusal or not node.devices:
        return None
    if request.by_gpu:
        return None if node.mode is NodeMode.TOPOLOGY else node
    if not node.mode.shares_memory or (request.wants_core and not node.mode.gives_core):
        return node
    return node if request.gpu_count > 1 and not node.mode.gives_several else None


def _others(ledger: Ledger, node: NodeDevices, wanted: NodeMode) -> int:
    """Pods with GPU memory alone, beside which no pod with compute may be."""
    if wanted is not NodeMode.CORE_MEM or not node.mode.shares_memory:
        return 0
    return len({uid for gpu in ledger.usage(node.name).gpus for uid in gpu.pods})


def _left(wrong: Sequence[NodeDevices], count: int) -> str:
    if count == 1:
        return f"{_RULES} leave node {wrong[0].name} alone, which is in mode {wrong[0].mode.value}"
    modes = Counter(one.mode.value for one in wrong)
    told = ", ".join(f"{many} in mode {mode}" for mode, many in sorted(modes.items()))
    return f"{_RULES} leave {nodes(count)} ({told})"


def _elsewhere(ledger: Ledger, request: Request, wanted: NodeMode, left: frozenset[str]) -> str:
    others = ledger.filter(request, [node for node in ledger.roomiest() if node not in left])
    if others.fits:
        return f"other rules: node {others.fits[0]} has room"
    return f"rules that let it go to a node in mode {wanted.value}"
