"""ResourceClaims, DeviceClasses and ResourceSlices, read through kubectl; what cannot be read is named."""

from collections.abc import Collection
from typing import Any, NamedTuple

import msgspec

from gpushare.api import names
from gpushare.api.allocation.resource_claim import (
    DeviceClass,
    ResourceClaim,
    decode_resource_claim,
    decode_resource_claims,
)
from gpushare.api.allocation.resource_slice import OfferedGpu, decode_resource_slices, offered_gpus
from gpushare.inspect.errors import KubectlFailed
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.paths import CLAIMS_PATH

_API = "/apis/resource.k8s.io/v1"
_CLASSES = f"{_API}/deviceclasses"
_SLICES = f"{_API}/resourceslices?fieldSelector=spec.driver%3D{names.DRA_DRIVER}"


class _Classes(msgspec.Struct):
    items: "tuple[DeviceClass, ...]" = ()


class PodClaimFacts(NamedTuple):
    """A pod's claims on our GPUs, by name; ``classes``: names of our DeviceClasses."""

    claims: "tuple[ResourceClaim, ...]"
    classes: Collection[str]


def claims_of_pod(kubectl: Kubectl, namespace: str, claims: Collection[str]) -> PodClaimFacts:
    """Those of the named claims that are on our GPUs; claims that are gone or cannot be read are left out. Raises ``KubectlMissing``."""
    paths = [f"{_API}/namespaces/{namespace}/resourceclaims/{claim}" for claim in claims]
    with kubectl.start(_CLASSES, *paths) as call:
        classes_answer, *answers = call.outcomes()
    classes = _classes(classes_answer)
    found = [
        claim
        for answer in answers
        if not isinstance(answer, KubectlFailed)
        and (claim := _decoded(decode_resource_claim, answer)) is not None
    ]
    return PodClaimFacts(
        tuple(claim for claim in found if claim.nodes() or claim.requests_of(classes)), classes
    )


def offered_to_claims(kubectl: Kubectl) -> "tuple[list[OfferedGpu], str]":
    """The GPUs that nodes offer to claims, and why they are not known. Raises ``KubectlMissing``."""
    with kubectl.start(_SLICES, CLAIMS_PATH) as call:
        slices_answer, claims_answer = call.outcomes()
    if isinstance(slices_answer, KubectlFailed):
        return [], str(slices_answer)
    if isinstance(claims_answer, KubectlFailed):
        return [], str(claims_answer)
    slices = _decoded(decode_resource_slices, slices_answer)
    claims = _decoded(decode_resource_claims, claims_answer)
    if slices is None or claims is None:
        return [], f"what answers to {_API} is no list of ResourceSlices and ResourceClaims"
    return offered_gpus(slices, claims), ""


def claims_with_classes(kubectl: Kubectl) -> "tuple[dict[str, ResourceClaim], Collection[str]]":
    """All claims by ``namespace/name``, and the names of our DeviceClasses; none where they cannot be read. Raises ``KubectlMissing``."""
    with kubectl.start(CLAIMS_PATH, _CLASSES) as call:
        claims_answer, classes_answer = call.outcomes()
    if isinstance(claims_answer, KubectlFailed):
        return {}, ()
    claims = _decoded(decode_resource_claims, claims_answer) or ()
    return {claim.key: claim for claim in claims}, _classes(classes_answer)


def _classes(answer: "bytes | KubectlFailed") -> Collection[str]:
    decoded = None if isinstance(answer, KubectlFailed) else _decoded(_CLASSES_DECODER.decode, answer)
    ours = () if decoded is None else (one.metadata.name for one in decoded.items if one.is_ours)
    return {names.DRA_DRIVER, *ours}


def _decoded(decode: Any, answer: bytes) -> Any:
    try:
        return decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


_CLASSES_DECODER = msgspec.json.Decoder(_Classes)
