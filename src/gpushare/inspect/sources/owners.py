"""Pods with what made them: Deployment, StatefulSet, Job …"""

from typing import NamedTuple

from gpushare.api.objects import Pod


class Workload(NamedTuple):
    """What people change to change its pods."""

    namespace: str
    kind: str
    name: str


def workload_of(pod: Pod) -> Workload:
    """The pod's controller, for a Deployment's ReplicaSet the Deployment; the pod itself where nothing made it."""
    meta = pod.metadata
    owner = next((one for one in meta.owner_references or () if one.controller), None)
    if owner is None:
        return Workload(meta.namespace, "Pod", meta.name)
    made = (meta.labels or {}).get("pod-template-hash")
    if owner.kind == "ReplicaSet" and made and owner.name.endswith(f"-{made}"):
        return Workload(meta.namespace, "Deployment", owner.name.removesuffix(f"-{made}"))
    return Workload(meta.namespace, owner.kind, owner.name)
