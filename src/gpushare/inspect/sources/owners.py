"""The workload that owns a pod: Deployment, StatefulSet, Job …"""

from typing import NamedTuple

from gpushare.api.objects import Pod


class Workload(NamedTuple):
    """The object that users edit to change its pods."""

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
