"""Pods with what made them: Deployment, StatefulSet, Job …"""

from typing import NamedTuple

import msgspec

from gpushare.model.objects import Pod, PodSpec


class SelectingSpec(PodSpec, rename="camel", gc=False):
    """``spec`` with the labels that its node must have."""

    node_selector: dict[str, str] | None = None


class OwnedPod(Pod, rename="camel", gc=False):
    """A pod that says which nodes it selects, beside what made it."""

    spec: SelectingSpec = msgspec.field(default_factory=SelectingSpec)


class Workload(NamedTuple):
    """What people change to change its pods."""

    namespace: str
    kind: str
    name: str


def workload_of(pod: OwnedPod) -> Workload:
    """The pod's controller, for a Deployment's ReplicaSet the Deployment; the pod itself where nothing made it."""
    meta = pod.metadata
    owner = next((one for one in meta.owner_references or () if one.controller), None)
    if owner is None:
        return Workload(meta.namespace, "Pod", meta.name)
    made = (meta.labels or {}).get("pod-template-hash")
    if owner.kind == "ReplicaSet" and made and owner.name.endswith(f"-{made}"):
        return Workload(meta.namespace, "Deployment", owner.name.removesuffix(f"-{made}"))
    return Workload(meta.namespace, owner.kind, owner.name)
