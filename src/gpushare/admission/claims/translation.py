"""Replaces a pod's requests for GPUs by ResourceClaims: which templates it needs, and the pod that names them. Pure.

Each container with a request gets a claim of its own, because a claim is one limit.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from gpushare.admission.accept.product import Untranslatable
from gpushare.admission.claims.selectors import NO_INSTANCE, at_least, selectors
from gpushare.admission.rules.request_rules import asks_for_gpu
from gpushare.admission.rules.unit_rules import gpus_of
from gpushare.api import names
from gpushare.api.allocation.resource_claim import COMPUTE, MEMORY
from gpushare.api.errors import InvalidQuantity
from gpushare.api.objects import Container, ContainerClaim, Pod, PodClaim, ResourceQuantities
from gpushare.api.quantity import parse_amount
from gpushare.api.request.request import ContainerKind, listed_containers, wants_whole_device
from gpushare.api.request.unit_conversion import CONVERTED_RESOURCES, Counting, mib_of, percent_of

Json = dict[str, Any]

_DEFAULT_SCHEDULER: Final = "default-scheduler"
_REPLACED: Final = (names.GPU_MEM, names.GPU_CORE, names.GPU_WHOLE, *CONVERTED_RESOURCES)
#: Kubernetes writes whole multiples of a suffix with the next one.
_SUFFIXES: Final = ("Mi", "Gi", "Ti", "Pi")


class Share(NamedTuple):
    """What a container gets of each of ``gpus`` GPUs: memory (0 MiB: a whole GPU) and compute (0 percent: no limit)."""

    mib: int
    core_percent: int = 0
    gpus: int = 1
    least_mib: int = 0
    """Of a whole GPU: the memory that it must have."""


class Claimed(NamedTuple):
    """The pod with claims, and the specs of the ResourceClaimTemplates that it names."""

    pod: Pod
    templates: Mapping[str, Json]


def is_translated(pod: Pod) -> bool:
    """Whether the pod's requests become claims: it requests a GPU, has no node yet and has not opted out."""
    opted_out = (pod.metadata.labels or {}).get(names.LABEL_ADMISSION) == "disabled"
    return not pod.spec.node_name and not opted_out and asks_for_gpu(pod)


def claimed(pod: Pod, counting: Counting, scheduler: str = names.SCHEDULER_NAME) -> Claimed | None:
    """The pod with claims in place of its requests, which are valid (``request_rules.judge``).

    ``None`` for amounts that are no whole numbers, which Kubernetes rejects itself. Raises ``Untranslatable``.
    """
    try:
        shares = _shares(pod, counting)
    except InvalidQuantity:
        return None
    to_default = pod.spec.scheduler_name in ("", scheduler)
    scheduler_name = _DEFAULT_SCHEDULER if to_default else pod.spec.scheduler_name
    _reject_inexpressible(pod, shares, scheduler_name)
    claims = _claims(pod, shares)
    taken = sorted({one.name for one in pod.spec.resource_claims or ()} & set(claims.values()))
    if taken:
        raise Untranslatable(
            "requests become ResourceClaims in this cluster (chart value admission.toClaims), named after their containers, and "
            f"spec.resourceClaims has other claims of these names: {', '.join(taken)}; rename the claims there"
        )
    templates: dict[str, Json] = {}
    entries: list[PodClaim] = []
    for claim in dict.fromkeys(claims.values()):
        name, template = _template(shares[claim], pod)
        templates[name] = template
        entries.append(PodClaim(claim, resource_claim_template_name=name))
    spec = msgspec.structs.replace(
        pod.spec,
        containers=[_claiming(container, claims) for container in pod.spec.containers],
        init_containers=[_claiming(container, claims) for container in pod.spec.init_containers or ()],
        resource_claims=[*(pod.spec.resource_claims or ()), *entries],
        scheduler_name=scheduler_name,
    )
    return Claimed(msgspec.structs.replace(pod, spec=spec), templates)


def _shares(pod: Pod, counting: Counting) -> dict[str, Share]:
    """By container, of those with a request."""
    gpus = gpus_of(pod)
    whole = wants_whole_device(pod)
    shares: dict[str, Share] = {}
    for _, container, _ in listed_containers(pod):
        limits = (container.resources and container.resources.limits) or {}
        if whole_gpus := parse_amount(limits.get(names.GPU_WHOLE, "0"), names.GPU_WHOLE):
            shares[container.name] = Share(0, gpus=whole_gpus)
        elif mib := _units(limits, counting, gpus) // gpus * counting.unit.mib:
            core_percent = parse_amount(limits.get(names.GPU_CORE, "0"), names.GPU_CORE)
            share = Share(0, gpus=gpus, least_mib=mib) if whole else Share(mib, core_percent, gpus)
            shares[container.name] = share
    return shares


def _units(limits: ResourceQuantities, counting: Counting, gpus: int) -> int:
    if names.GPU_MEMORY in limits:
        return counting.units_of_mib(mib_of(limits[names.GPU_MEMORY]) or 0, gpus)
    if names.GPU_MEMORY_PERCENT in limits:
        return counting.units_of_percent(percent_of(limits[names.GPU_MEMORY_PERCENT]) or 0, gpus)
    return parse_amount(limits.get(names.GPU_MEM, "0"), names.GPU_MEM)


def _reject_inexpressible(pod: Pod, shares: Collection[str], scheduler_name: str) -> None:
    labels, annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
    found: dict[str, str] = {}
    if labels.get(names.LABEL_GANG_NAME) and scheduler_name == _DEFAULT_SCHEDULER:
        found[f"label {names.LABEL_GANG_NAME}"] = "kube-scheduler places pods with claims one by one"
    if len(shares) > 1:
        if labels.get(names.LABEL_POD_APART) == "true":
            found[f"label {names.LABEL_POD_APART}"] = (
                "different claims of a pod may be allocated from the same GPU"
            )
        if wants_whole_device(pod):
            found[f"label {names.LABEL_POD_PLACEMENT}"] = "containers do not share a whole GPU"
    for name in (names.ANN_GPU_PLACEMENT, names.ANN_NODE_PLACEMENT):
        if name in annotations:
            found[f"annotation {name}"] = "kube-scheduler chooses among the GPUs that fit"
    if names.ANN_GPU_MEMORY_LIMIT in annotations:
        found[f"annotation {names.ANN_GPU_MEMORY_LIMIT}"] = "a claim's capacity is also its limit"
    if found:
        raise Untranslatable(
            "requests become ResourceClaims in this cluster (chart value admission.toClaims), which cannot express "
            f"{', '.join(f'{name}: {why}' for name, why in found.items())}; remove it from the manifest"
        )


def _claims(pod: Pod, shares: Mapping[str, Share]) -> dict[str, str]:
    """The claim of each container with a share, named after a container.

    Init containers end before the others start, so they use the claim of one with an equal share: their own would be held as long as
    the pod runs.
    """
    claims: dict[str, str] = {}
    lent: dict[Share, str] = {}
    for _, container, kind in sorted(listed_containers(pod), key=lambda one: one[2] is not ContainerKind.APP):
        share = shares.get(container.name)
        if share is None:
            continue
        if kind is ContainerKind.INIT and share in lent:
            claims[container.name] = lent[share]
        else:
            claims[container.name] = container.name
            if kind is not ContainerKind.SIDECAR:
                lent[share] = container.name
    return claims


def _claiming(container: Container, claims: Mapping[str, str]) -> Container:
    """The container without requests for GPUs, and with its claim if it has one."""
    resources = container.resources
    if resources is None:
        return container
    limits = resources.limits or {}
    removed = [name for name in _REPLACED if name in limits]
    claim = claims.get(container.name)
    if not removed and claim is None:
        return container
    requests = resources.requests or {}
    # A request that differs from its limit stays, so that Kubernetes rejects it.
    same = [name for name in removed if requests.get(name) == limits[name]]
    changed = msgspec.structs.replace(
        resources,
        limits={name: amount for name, amount in limits.items() if name not in removed},
        requests={name: amount for name, amount in requests.items() if name not in same},
        claims=[*(resources.claims or ()), *([ContainerClaim(claim)] if claim is not None else ())],
    )
    return msgspec.structs.replace(container, resources=changed)


def _template(share: Share, pod: Pod) -> tuple[str, Json]:
    """Name and spec of the template; the name follows from the spec."""
    capacity = {
        **({MEMORY: _quantity(share.mib)} if share.mib else {}),
        **({COMPUTE: str(share.core_percent)} if share.core_percent else {}),
    }
    expressions = selectors(pod.metadata.annotations or {})
    if not share.mib or share.gpus > 1:
        expressions.append(NO_INSTANCE)
    if share.least_mib:
        expressions.append(at_least(share.least_mib))
    exactly: Json = {"deviceClassName": names.DRA_DRIVER, "count": share.gpus}
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    if expressions:
        exactly["selectors"] = [{"cel": {"expression": expression}} for expression in expressions]
    devices: Json = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if share.gpus > 1:
        devices["constraints"] = [{"distinctAttribute": f"{names.DRA_DRIVER}/uuid"}]
    if compute_class := (pod.metadata.labels or {}).get(names.LABEL_POD_COMPUTE_CLASS):
        parameters = {
            "apiVersion": f"{names.DRA_DRIVER}/v1",
            "kind": "ShareConfig",
            "computeClass": compute_class,
        }
        devices["config"] = [{"opaque": {"driver": names.DRA_DRIVER, "parameters": parameters}}]
    spec: Json = {"spec": {"devices": devices}}
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:10]
    parts = [
        "gpushare",
        f"{share.mib}mib" if share.mib else "whole",
        *([f"{share.core_percent}core"] if share.core_percent else ()),
        *([f"{share.gpus}gpus"] if share.gpus > 1 else ()),
        digest,
    ]
    return "-".join(parts), spec


def _quantity(mib: int) -> str:
    """As Kubernetes writes it, so that what is read back is the same text: ``3072`` is ``3Gi``."""
    step = 0
    while mib % 1024 == 0 and step < len(_SUFFIXES) - 1:
        mib, step = mib // 1024, step + 1
    return f"{mib}{_SUFFIXES[step]}"
