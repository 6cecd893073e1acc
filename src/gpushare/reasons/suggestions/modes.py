"""What would help a pod that asks for a kind of thing that the nodes give out in another mode alone.

A label of one node is the nearest answer: that node is named, with its mode and the command. Only a node is named that would take the
pod then, at once or without the pods that are there (``trials``). Which nodes a pod may go to at all is known from kube-scheduler's
last question: those that its own rules (selector, affinity, tolerations) leave.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from msgspec import structs

from gpushare.api import names
from gpushare.api.node.device import NodeDevices
from gpushare.api.node.modes import MODES, NodeMode, mode_giving
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.reasons.phrases import have, nodes, pods
from gpushare.reasons.suggestions import sizes
from gpushare.reasons.suggestions.trial import fewest_first, idle_of, pods_on, refusal, to_try

_RULES: Final = "the pod's node selector, affinity or tolerations"


def wanted_mode(request: Request) -> NodeMode:
    """A mode in which nodes give what is asked for."""
    if request.by_gpu:
        return mode_giving(names.GPU_WHOLE)
    return mode_giving(names.GPU_CORE if request.wants_core else names.GPU_MEM)


def other_unit(ledger: Ledger, request: Request, left: Collection[str]) -> bool:
    """Whether the request was counted in another unit than all of the nodes ``left`` count in, so that it fits none of them in any mode."""
    if not request.unit_mib:
        return False
    units = {one.unit.mib for name in left if (one := ledger.node(name)) is not None and one.devices}
    return bool(units) and request.unit_mib not in units


def would_help(
    ledger: Ledger,
    request: Request,
    left: Sequence[str],
    *,
    of: int | None,
    elsewhere: str,
    lets: sizes.AllowsFn,
) -> str:
    """``left``: the nodes that the pod's own rules and its ResourcePolicy leave, of so many that its rules alone do (``None``: all).

    ``elsewhere``: a node with room that they do not leave, or empty. Empty where no node's mode, and no slip on a node, is in the way.
    """
    wanted = wanted_mode(request)
    known = [one for name in sorted(left) if (one := ledger.node(name)) and one.devices]
    for slip in to_try(one for one in known if one.problem and lets(request, one.name)):
        # With its label the node has lost its mode: it is the pod's, for all that is known.
        mode = wanted if names.LABEL_MODE in slip.problem else slip.mode
        once = _once(ledger, request, structs.replace(slip, mode=mode, refusal="", problem=""))
        if once is not None:
            return f"node {slip.name}, once what is written on it is corrected{once}: {slip.problem}"
    wrong = [one for one in known if _in_the_way(request, one)]
    large = [one for one in wrong if _is_large_enough(request, one)]
    if wrong and not large:
        return _too_large(ledger, request, wrong, wanted, lets)
    useful = _labelled(ledger, request, [one for one in large if lets(request, one.name)], wanted)
    if useful is not None:
        node, label = useful
        if of is None:
            return f"node {node.name} is in mode {node.mode.value}: {label}; or one node more, in mode {wanted.value}"
        return f"{_left(node, wrong, of)}: {label}; or {_elsewhere(wanted, elsewhere)}"
    return ""


def idle_label(ledger: Ledger, request: Request, left: Collection[str], lets: sizes.AllowsFn) -> str:
    """The command that makes one of the nodes ``left`` take the request at once, on which no pod holds anything; empty for none."""
    known = [one for name in sorted(idle_of(ledger, left)) if (one := ledger.node(name)) and one.devices]
    large = [one for one in known if _in_the_way(request, one) and _is_large_enough(request, one)]
    some = to_try(one for one in large if lets(request, one.name))
    idle = [one for one in some if not pods_on(ledger, one.name)]
    found = _labelled(ledger, request, idle, wanted_mode(request))
    return "" if found is None or not found[1].endswith("`") else found[1]


def _labelled(
    ledger: Ledger, request: Request, nodes: Sequence[NodeDevices], wanted: NodeMode
) -> tuple[NodeDevices, str] | None:
    """The one of ``nodes`` that would take the request at once were it labelled, or once its pods have ended; and the command."""
    useful: tuple[NodeDevices, str] | None = None
    # One that has to be emptied first comes after one that has not.
    for node in fewest_first(ledger, to_try(fewest_first(ledger, nodes))):
        once = _once(ledger, request, structs.replace(node, mode=wanted))
        if once is not None and (useful is None or not once):
            label = f"`kubectl label node {node.name} {names.LABEL_MODE}={wanted.value} --overwrite`{once}"
            useful = node, label
        if once == "":
            break
    return useful


def _too_large(
    ledger: Ledger,
    request: Request,
    wrong: Sequence[NodeDevices],
    wanted: NodeMode,
    lets: sizes.AllowsFn,
) -> str:
    """For a request that none of ``wrong`` would hold in the mode ``wanted``; over more of its GPUs one of them may."""
    if slip := sizes.of_wrong_unit(request, wrong):
        return slip
    advice = sizes.larger(request, wanted)
    changed = [structs.replace(node, mode=wanted) for node in wrong]
    for divided in sizes.divisions(request, changed):
        useful = _labelled(ledger, divided, list(sizes.holding(divided, changed, lets)), wanted)
        if useful is not None:
            return f"{advice}, {sizes.as_divided(divided)}, and {useful[1]}"
    return advice


def selected(ledger: Ledger, request: Request | None, selector: str, nodes: Sequence[str]) -> str:
    """For a pod that wants nodes of a mode, and none of ``nodes`` is in it: which would take it in that mode, with all labels that it wants.

    Empty where nodes are in that mode already, or none would take it.
    """
    value, others = without_mode(selector)
    mode = MODES.get(value)
    if request is None or mode is None or not mode.resources:
        return ""
    known = [one for name in nodes if (one := ledger.node(name)) and one.devices]
    if any(one.mode is mode for one in known):
        return ""
    useful = _labelled(ledger, request, known, mode)
    if useful is None:
        return ""
    node, label = useful
    besides = f" ({mode.needs} has to be on that node)" if mode.needs else ""
    return (
        f"no node is in mode {value}, which its nodeSelector wants; node {node.name} is in mode {node.mode.value}: "
        f"{label.replace(' --overwrite', f' {others} --overwrite') if others else label}{besides}"
    )


def without_mode(selector: str) -> tuple[str, str]:
    """The mode that a selector wants of a node, empty for none, and what it wants besides."""
    prefix = f"{names.LABEL_MODE}="
    labels = selector.split()
    mode = next((one.removeprefix(prefix) for one in labels if one.startswith(prefix)), "")
    return mode, " ".join(one for one in labels if not one.startswith(prefix))


def is_in(ledger: Ledger, name: str, mode: str) -> bool:
    """Whether the node gives out its GPUs in that mode."""
    node = ledger.node(name)
    return node is not None and node.mode.value == mode


def _in_the_way(request: Request, node: NodeDevices) -> bool:
    """Whether the node's mode is what stands against the request."""
    if node.refusal:
        return False
    return not node.mode.serves(whole=request.by_gpu, core=request.wants_core, gpus=request.gpu_count)


def _is_large_enough(request: Request, node: NodeDevices) -> bool:
    large = sum(node.units_of(device) >= request.memory_units for device in node.devices)
    return large >= request.gpu_count and request.core_percent <= 100


def _once(ledger: Ledger, request: Request, changed: NodeDevices) -> str | None:
    """What the change waits for to be of use and to take nothing from pods there, empty for nothing; ``None`` where it is of no use even without them."""
    now = ledger.node(changed.name)
    there, kept = len(pods_on(ledger, changed.name)), len(ledger.nominations.on_node(changed.name))
    held = there > 0 and now is not None and not now.mode.keeps_held(changed.mode)
    fits = not refusal(ledger, request, changed)
    if fits and not held:
        return ""
    if not fits and refusal(ledger, request, changed, emptied=True):
        return None
    kept = 0 if fits else kept
    alone = changed.mode.gives_core and now is not None and now.mode.shares_memory
    who = [f"its {pods(there)}{' with GPU memory alone' if alone else ''}"] if there or not kept else []
    if kept:
        who.append(f"{pods(kept)} for which room is kept there")
    ended = f"once {' and '.join(who)} {have(there + kept)} ended"
    if held and now is not None:
        return f", {ended}: mode {now.mode.value} holds what runs there to its share"
    return f", which is of use {ended}"


def _left(node: NodeDevices, wrong: Sequence[NodeDevices], count: int) -> str:
    if count == 1:
        return f"{_RULES} leave only node {node.name}, which is in mode {node.mode.value}"
    modes = Counter(one.mode.value for one in wrong)
    advice = ", ".join(f"{many} in mode {mode}" for mode, many in sorted(modes.items()))
    return f"{_RULES} leave {nodes(count)} ({advice})"


def _elsewhere(wanted: NodeMode, elsewhere: str) -> str:
    if elsewhere:
        return f"other rules: node {elsewhere} has room"
    return f"rules that let it go to a node in mode {wanted.value}"
