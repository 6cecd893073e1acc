"""Shares of pods: whether a program can start within the share of its container."""

from collections.abc import Collection, Iterator

from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.errors import ModelError
from gpushare.api.node.context_cost import too_small_anywhere, too_small_there
from gpushare.api.node.device import NodeDevices
from gpushare.api.objects import Pod
from gpushare.api.request.request import request_of
from gpushare.doctor.cluster.facts import ClusterFacts, devices_of
from gpushare.doctor.findings import Result, Unread, warning
from gpushare.reasons.mistakes.pods import too_small


def pod_shares(facts: ClusterFacts) -> Iterator[Result]:
    """Whether each container has as much of its GPU as a CUDA context takes; other checks report unreadable requests and records."""
    if isinstance(facts.pods, Unread) or isinstance(facts.nodes, Unread):
        return
    known = devices_of(facts.nodes)
    isolating = [node for node in known.values() if node.mode.isolated]
    for pod in facts.pods:
        if pod.finished:
            continue
        try:
            node = known.get(pod.spec.node_name)
            problems = _of_placed(pod, node) if pod.spec.node_name else _of_waiting(pod, isolating)
        except ModelError:
            continue
        for text in problems:
            yield warning(f"pod {pod.key}", text, "request more in the manifest, and recreate the pod")


def _of_placed(pod: Pod, node: NodeDevices | None) -> list[str]:
    allocation = read_allocation(pod.metadata.annotations or {}, node)
    return too_small_there(node, allocation) if node is not None and allocation is not None else []


def _of_waiting(pod: Pod, isolating: Collection[NodeDevices]) -> list[str]:
    """By the measured cost of contexts, or else by the usual one."""
    request = request_of(pod)
    if request is None:
        return []
    if any(device.context_mib for node in isolating for device in node.devices):
        return too_small_anywhere(isolating, request)
    units = {node.unit for node in isolating}
    return list(filter(None, (too_small(pod, unit) for unit in units)))
