"""Whether what is advised to a pod is true where GPUs are out of service, or not offered."""

import re
from typing import TYPE_CHECKING, Any

import msgspec

from gpushare.api.node.device import NodeDevices
from tests.unit.scheduler.why_world import OFFERS

if TYPE_CHECKING:
    from tests.unit.scheduler.suggestion_truth import Judge

SERVICE = (
    r"GPUs that (are back in service|their kubelet offers again)"
    r"(, and the end of what runs there|, and room there that is kept for others)?: (.+)"
)
RESET = (
    r"GPUs? ([\d, and]+) of node (\w+): once (?:its|their) pods have ended, `nvidia-smi -r -i ([\d,]+)` there, or a reboot "
    r"\(`gpushare doctor` and the node's condition GPUShareReady say more\)"
)
CORDONED = r"GPUs? ([\d, and]+) of node (\w+) (?:is|are) cordoned: `kubectl annotate node (\w+) gpushare.dev/cordoned-gpus-`"


def of_service(judge: "Judge", suggestion: str) -> str:
    if not judge.known:
        assert suggestion == "GPUs that are back in service"
        return "health of some"
    found = re.fullmatch(SERVICE, suggestion)
    assert found, suggestion
    offers = re.fullmatch(r"node (\w+): (.+)", found[3])
    if offers:
        node = offers[1]
        assert offers[2].startswith(OFFERS)
        assert found[1] == "their kubelet offers again"
        assert node in judge.scene.short
        changes: dict[str, Any] = {}
    else:
        assert found[1] == "are back in service"
        node = _mended(judge, found[3])
        refused = judge.naive.reason(judge.request, node)
        assert refused is not None
        assert refused[1]
        changes = {"devices": in_service(judge.naive.nodes[node])}
    assert node in judge.of_kind()
    at_once = judge.would(node, **changes)
    assert at_once == (found[2] is None)
    assert (found[2] == ", and room there that is kept for others") == (
        not at_once and judge.would(node, kept=False, **changes)
    )
    if not at_once:
        nobody = changes.get("devices", judge.naive.nodes[node].devices)
        devices = tuple(msgspec.structs.replace(one, foreign_mib=0) for one in nobody)
        assert judge.would(node, emptied=True, devices=devices)
    return ("offers" if not changes else "health") + ("" if at_once else ", and ends")


def _mended(judge: "Judge", told: str) -> str:
    """The node of which it is said how its GPUs come back, each as what keeps it out of service wants it."""
    reset, cordoned = re.match(RESET, told), re.search(f"{CORDONED}$", told)
    said = [part[0] for part in (reset, cordoned) if part]
    assert "; ".join(said) == told
    node = next(part[2] for part in (reset, cordoned) if part)
    its = judge.naive.nodes[node].devices
    sick = [str(one.index) for one in its if not one.healthy]
    assert (reset is None) == (not sick)
    if reset:
        assert (reset[2], reset[3]) == (node, ",".join(sick))
        assert re.findall(r"\d+", reset[1]) == sick
    shut = [str(one.index) for one in its if one.healthy and one.cordoned]
    if cordoned:
        assert cordoned[2] == cordoned[3] == node
    assert (re.findall(r"\d+", cordoned[1]) if cordoned else []) == shut
    return node


def in_service(node: NodeDevices) -> tuple[Any, ...]:
    return tuple(msgspec.structs.replace(one, healthy=True, cordoned=False) for one in node.devices)
