"""What ``--why`` and ``--pending`` show of ResourceClaims: what a claim holds, or why it is not allocated and what is free."""

from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from gpushare.api import names
from gpushare.api.allocation.resource_claim import (
    ClaimHolding,
    DeviceRequest,
    ResourceClaim,
    claims_of,
    holding_of,
    shares_requested,
)
from gpushare.api.allocation.resource_slice import OfferedGpu
from gpushare.api.errors import ModelError
from gpushare.api.node.device import node_devices
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node, Pod, decode_pod
from gpushare.inspect.errors import KubectlFailed
from gpushare.inspect.sources.claims import claims_of_pod, claims_with_classes, offered_to_claims
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.paths import nodes_path
from gpushare.inspect.tabwriter import Line, aligned, printable

#: GPUs that are listed as free, those with most memory first.
_MAX_GPUS: Final = 10

Json = dict[str, Any]


class ClaimAnswer(msgspec.Struct):
    """A pod's claims on our GPUs, as lines of text and for documents; both empty for a pod without any. ``free``: as in documents."""

    lines: "list[str]"
    claims: "list[Json]"
    free: "list[Json]"
    remarks: "list[str]"


def explain_claims(kubectl: Kubectl, pod: Json) -> ClaimAnswer:
    """What the pod's claims hold; of those that are not allocated, what is free. Raises ``KubectlMissing``."""
    answer = ClaimAnswer([], [], [], [])
    meta, decoded = pod["metadata"], decode_pod(pod)
    made = [name for name in claims_of(decoded).names.values() if name]
    if not made:
        if (shares := shares_requested(decoded)) and not decoded.spec.node_name:
            answer.lines += [
                "",
                f"It requests {shares} of {names.GPU_SHARE}; its ResourceClaim is made with its node.",
            ]
            _explain_free(kubectl, (), (), answer)
        return answer
    facts = claims_of_pod(kubectl, meta["namespace"], made)
    for claim in facts.claims:
        holdings = {node: _holding(kubectl, claim, node) for node in claim.nodes()}
        requests = claim.requests_of(facts.classes)
        answer.claims.append(_document(claim, requests, holdings))
        answer.lines += ["", *_text(claim, requests, holdings)]
        answer.remarks += [
            problem for holding in holdings.values() if holding for problem in holding.problems
        ]
    if any(not claim.is_allocated for claim in facts.claims):
        _explain_free(kubectl, facts.claims, facts.classes, answer)
    return answer


def _explain_free(
    kubectl: Kubectl, claims: "Iterable[ResourceClaim]", classes: Collection[str], answer: ClaimAnswer
) -> None:
    """Add what is free, and why ``claims`` that are not allocated do not fit."""
    gpus, problem = offered_to_claims(kubectl)
    if problem:
        answer.remarks.append(f"free capacity for claims is unknown: {problem}")
        return
    answer.lines += ["", *_free(gpus)]
    for claim in claims if gpus else ():
        for alternatives in () if claim.is_allocated else claim.device_requests(classes):
            room = [_room(request, gpus) for request in alternatives]
            answer.lines += [f"  {claim.metadata.name}: {text}." for text in room if text]
    answer.free = [_free_document(gpu) for gpu in gpus[:_MAX_GPUS]]


def pending_with_claims(kubectl: Kubectl, pods: Iterable[Json]) -> "list[Json]":
    """Records, as the scheduler's, of those of the pending ``pods`` that have claims on our GPUs. Raises ``KubectlMissing``."""
    using = [(pod, decoded) for pod in pods if is_claiming(decoded := decode_pod(pod))]
    if not using:
        return []
    from gpushare.inspect.views.timestamps import seconds_of

    claims, classes = claims_with_classes(kubectl)
    records = []
    for pod, decoded in using:
        meta = pod["metadata"]
        keys = [f"{meta['namespace']}/{name}" for name in claims_of(decoded).names.values()]
        asks = [
            f"{request} through claim {claims[key].metadata.name}"
            for key in keys
            if key in claims
            for request in claims[key].requests_of(classes)
        ]
        if shares := shares_requested(decoded):
            asks.append(f"{shares} of {names.GPU_SHARE}")
        if asks:
            records.append(
                {
                    "key": f"{meta['namespace']}/{meta['name']}",
                    "uid": meta["uid"],
                    "since": seconds_of(meta.get("creationTimestamp") or ""),
                    "asks": ", ".join(asks),
                    "category": "claim",
                    "reason": _condition(pod) or "not tried yet",
                    "suggestion": "",
                }
            )
    return records


def is_claiming(pod: Pod) -> bool:
    """Whether the pod uses claims, or requests shares for which kube-scheduler makes one."""
    return pod.uses_claims or shares_requested(pod) > 0


def _condition(pod: Json) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    scheduled: Json = next((item for item in conditions if item.get("type") == "PodScheduled"), {})
    return str(scheduled.get("message") or scheduled.get("reason") or "")


def _holding(kubectl: Kubectl, claim: ResourceClaim, name: str) -> "ClaimHolding | None":
    """What the claim holds of the node's GPUs; ``None`` where these are not known."""
    with kubectl.start(nodes_path(name)) as call:
        (answer,) = call.outcomes()
    if isinstance(answer, KubectlFailed):
        return None
    try:
        devices = node_devices(_NODE.decode(answer))
    except (ModelError, msgspec.DecodeError):
        return None
    return None if devices is None else holding_of(claim, name, devices.devices)


def _text(
    claim: ResourceClaim, requests: "list[str]", holdings: "dict[str, ClaimHolding | None]"
) -> "list[str]":
    head = f"ResourceClaim {claim.metadata.name} requests {', '.join(requests) or 'GPUs'}"
    if not claim.is_allocated:
        return [printable(f"{head}, and is not allocated.")]
    lines = []
    for node, holding in holdings.items():
        if holding is None:
            lines.append(printable(f"{head}, and is allocated on node {node}, whose GPUs cannot be read."))
            continue
        users = ", ".join(claim.pods) or "no pod"
        lines.append(printable(f"{head}, and holds on node {node}, for {users}:"))
        rows: list[Line] = [
            (
                f"GPU {share.label}",
                f"{share.mib} MiB",
                share.uuid,
                f"{share.core_percent}% compute" if share.core_percent else "compute not limited",
            )
            for share in holding.shares
        ]
        lines += [f"  {line}" for line in aligned(rows)] or ["  nothing: it monitors GPUs"]
    return lines


def _document(
    claim: ResourceClaim, requests: "list[str]", holdings: "dict[str, ClaimHolding | None]"
) -> Json:
    return {
        "name": claim.metadata.name,
        "uid": claim.metadata.uid,
        "requests": requests,
        "allocated": claim.is_allocated,
        "pods": list(claim.pods),
        "shares": [
            {
                "node": node,
                "gpu": share.index,
                "uuid": share.uuid,
                "MiB": share.mib,
                "corePercent": share.core_percent,
            }
            for node, holding in holdings.items()
            if holding is not None
            for share in holding.shares
        ],
    }


def _free_document(gpu: OfferedGpu) -> Json:
    return {
        "node": gpu.node,
        "device": gpu.device,
        "freeMiB": gpu.free_mib,
        "totalMiB": gpu.total_mib,
        "freeCorePercent": gpu.free_core_percent,
        "totalCorePercent": gpu.total_core_percent,
        "moreClaims": gpu.free_shares,
        "taint": gpu.taint,
    }


def _room(request: DeviceRequest, gpus: Collection[OfferedGpu]) -> str:
    """What of the request fits on no GPU, or that it fits; empty where that is not known."""
    wanted = request.wanted
    if wanted is None:
        return ""
    amount = f"{wanted.mib} MiB" if wanted.mib else "the default memory"
    open_gpus = [gpu for gpu in gpus if not gpu.taint]
    if wanted.mib > max(gpu.total_mib for gpu in gpus):
        return f"no GPU offers {amount}, the most is {max(gpu.total_mib for gpu in gpus)} MiB"
    roomy = [gpu for gpu in open_gpus if gpu.free_mib >= (wanted.mib or gpu.default_mib)]
    if not roomy:
        return f"no GPU without a taint has {amount} free"
    with_compute = [gpu for gpu in roomy if gpu.free_core_percent >= wanted.core_percent]
    if not with_compute:
        return f"no GPU with {amount} free has {wanted.core_percent}% compute free"
    fitting = [gpu for gpu in with_compute if gpu.free_shares]
    if not fitting:
        return "the GPUs with enough capacity have the maximum number of claims"
    if len(fitting) < request.count:
        return f"it needs {request.count} GPUs, and {len(fitting)} {'has' if len(fitting) == 1 else 'have'} enough capacity"
    return (
        f"GPU {fitting[0].device} of node {fitting[0].node} fits: something else blocks it, such as the claim's selectors "
        "or the pod's node requirements"
    )


def _free(gpus: Collection[OfferedGpu]) -> "list[str]":
    if not gpus:
        return [
            f"No node offers GPUs to claims: there is no ResourceSlice of ours. Nodes offer them in mode {NodeMode.DRA.value}; `gpushare doctor` checks them."
        ]
    rows: list[Line] = [("NODE", "GPU", "FREE(MiB)", "FREE COMPUTE(%)", "MORE CLAIMS", "TAINT")]
    rows += [
        (
            gpu.node,
            gpu.device,
            f"{gpu.free_mib}/{gpu.total_mib}",
            f"{gpu.free_core_percent}/{gpu.total_core_percent}",
            str(gpu.free_shares),
            gpu.taint,
        )
        for gpu in list(gpus)[:_MAX_GPUS]
    ]
    more = len(gpus) - _MAX_GPUS
    return [
        f"Free for claims, of {len(gpus)} GPU{'' if len(gpus) == 1 else 's'}:",
        *(f"  {line}" for line in aligned(rows)),
        *([f"  and {more} more"] if more > 0 else []),
    ]


_NODE = msgspec.json.Decoder(Node)
