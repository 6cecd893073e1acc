"""The object that sets a share's size: the workload that owns a pod (Deployment, StatefulSet, Job …), or that of a ResourceClaim."""

from collections.abc import Iterable
from typing import NamedTuple

from gpushare.api.allocation.resource_claim import claims_of
from gpushare.api.objects import Pod


class Workload(NamedTuple):
    """The object that users edit to change its pods or claims."""

    namespace: str
    kind: str
    name: str


def workload_of(pod: Pod) -> Workload:
    """The pod's controller; for a Deployment's ReplicaSet, the Deployment; for a pod without a controller, the pod itself."""
    meta = pod.metadata
    owner = next((reference for reference in meta.owner_references or () if reference.controller), None)
    if owner is None:
        return Workload(meta.namespace, "Pod", meta.name)
    template_hash = (meta.labels or {}).get("pod-template-hash")
    if owner.kind == "ReplicaSet" and template_hash and owner.name.endswith(f"-{template_hash}"):
        return Workload(meta.namespace, "Deployment", owner.name.removesuffix(f"-{template_hash}"))
    return Workload(meta.namespace, owner.kind, owner.name)


class ClaimUsers(NamedTuple):
    """The template of a claim, or the claim itself, and the containers that use it: (pod, its UID, container)."""

    workload: Workload
    containers: "frozenset[tuple[str, str, str]]"


def users_of_claims(pods: Iterable[Pod]) -> "dict[str, ClaimUsers]":
    """The users of every ResourceClaim that the ``pods`` use, by the claim's ``namespace/name``."""
    users: dict[str, ClaimUsers] = {}
    for pod in pods:
        if not pod.uses_claims:
            continue
        meta, claims = pod.metadata, claims_of(pod)
        templates = {
            entry.name: entry.resource_claim_template_name for entry in pod.spec.resource_claims or ()
        }
        for container, uses in claims.containers.items():
            for use in uses:
                name, template = claims.names.get(use), templates.get(use)
                if not name:
                    continue
                known = users.get(f"{meta.namespace}/{name}")
                owner = ("ResourceClaimTemplate", template) if template else ("ResourceClaim", name)
                users[f"{meta.namespace}/{name}"] = ClaimUsers(
                    Workload(meta.namespace, *owner),
                    (known.containers if known is not None else frozenset())
                    | {(meta.name, meta.uid, container)},
                )
    return users
