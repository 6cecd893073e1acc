"""What would make room for a pod on the nodes that it may go to, read from what the ledger says of each of them now."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec import structs

from gpushare.api import names
from gpushare.api.node.device import NodeDevices
from gpushare.api.request.describe import memory_text
from gpushare.api.request.request import Request
from gpushare.ledger import Ledger
from gpushare.reasons.categories import Category, category_of
from gpushare.reasons.phrases import are, pods
from gpushare.reasons.suggestions import victims as ends
from gpushare.reasons.suggestions.trial import fewest_first, refusal, to_try

#: What room that is kept for others can be short of.
_OF_ROOM: Final = frozenset({Category.MEMORY, Category.COMPUTE, Category.PODS, Category.KINDS})
#: As ``ledger.fit.reasons`` writes which GPU comes nearest, and which of several would do.
_LARGEST: Final = re.compile(
    r"\(largest free: (?P<free>(?P<amount>\d+) (?P<unit>[GM])iB) on GPU (?P<gpu>\d+)\)"
)
_NEAREST: Final = re.compile(r"\(nearest: GPU (?P<gpu>\d+) with (?P<free>\d+ [GM]iB and (?P<amount>\d+)%)\)")
_ONLY: Final = re.compile(r", only GPUs? (?P<gpus>\d[\d, and]*) (?:has|have|is|are)\b")
_MOVES: Final = "`kubectl inspect cgpu --fragmentation` says whether a move would help"


def wanted(request: Request, unit_mib: int) -> str:
    """What has to be free, in words; ``unit_mib``: what a unit is on the nodes, where no other is known. 0: nobody knows."""
    if request.by_gpu:
        return "a whole GPU" if request.gpu_count == 1 else f"{request.gpu_count} whole GPUs of one node"
    mib = request.memory_units * (request.unit_mib or unit_mib)
    units = memory_text(mib) if mib else f"{request.memory_units} of {names.GPU_MEM}"
    compute = f" and {request.core_percent}% compute" if request.core_percent else ""
    state = "that nobody uses" if request.whole_device else "free"
    if request.gpu_count > 1:
        return f"{request.gpu_count} GPUs of one node with {units}{compute} {state} each"
    return f"a GPU with {units}{compute} {state}"


def of_room(ledger: Ledger, request: Request, category: Category, texts: Mapping[str, str]) -> str:
    """For a pod for which memory, or compute, is short on the nodes of ``texts`` (why each does not take it)."""
    of_kind = {node: text for node, text in texts.items() if category_of(text) is category}
    node = max(of_kind, key=lambda one: _nearness(of_kind[one]), default="")
    known = ledger.node(node or next(iter(texts), ""))
    asked_for = wanted(request, 0 if known is None else known.unit.mib)
    if not node or (request.is_ordinary and not _nearness(of_kind[node])):
        return f"{asked_for}: all GPUs of the kind are full; pods that end, or one node more"
    text = of_kind[node]
    advice = f"{asked_for}: {_nearest(node, text)}{_compute_of(ledger, request, node, text)}{_ended(ledger, request, node, text)}"
    if category is Category.MEMORY and request.is_ordinary:
        scattered = ledger.evictions.scattered(request, list(of_kind))
        if scattered:
            advice += f"; node {scattered[0]} has as much in all, on several GPUs: {_MOVES}"
    return advice


@lru_cache(maxsize=1024)
def _nearness(text: str) -> int:
    """The larger the nearer, among reasons of one kind: MiB, percent of compute, or the number of GPUs that would do."""
    if found := _LARGEST.search(text):
        return int(found["amount"]) * (1024 if found["unit"] == "G" else 1)
    if found := _NEAREST.search(text):
        return int(found["amount"])
    found = _ONLY.search(text)
    return 0 if found is None else len(re.findall(r"\d+", found["gpus"]))


def _nearest(node: str, text: str) -> str:
    found = _LARGEST.search(text) or _NEAREST.search(text)
    if found is None:
        return f"the nearest is node {node}: {text}"
    return f"the nearest has {found['free']} free, GPU {found['gpu']} of node {node}"


def _ended(ledger: Ledger, request: Request, node: str, text: str) -> str:
    """Whose end would let it in on the GPU that comes nearest, where they are few."""
    found, known = _LARGEST.search(text) or _NEAREST.search(text), ledger.node(node)
    if found is None or known is None:
        return ""
    advice = ends.enough_of(ledger, request, known, int(found["gpu"]))
    return f"; the end of {advice} there would be enough" if advice else ""


def _compute_of(ledger: Ledger, request: Request, node: str, text: str) -> str:
    """What the GPU of a text that speaks of memory lacks of compute besides: to free the memory alone would not do."""
    found = _LARGEST.search(text)
    if found is None or not request.core_percent:
        return ""
    gpu = next((one for one in ledger.usage(node).gpus if one.index == int(found["gpu"])), None)
    kept = (share for shares in ledger.nominations.on_node(node).values() for share in shares)
    kept_core = sum(share.core_percent for share in kept if gpu is not None and share.uuid == gpu.uuid)
    free = 100 if gpu is None else 100 - gpu.used_core - kept_core
    return f", which has {max(free, 0)}% compute free" if free < request.core_percent else ""


def of_caps(ledger: Ledger, request: Request, texts: Mapping[str, str], isolated_cap: int) -> str:
    """For a pod that nodes or GPUs with as many pods as they may have refuse: what else is short there is advice.

    ``isolated_cap``: the most pods on a GPU of an isolated node, whatever its labels say.
    """
    known = _known(ledger, texts, Category.PODS)
    advice = "the end of pods for which room is kept on these GPUs"
    if any(_ends_help(ledger, request, node) for node in known):
        ends = (
            "a pod that ends on one" if request.gpu_count == 1 else "pods that end on as many as it asks for"
        )
        advice = f"{ends} of these GPUs"
    most = {node.name: isolated_cap if node.mode.isolated else None for node in known}
    raised = [structs.replace(node, max_pods=most[node.name], max_node_pods=None) for node in known]
    why = {node.name: refusal(ledger, request, node) for node in raised}
    for node in known:
        if not why[node.name]:
            labels = _caps_of(ledger, request, node, most[node.name])
            return f"{advice}, or a larger cap on node {node.name} ({labels})"
    besides = ""
    for node in raised:
        at_most = category_of(why[node.name]) is Category.PODS
        cap = (
            f": node {node.name} is in mode {node.mode.value}, where a GPU has {pods(isolated_cap)} at most, whatever its labels say"
            if at_most
            else f", or a larger cap on node {node.name} ({_CAPS})"
        )
        lifted = refusal(ledger, request, structs.replace(node, max_pods=None)) if at_most else why[node.name]
        if not lifted:
            return advice + cap
        besides = besides or f"{advice}{cap}; that alone would not do: {lifted}"
    return besides or advice


def _ends_help(ledger: Ledger, request: Request, node: NodeDevices) -> bool:
    """Whether pods hold something there whose end would make room beside what is kept for others."""
    return not ledger.nominations.on_node(node.name) or not refusal(
        ledger, request, node, emptied=True, kept=True
    )


_CAPS: Final = f"node labels {names.LABEL_MAX_PODS} and {names.LABEL_MAX_NODE_PODS}"


def _caps_of(ledger: Ledger, request: Request, node: NodeDevices, most: int | None) -> str:
    """Which labels of the node have to say more."""
    if not refusal(ledger, request, structs.replace(node, max_pods=most)):
        return f"node label {names.LABEL_MAX_PODS}"
    if not refusal(ledger, request, structs.replace(node, max_node_pods=None)):
        return f"node label {names.LABEL_MAX_NODE_PODS}"
    return _CAPS


def kept_for(ledger: Ledger, request: Request, texts: Mapping[str, str]) -> tuple[str, str] | None:
    """A node that would have room if it kept none for others, and the UID of one of them."""
    for name, text in texts.items():
        kept = ledger.nominations.on_node(name)
        if not kept or category_of(text) not in _OF_ROOM:
            continue
        node = ledger.node(name)
        if node is not None and not refusal(ledger, request, node, kept=False):
            return name, next(iter(kept))
    return None


def of_service(ledger: Ledger, request: Request, texts: Mapping[str, str]) -> str:
    """For a pod that GPUs would hold which are out of service, or which their kubelet does not offer."""
    advice = ""
    for node in _known(ledger, texts, Category.HEALTH):
        what = f"node {node.name}: {texts[node.name]}"
        kept_back = {one.uuid for one in node.devices if one.kept_back}
        ended: set[str] = set()
        devices = tuple(
            structs.replace(one, healthy=True, cordoned=False, kept_back=False) for one in node.devices
        )
        changed, head = structs.replace(node, devices=devices), "GPUs that are back in service"
        if texts[node.name].startswith("the kubelet offers "):
            changed, head = node, "GPUs that their kubelet offers again"
        elif texts[node.name].startswith("the kubelet has "):
            changed, head = node, "the end of pods that hold GPUs without a record"
        elif kept_back and all(one.uuid in kept_back for one in node.devices if not one.in_service):
            head = "the end of pods that hold GPUs from before the node's mode changed"
            ended = {uid for gpu in ledger.usage(node.name).gpus if gpu.uuid in kept_back for uid in gpu.pods}
        else:
            what = _mended(node)
        if not refusal(ledger, request, changed, ended=ended):
            return f"{head}: {what}"
        besides = "the end of what runs there"
        if not refusal(ledger, request, changed, kept=False, ended=ended):
            besides = "room there that is kept for others"
        advice = advice or f"{head}, and {besides}: {what}"
    return advice or "GPUs that are back in service"


def _mended(node: NodeDevices) -> str:
    """How the node's GPUs that are out of service come back."""
    sick = [str(one.index) for one in node.devices if not one.healthy and not one.kept_back]
    ways = []
    if sick:
        ways.append(
            f"{_gpus(sick)} of node {node.name}: once {'its' if len(sick) == 1 else 'their'} pods have ended, "
            f"`nvidia-smi -r -i {','.join(sick)}` there, or a reboot (`gpushare doctor` and the node's condition "
            "GPUShareReady say more)"
        )
    cordoned = [str(one.index) for one in node.devices if one.healthy and one.cordoned]
    if cordoned:
        back = f"`kubectl annotate node {node.name} {names.ANN_CORDONED}-`"
        ways.append(f"{_gpus(cordoned)} of node {node.name} {are(len(cordoned))} cordoned: {back}")
    return "; ".join(ways)


def _gpus(indices: Sequence[str]) -> str:
    return f"GPU {indices[0]}" if len(indices) == 1 else f"GPUs {', '.join(indices[:-1])} and {indices[-1]}"


def _known(ledger: Ledger, texts: Mapping[str, str], category: Category) -> Sequence[NodeDevices]:
    """Some of the nodes that refuse for that kind of reason."""
    names_of = [node for node, text in texts.items() if category_of(text) is category]
    found = [node for node in map(ledger.node, names_of) if node is not None]
    if category is Category.HEALTH:
        found = fewest_first(ledger, found)  # so that GPUs that are back are of use at once
    return to_try(found, texts.get)
