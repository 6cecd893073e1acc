"""Suggestions for pods that lack capacity on their eligible nodes, derived from the ledger's current reasons."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Final

from msgspec import structs

from gpushare.api import names
from gpushare.api.node.device import NodeDevices
from gpushare.api.request.describe import memory_text
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.reasons.categories import Category, category_of
from gpushare.reasons.phrases import are, pods
from gpushare.reasons.suggestions import victims
from gpushare.reasons.suggestions.trial import fewest_first, refusal, to_try

#: Categories that capacity reserved for other pods can cause.
_CAPACITY_CATEGORIES: Final = frozenset({Category.MEMORY, Category.COMPUTE, Category.PODS, Category.KINDS})
#: Patterns of ``ledger.fit.reasons`` for the GPU that lacks least, and for the GPUs that fit where too few do.
_LARGEST: Final = re.compile(
    r"\(largest free: (?P<free>(?P<amount>\d+) (?P<unit>[GM])iB) on GPU (?P<gpu>\d+(?:/\d+)?)\)"
)
_NEAREST: Final = re.compile(
    r"\(closest: GPU (?P<gpu>\d+(?:/\d+)?) with (?P<free>\d+ [GM]iB and (?P<amount>\d+)%)\)"
)
_FULL_IN_SERVICE: Final = "(every GPU in service is full: "
_ONLY: Final = re.compile(r", but only GPUs? (?P<gpus>\d[\d, and]*) (?:has|have|is|are)\b")
_FOREIGN_MIB: Final = attrgetter("foreign_mib")
_MOVES: Final = "`kubectl inspect cgpu --fragmentation` shows whether moving pods would help"


def wanted(request: Request, unit_mib: int) -> str:
    """The required free capacity, in words; ``unit_mib``: the nodes' unit, used if the request has none (0: unknown)."""
    if request.by_gpu:
        return "a whole GPU" if request.gpu_count == 1 else f"{request.gpu_count} whole GPUs of one node"
    mib = request.memory_units * (request.unit_mib or unit_mib)
    units = memory_text(mib) if mib else f"{request.memory_units} of {names.GPU_MEM}"
    compute = f" and {request.core_percent}% compute" if request.core_percent else ""
    state = "completely free" if request.whole_device else "free"
    if request.gpu_count > 1:
        return f"{request.gpu_count} GPUs of one node with {units}{compute} {state} each"
    return f"a GPU with {units}{compute} {state}"


def of_room(ledger: Ledger, request: Request, category: Category, texts: Mapping[str, str]) -> str:
    """Suggestion for a pod that lacks memory or compute on the nodes of ``texts`` (reasons by node)."""
    matching = {node: text for node, text in texts.items() if category_of(text) is category}
    node = max(matching, key=lambda name: _nearness(matching[name]), default="")
    devices = ledger.node(node or next(iter(texts), ""))
    required = wanted(request, 0 if devices is None else devices.unit.mib)
    foreign = _foreign_use(ledger, request, matching)
    if not node or (request.is_ordinary and not _nearness(matching[node])):
        if any(_FULL_IN_SERVICE in text for text in matching.values()):
            return f"{required}: all GPUs of this kind that are in service are full: wait for pods to end or GPUs to recover, or add a node{foreign}"
        return f"{required}: all GPUs of this kind are full: wait for pods to end, or add a node{foreign}"
    text = matching[node]
    advice = f"{required}: {_nearest(node, text)}{_compute_lack(ledger, request, node, text)}{_victims(ledger, request, node, text)}"
    if category is Category.MEMORY and request.is_ordinary:
        scattered = ledger.evictions.scattered(request, list(matching))
        if scattered:
            advice += f"; node {scattered[0]} has that much in total, on several GPUs: {_MOVES}"
    return advice + foreign


def _foreign_use(ledger: Ledger, request: Request, texts: Mapping[str, str]) -> str:
    """What is used without an allocation on a node that would take the pod otherwise."""
    nodes = (node for node in map(ledger.node, texts) if node is not None)
    for node in to_try((node for node in nodes if any(map(_FOREIGN_MIB, node.devices))), texts.get):
        devices = tuple(structs.replace(device, foreign_mib=0) for device in node.devices)
        if not refusal(ledger, request, structs.replace(node, devices=devices)):
            uses = "; ".join(device.foreign_text for device in node.devices if device.foreign_mib)
            return f"; node {node.name} would fit without this: {uses}"
    return ""


@lru_cache(maxsize=1024)
def _nearness(text: str) -> int:
    """How close a node is to fitting, comparable within a category: free MiB, free percent, or number of fitting GPUs."""
    if match := _LARGEST.search(text):
        return int(match["amount"]) * (1024 if match["unit"] == "G" else 1)
    if match := _NEAREST.search(text):
        return int(match["amount"])
    match = _ONLY.search(text)
    return 0 if match is None else len(re.findall(r"\d+", match["gpus"]))


def _nearest(node: str, text: str) -> str:
    match = _LARGEST.search(text) or _NEAREST.search(text)
    if match is None:
        return f"the closest is node {node}: {text}"
    return f"the closest has {match['free']} free, GPU {match['gpu']} of node {node}"


def _victims(ledger: Ledger, request: Request, node: str, text: str) -> str:
    """The pods whose end would admit the pod on the GPU that lacks least, if they are few."""
    match, node_devices = _LARGEST.search(text) or _NEAREST.search(text), ledger.node(node)
    if match is None or node_devices is None:
        return ""
    gpu = next((device.index for device in node_devices.devices if device.label == match["gpu"]), None)
    if gpu is None:
        return ""
    advice = victims.fewest_victims(ledger, request, node_devices, gpu)
    return f"; {advice}" if advice else ""


def _compute_lack(ledger: Ledger, request: Request, node: str, text: str) -> str:
    """A note if the GPU in a reason about memory lacks compute as well, so that freeing memory is not enough."""
    match = _LARGEST.search(text)
    if match is None or not request.core_percent:
        return ""
    node_devices = ledger.node(node)
    labels = {device.uuid: device.label for device in node_devices.devices} if node_devices else {}
    gpu = next((gpu for gpu in ledger.usage(node).gpus if labels.get(gpu.uuid) == match["gpu"]), None)
    reserved = (share for shares in ledger.nominations.on_node(node).values() for share in shares)
    reserved_core = sum(
        share.core_percent for share in reserved if gpu is not None and share.uuid == gpu.uuid
    )
    free = 100 if gpu is None else 100 - gpu.used_core - reserved_core
    return f", which has {max(free, 0)}% compute free" if free < request.core_percent else ""


def of_caps(ledger: Ledger, request: Request, texts: Mapping[str, str], isolated_cap: int) -> str:
    """Suggestion for a pod refused by nodes or GPUs with the maximum number of pods; it also names what else is lacking.

    ``isolated_cap``: maximum number of pods per GPU on isolated nodes, regardless of labels.
    """
    capped = _examples(ledger, texts, Category.PODS)
    advice = "wait until the pods for which these GPUs are reserved have ended"
    if any(_ending_pods_helps(ledger, request, node) for node in capped):
        pods_end = (
            "a pod to end on one of these GPUs"
            if request.gpu_count == 1
            else "pods to end on as many of these GPUs as it requests"
        )
        advice = f"wait for {pods_end}"
    caps = {node.name: isolated_cap if node.mode.isolated else None for node in capped}
    without_caps = [structs.replace(node, max_pods=caps[node.name], max_node_pods=None) for node in capped]
    refusals = {node.name: refusal(ledger, request, node) for node in without_caps}
    for node in capped:
        if not refusals[node.name]:
            labels = _caps_of(ledger, request, node, caps[node.name])
            return f"{advice}, or raise the cap on node {node.name} ({labels})"
    fallback = ""
    for node in without_caps:
        at_most = category_of(refusals[node.name]) is Category.PODS
        cap = (
            f": node {node.name} is in mode {node.mode.value}, where a GPU has {pods(isolated_cap)} at most, regardless of labels"
            if at_most
            else f", or raise the cap on node {node.name} ({_CAPS})"
        )
        remaining = (
            refusal(ledger, request, structs.replace(node, max_pods=None)) if at_most else refusals[node.name]
        )
        if not remaining:
            return advice + cap
        fallback = fallback or f"{advice}{cap}; that alone is not enough: {remaining}"
    return fallback or advice


def _ending_pods_helps(ledger: Ledger, request: Request, node: NodeDevices) -> bool:
    """Whether the end of pods on the node would free enough capacity in addition to what is reserved for others."""
    return not ledger.nominations.on_node(node.name) or not refusal(
        ledger, request, node, emptied=True, with_reserved=True
    )


_CAPS: Final = f"node labels {names.LABEL_MAX_PODS} and {names.LABEL_MAX_NODE_PODS}"


def _caps_of(ledger: Ledger, request: Request, node: NodeDevices, most: int | None) -> str:
    """The labels of the node whose values are too low."""
    if not refusal(ledger, request, structs.replace(node, max_pods=most)):
        return f"node label {names.LABEL_MAX_PODS}"
    if not refusal(ledger, request, structs.replace(node, max_node_pods=None)):
        return f"node label {names.LABEL_MAX_NODE_PODS}"
    return _CAPS


def blocking_nomination(ledger: Ledger, request: Request, texts: Mapping[str, str]) -> tuple[str, str] | None:
    """A node that would fit the pod without the capacity reserved for other pods, and the UID of one of these."""
    for name, text in texts.items():
        reserved = ledger.nominations.on_node(name)
        if not reserved or category_of(text) not in _CAPACITY_CATEGORIES:
            continue
        node = ledger.node(name)
        if node is not None and not refusal(ledger, request, node, with_reserved=False):
            return name, next(iter(reserved))
    return None


def of_service(ledger: Ledger, request: Request, texts: Mapping[str, str]) -> str:
    """Suggestion for a pod that fits only GPUs that are out of service or that their kubelet does not offer."""
    advice = ""
    for node in _examples(ledger, texts, Category.HEALTH):
        detail = f"node {node.name}: {texts[node.name]}"
        kept_back = {device.uuid for device in node.devices if device.kept_back}
        gone: set[str] = set()
        devices = tuple(
            structs.replace(device, healthy=True, cordoned=False, kept_back=False) for device in node.devices
        )
        changed, head = structs.replace(node, devices=devices), "GPUs that are back in service"
        if node.refusal:
            changed = structs.replace(changed, refusal="")
            head, detail = "a working driver", f"node {node.name} (`gpushare doctor` says what to do)"
            if not devices:
                advice = advice or f"{head}: {detail}"
                continue
        elif texts[node.name].startswith("the kubelet offers "):
            changed, head = node, "GPUs that their kubelet offers again"
        elif texts[node.name].startswith("the kubelet has "):
            changed, head = node, "deletion of the pods that hold GPUs without an allocation record"
        elif kept_back and all(device.uuid in kept_back for device in node.devices if not device.in_service):
            head = "termination of the pods that hold GPUs from before the node's change of mode"
            gone = {uid for gpu in ledger.usage(node.name).gpus if gpu.uuid in kept_back for uid in gpu.pods}
        else:
            detail = _repair(node)
        if not refusal(ledger, request, changed, ended=gone):
            return f"{head}: {detail}"
        also = "termination of the pods there"
        if not refusal(ledger, request, changed, with_reserved=False, ended=gone):
            also = "the capacity there that is reserved for others"
        advice = advice or f"{head}, and {also}: {detail}"
    return advice or "GPUs that are back in service"


def _repair(node: NodeDevices) -> str:
    """How to return the node's GPUs to service."""
    unhealthy = [device for device in node.devices if not device.healthy and not device.kept_back]
    repairs = []
    if unhealthy:
        # A MIG instance is reset with its GPU.
        parents = list(dict.fromkeys(str(device.place[0]) for device in unhealthy))
        once = f"{'its' if len(unhealthy) == 1 else 'their'} pods have ended"
        if any(device.is_instance for device in unhealthy):
            once = f"nothing uses any instance of {_gpus(parents)}"
        repairs.append(
            f"{_gpus([device.label for device in unhealthy])} of node {node.name}: once {once}, "
            f"`nvidia-smi -r -i {','.join(parents)}` there, or a reboot (`gpushare doctor` and the node's condition "
            "GPUShareReady say more)"
        )
    cordoned = [device.label for device in node.devices if device.healthy and device.cordoned]
    if cordoned:
        command = f"`kubectl annotate node {node.name} {names.ANN_CORDONED}-`"
        repairs.append(f"{_gpus(cordoned)} of node {node.name} {are(len(cordoned))} cordoned: {command}")
    return "; ".join(repairs)


def _gpus(indices: Sequence[str]) -> str:
    return f"GPU {indices[0]}" if len(indices) == 1 else f"GPUs {', '.join(indices[:-1])} and {indices[-1]}"


def _examples(ledger: Ledger, texts: Mapping[str, str], category: Category) -> Sequence[NodeDevices]:
    """Some of the nodes with a reason of that category."""
    matching = [node for node, text in texts.items() if category_of(text) is category]
    nodes = [node for node in map(ledger.node, matching) if node is not None]
    if category is Category.HEALTH:
        nodes = fewest_first(ledger, nodes)  # prefer nodes where returned GPUs can be used immediately
    return to_try(nodes, texts.get)
