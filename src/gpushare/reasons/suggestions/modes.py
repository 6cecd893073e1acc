"""Suggestions for pods whose request nodes would serve only in another mode.

The suggestion is to relabel one node: it names the node, its mode and the command. Only a node is named that would then fit the pod,
immediately or after its present pods have ended (``trial``). The eligible nodes are those of kube-scheduler's last call: the nodes that
pass its own rules (selector, affinity, tolerations).
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
from gpushare.reasons.suggestions.trial import fewest_first, idle_nodes, pods_on, refusal, to_try

_RULES: Final = "the pod's node selector, affinity or tolerations"


def wanted_mode(request: Request) -> NodeMode:
    """A mode in which nodes serve the request."""
    if request.by_gpu:
        return mode_giving(names.GPU_WHOLE)
    return mode_giving(names.GPU_CORE if request.wants_core else names.GPU_MEM)


def other_unit(ledger: Ledger, request: Request, allowed: Collection[str]) -> bool:
    """Whether the request's memory unit differs from that of all ``allowed`` nodes, so that it fits none of them in any mode."""
    if not request.unit_mib:
        return False
    units = {node.unit.mib for name in allowed if (node := ledger.node(name)) is not None and node.devices}
    return bool(units) and request.unit_mib not in units


def would_help(
    ledger: Ledger,
    request: Request,
    allowed: Sequence[str],
    *,
    of: int | None,
    elsewhere: str,
    lets: sizes.AllowsFn,
) -> str:
    """The suggestion; empty if the cause is neither a node's mode nor a malformed label or annotation of a node.

    ``allowed``: the nodes that the pod's own rules and its ResourcePolicy allow; ``of``: the number that its rules alone allow (``None``: all).
    ``elsewhere``: a node with capacity that they exclude, or empty.
    """
    wanted = wanted_mode(request)
    known = [node for name in sorted(allowed) if (node := ledger.node(name)) and node.devices]
    for malformed in to_try(node for node in known if node.problem and lets(request, node.name)):
        # With a malformed mode label the intended mode is unknown: assume the one that the pod needs.
        mode = wanted if names.LABEL_MODE in malformed.problem else malformed.mode
        once = _condition_of_change(
            ledger, request, structs.replace(malformed, mode=mode, refusal="", problem="")
        )
        if once is not None:
            return f"node {malformed.name}, once its labels and annotations are corrected{once}: {malformed.problem}"
    wrong = [node for node in known if _mode_refuses(request, node)]
    large = [node for node in wrong if _is_large_enough(request, node)]
    if wrong and not large:
        return _too_large(ledger, request, wrong, wanted, lets)
    useful = _labelled(ledger, request, [node for node in large if lets(request, node.name)], wanted)
    if useful is not None:
        node, label = useful
        if of is None:
            return f"node {node.name} is in mode {node.mode.value}: {label}; or one more node in mode {wanted.value}"
        return f"{_allowed_nodes(node, wrong, of)}: {label}; or {_other_rules(wanted, elsewhere)}"
    return ""


def idle_label(ledger: Ledger, request: Request, allowed: Collection[str], lets: sizes.AllowsFn) -> str:
    """The command that makes an idle node of ``allowed`` fit the request immediately; empty if there is none."""
    known = [
        node for name in sorted(idle_nodes(ledger, allowed)) if (node := ledger.node(name)) and node.devices
    ]
    large = [node for node in known if _mode_refuses(request, node) and _is_large_enough(request, node)]
    candidates = to_try(node for node in large if lets(request, node.name))
    idle = [node for node in candidates if not pods_on(ledger, node.name)]
    labelled = _labelled(ledger, request, idle, wanted_mode(request))
    return "" if labelled is None or not labelled[1].endswith("`") else labelled[1]


def _labelled(
    ledger: Ledger, request: Request, nodes: Sequence[NodeDevices], wanted: NodeMode
) -> tuple[NodeDevices, str] | None:
    """The node that would fit the request if relabelled, immediately or after its pods have ended; and the command."""
    useful: tuple[NodeDevices, str] | None = None
    # Prefer a node that fits immediately over one whose pods must end first.
    for node in fewest_first(ledger, to_try(fewest_first(ledger, nodes))):
        once = _condition_of_change(ledger, request, structs.replace(node, mode=wanted))
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
    """Suggestion for a request that is too large for all of ``wrong`` in mode ``wanted``; it may fit if divided between more GPUs."""
    if wrong_unit := sizes.of_wrong_unit(request, wrong):
        return wrong_unit
    advice = sizes.larger(request, wanted)
    changed = [structs.replace(node, mode=wanted) for node in wrong]
    for divided in sizes.divisions(request, changed):
        useful = _labelled(ledger, divided, list(sizes.holding(divided, changed, lets)), wanted)
        if useful is not None:
            return f"{advice}, {sizes.as_divided(divided)}, and {useful[1]}"
    return advice


def selected(ledger: Ledger, request: Request | None, selector: str, nodes: Sequence[str]) -> str:
    """For a pod that selects a mode in which none of ``nodes`` is: the node that would fit it in that mode, with the selected labels.

    Empty if a node is in that mode already, or none would fit the pod.
    """
    value, others = without_mode(selector)
    mode = MODES.get(value)
    if request is None or mode is None or not mode.resources:
        return ""
    known = [node for name in nodes if (node := ledger.node(name)) and node.devices]
    if any(node.mode is mode for node in known):
        return ""
    useful = _labelled(ledger, request, known, mode)
    if useful is None:
        return ""
    node, label = useful
    needs = f" ({mode.needs} must be installed on that node)" if mode.needs else ""
    return (
        f"no node is in mode {value}, which its nodeSelector requires; node {node.name} is in mode {node.mode.value}: "
        f"{label.replace(' --overwrite', f' {others} --overwrite') if others else label}{needs}"
    )


def without_mode(selector: str) -> tuple[str, str]:
    """The mode in a selector, or empty, and the selector's other labels."""
    prefix = f"{names.LABEL_MODE}="
    labels = selector.split()
    mode = next((label.removeprefix(prefix) for label in labels if label.startswith(prefix)), "")
    return mode, " ".join(label for label in labels if not label.startswith(prefix))


def is_in(ledger: Ledger, name: str, mode: str) -> bool:
    """Whether the node is in that mode."""
    node = ledger.node(name)
    return node is not None and node.mode.value == mode


def _mode_refuses(request: Request, node: NodeDevices) -> bool:
    """Whether the node refuses the request because of its mode, and not because of its GPUs."""
    if node.refusal or sum(map(request.allows, node.devices)) < min(request.gpu_count, len(node.devices)):
        return False
    return not node.mode.serves(whole=request.by_gpu, core=request.wants_core, gpus=request.gpu_count)


def _is_large_enough(request: Request, node: NodeDevices) -> bool:
    large = sum(
        node.units_of(device) >= request.memory_units and request.allows(device) for device in node.devices
    )
    return large >= request.gpu_count and request.core_percent <= 100


def _condition_of_change(ledger: Ledger, request: Request, changed: NodeDevices) -> str | None:
    """Which pods must end before the change helps without harm, as text; empty for none, ``None`` if it does not help even then."""
    current = ledger.node(changed.name)
    present, nominated = len(pods_on(ledger, changed.name)), len(ledger.nominations.on_node(changed.name))
    held = present > 0 and current is not None and not current.mode.keeps_isolation(changed.mode)
    fits = not refusal(ledger, request, changed)
    if fits and not held:
        return ""
    if not fits and refusal(ledger, request, changed, emptied=True):
        return None
    nominated = 0 if fits else nominated
    memory_only = changed.mode.gives_core and current is not None and current.mode.shares_memory
    parts = (
        [f"its {pods(present)}{' with GPU memory only' if memory_only else ''}"]
        if present or not nominated
        else []
    )
    if nominated:
        parts.append(f"{pods(nominated)} with reserved capacity there")
    condition = f"once {' and '.join(parts)} {have(present + nominated)} ended"
    if held and current is not None:
        return f", {condition}: mode {current.mode.value} enforces the shares of running pods"
    return f", which helps {condition}"


def _allowed_nodes(node: NodeDevices, wrong: Sequence[NodeDevices], count: int) -> str:
    if count == 1:
        return f"{_RULES} leave only node {node.name}, which is in mode {node.mode.value}"
    modes = Counter(node.mode.value for node in wrong)
    modes_text = ", ".join(f"{number} in mode {mode}" for mode, number in sorted(modes.items()))
    return f"{_RULES} leave {nodes(count)} ({modes_text})"


def _other_rules(wanted: NodeMode, elsewhere: str) -> str:
    if elsewhere:
        return f"other rules: node {elsewhere} has capacity"
    return f"rules that allow a node in mode {wanted.value}"
