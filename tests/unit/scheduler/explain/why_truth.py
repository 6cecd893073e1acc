"""The expected texts of a decision, computed again from nodes, pods and the answers of the verbs."""

import json
from collections.abc import Iterable
from typing import Any

from gpushare.api.node.device import Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.request.request import Request
from tests.unit.ledger.naive_ledger import NaiveLedger

# : Of several kinds of reasons the first stands for the pod.
KINDS = ("memory", "compute", "pods", "kinds", "health", "policy", "quota", "unit", "size", "node")
PREFERENCES = {
    Placement.BINPACK: "the GPU on which the least is left over, then the lower index",
    Placement.SPREAD: "the GPU on which the most is left over, then the fewest pods, then the lower index",
    Placement.FRAGMENTATION: "the GPU that leaves most to the requests that are to be expected, then the one on which the least is left over",
}
TOGETHER = "; for several GPUs, the best-connected set comes first"
WHOLE = "the free GPUs with the best interconnect, then those that leave the best-connected GPUs for other pods, then the lowest indices"

JsonObject = Any


def kind_of(naive: NaiveLedger, request: Request, name: str) -> str:
    """The kind of reason for which the node does not take the request; empty if it does."""
    node = naive.nodes[name]
    count, units = request.gpu_count, request.memory_units
    if request.by_gpu:
        gives = node.mode is NodeMode.TOPOLOGY
    elif request.core_percent:
        gives = node.mode is NodeMode.CORE_MEM
    else:
        gives = node.mode not in (NodeMode.DEFAULT, NodeMode.TOPOLOGY)
    if node.refusal or not gives:
        return "node"
    if request.unit_mib and request.unit_mib != node.unit.mib:
        return "unit"
    if count > 1 and node.mode is NodeMode.MPS:
        return "node"
    large = [device for device in node.devices if node.units_of(device) >= units]
    if request.core_percent > 100 or len(large) < count:
        return "size"
    large = [device for device in large if device.healthy and not device.cordoned]
    if len(large) < count:
        return "health"
    if naive.of_kind(name, core=not request.core_percent) and not request.by_gpu:
        return "kinds"
    if node.max_node_pods is not None and naive.pods_of(name) >= node.max_node_pods:
        return "pods"
    free = [device for device in large if naive.has_memory(node, device, units)]
    if request.whole_device:
        free = [device for device in free if naive.is_untouched(name, device)]
    if len(free) < count:
        return "memory"
    free = [device for device in free if naive.below_cap(node, device)]
    if len(free) < count:
        return "pods"
    free = [device for device in free if naive.has_core(node, device, request.core_percent)]
    return "compute" if len(free) < count else ""


def kind_of_text(naive: NaiveLedger, request: Request, name: str, text: str) -> str:
    """The same of a node that a policy or a quota may forbid."""
    if text.startswith("ResourcePolicy "):
        return "policy"
    if text.startswith("elastic quota "):
        return "quota"
    return kind_of(naive, request, name)


def nearest(kinds: Iterable[str]) -> str:
    return min(kinds, key=KINDS.index)


def asks(pod: dict[str, Any]) -> str:
    """The manifest's request, for all containers."""
    meta = pod["metadata"]
    limits = [one["resources"]["limits"] for one in pod["spec"]["containers"]]

    def total(resource: str) -> int:
        return sum(int(one.get(resource, 0)) for one in limits)

    if whole := total("aliyun.com/gpu"):
        return f"aliyun.com/gpu: {whole}"
    requests = [f"aliyun.com/gpu-mem: {total('aliyun.com/gpu-mem')}"]
    note = meta["annotations"].get("gpushare.dev/requested")
    if note is not None:
        requests = [
            f"gpushare.dev/gpu-memory: {memory(total('aliyun.com/gpu-mem') * json.loads(note)['unitMib'])}"
        ]
    if core := total("aliyun.com/gpu-core.percentage"):
        requests.append(f"aliyun.com/gpu-core.percentage: {core}")
    count = meta["labels"].get("aliyun.com/gpu-count", "1")
    if count != "1":
        requests.append(f"aliyun.com/gpu-count: {count}")
    if "ack.gpushare.placement" in meta["labels"]:
        requests.append("ack.gpushare.placement: require-whole-device")
    if "gpushare.dev/gpu-per-container" in meta["labels"]:
        requests.append("gpushare.dev/gpu-per-container: true")
    return ", ".join(requests)


def memory(mib: int) -> str:
    return f"{mib} MiB" if mib % 1024 else f"{mib // 1024} GiB"


def begins_with(text: str, head: str) -> bool:
    """Whether ``head`` is the text, or all of it except what differs from node to node."""
    return text.startswith(head) and text[len(head) :][:2] in ("", " (", "; ")


def groups_are_true(
    groups: list[JsonObject], texts: dict[str, tuple[str, bool]], kinds: dict[str, str]
) -> None:
    """Every node that refuses (``texts``: why, and whether permanently) is in one group, with the right count and text."""
    its = [
        [
            node
            for node, (text, final) in texts.items()
            if final == group["final"] and begins_with(text, group["reason"])
        ]
        for group in groups
    ]
    assert sorted(node for some in its for node in some) == sorted(texts)
    assert [group["nodes"] for group in groups] == [len(some) for some in its]
    assert all(its)
    assert [len(some) for some in its] == sorted(map(len, its), reverse=True)
    for group, some in zip(groups, its, strict=True):
        different = list(dict.fromkeys(texts[node][0] for node in some))
        assert [one["reason"] for one in group["examples"]] == different[:3]
        for example in group["examples"]:
            assert example["node"] in some
            assert example["reason"] == texts[example["node"]][0]
        assert group["category"] == nearest(kinds[node] for node in some)


def line(answer: JsonObject) -> str:
    """Why no node takes the pod, in one line, of the groups of an answer."""
    groups, nodes = answer["groups"], answer["nodes"]
    if nodes == 1:
        return str(groups[0]["examples"][0]["reason"])
    if len(groups) == 1 and len(groups[0]["examples"]) == 1:
        text = groups[0]["examples"][0]["reason"]
        return text if not text.startswith("node ") else f"none of {nodes} nodes fits: each {text[5:]}"
    if len(groups) == 1:
        text = groups[0]["reason"]
        spoken = f"each {text[5:]}" if text.startswith("node ") else text
        return f"none of {nodes} nodes fits: {spoken}"
    parts = [f"none of {nodes} nodes fits"]
    for group in groups[:4]:
        count, text = group["nodes"], group["reason"]
        ours = text.startswith("node ")
        if count == 1:
            parts.append(f"1 {text}" if ours else f"1 node: {text}")
        else:
            parts.append(f"{count} nodes: each {text[5:]}" if ours else f"{count} nodes: {text}")
    more = sum(group["nodes"] for group in groups[4:])
    if more:
        parts.append("1 node for another reason" if more == 1 else f"{more} nodes for other reasons")
    return "; ".join(parts)


def preference(placement: Placement, request: Request) -> str:
    """The preference by which a node with that placement chooses GPUs for the request."""
    if request.by_gpu:
        return WHOLE
    return PREFERENCES[placement] + (TOGETHER if request.gpu_count > 1 else "")
