"""Pods: allocations are readable and valid, nothing is allocated twice, and no pod is pending for a scheduler that does not run."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import Final

from gpushare.api import names
from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.crd.resource_policy import seconds_of
from gpushare.api.errors import InvalidRequest, ModelError
from gpushare.api.node.device import NodeDevices
from gpushare.api.objects import Pod
from gpushare.api.request.pod_group import gang_of
from gpushare.api.request.request import Request, request_of
from gpushare.doctor.cluster.facts import ClusterFacts, SeenNode, devices_of
from gpushare.doctor.findings import Result, Unread, fault, warning
from gpushare.ledger import Ledger
from gpushare.ledger.fit.empty_node import emptied
from gpushare.reasons.mistakes.names import unoffered
from gpushare.reasons.mistakes.pods import misspelled_scheduler, mistakes_of_pending
from gpushare.reasons.mistakes.selectors import mistyped
from gpushare.reasons.suggestions.nodes import of_nodes
from gpushare.reasons.summary import reason_text, summarized

#: Seconds after which every running scheduler has written on a pod why it is pending.
_TIME_TO_LOOK_S: Final = 10.0


def pod_records(facts: ClusterFacts) -> Iterator[Result]:
    """Whether each bound pod that requests a GPU has a valid record."""
    if isinstance(facts.pods, Unread) or isinstance(facts.nodes, Unread):
        return
    known = devices_of(facts.nodes)
    held: dict[tuple[str, str], int] = defaultdict(int)
    for pod in facts.pods:
        node = pod.spec.node_name
        if not node or pod.finished or not _requests_gpus(pod):
            continue
        try:
            allocation = read_allocation(pod.metadata.annotations or {}, known.get(node))
        except ModelError as error:
            yield fault(f"pod {pod.key}", error.problem, "delete it; its owner creates another")
            continue
        if allocation is None:
            yield fault(
                f"pod {pod.key}",
                f"it is on node {node} without an allocation record: it was scheduled by {pod.spec.scheduler_name or 'another component'}",
                f"delete it, and set schedulerName: {names.SCHEDULER_NAME}",
            )
            continue
        devices = known.get(node)
        for share in allocation.gpus:
            held[node, share.uuid] += share.mib
            if devices is not None and devices.devices and devices.device_of(share.uuid, share.index) is None:
                yield fault(
                    f"pod {pod.key}",
                    f"it holds GPU {share.uuid}, which node {node} does not have",
                    "if the GPU was removed, delete the pod",
                )
    yield from _overfull(known, held)


def _overfull(known: dict[str, NodeDevices], held: dict[tuple[str, str], int]) -> Iterator[Result]:
    for (node, uuid), mib in sorted(held.items()):
        devices = known.get(node)
        device = None if devices is None else next((gpu for gpu in devices.devices if gpu.uuid == uuid), None)
        if device is not None and mib > device.total_mib:
            yield fault(
                f"node {node}",
                f"{mib} MiB of GPU {device.label} are allocated, and it has {device.total_mib}",
                "look for a second scheduler; delete the youngest pods of that GPU",
            )


def waiting_pods(facts: ClusterFacts) -> Iterator[Result]:
    """Whether every pending pod that requests a GPU names our scheduler, and requests what some node could allocate."""
    offered = None if isinstance(facts.nodes, Unread) else _offered(facts.nodes)
    known = {} if isinstance(facts.nodes, Unread) else devices_of(facts.nodes)
    empty = Ledger.of(map(emptied, known.values()))
    actual = cache(lambda: _with_pods(facts, known))
    node_labels = {
        label
        for node in (() if isinstance(facts.nodes, Unread) else facts.nodes)
        for label in node.labels.items()
    }
    for pod in () if isinstance(facts.pods, Unread) else facts.pods:
        if (
            pod.spec.node_name
            or pod.finished
            or pod.spec.scheduler_name == names.PLACEHOLDER_SCHEDULER  # for node autoscalers only
        ):
            continue
        try:
            request = request_of(pod)
            gang_of(pod)
        except InvalidRequest as error:
            yield warning(
                f"pod {pod.key}",
                f"no node can ever run it: {error.problem}",
                "correct the manifest, and recreate the pod",
            )
            continue
        yield from _unoffered(pod, offered)
        for text in (*mistakes_of_pending(pod), *mistyped(pod, node_labels)):
            yield warning(f"pod {pod.key}", text, "correct the manifest, and recreate the pod")
        if request is not None and known:
            yield from _too_large(pod, request, empty, actual)
        if request is not None and pod.spec.scheduler_name != names.SCHEDULER_NAME:
            yield warning(
                f"pod {pod.key}",
                _waits_for(pod, facts),
                f"set schedulerName: {names.SCHEDULER_NAME}, or omit it if admission sets it",
            )


def _with_pods(facts: ClusterFacts, known: dict[str, NodeDevices]) -> Ledger:
    """The nodes with the allocations of pods, as far as these can be read."""
    ledger = Ledger.of(known.values())
    for pod in () if isinstance(facts.pods, Unread) else facts.pods:
        node = pod.spec.node_name
        if not node or pod.finished:
            continue
        with suppress(ModelError):
            if allocation := read_allocation(pod.metadata.annotations or {}, known.get(node)):
                ledger.hold(pod.metadata.uid, pod.key, node, allocation)
    return ledger


def _waits_for(pod: Pod, facts: ClusterFacts) -> str:
    """Why a pod with our GPUs that names another scheduler is pending: its condition shows whether that scheduler has seen it."""
    named = pod.spec.scheduler_name or "default-scheduler"
    if mistake := misspelled_scheduler(pod):
        return mistake
    made_s = seconds_of(pod.metadata.creation_timestamp)
    had_time = isinstance(facts.server_time_s, Unread) or facts.server_time_s - made_s > _TIME_TO_LOOK_S
    if had_time and not any(condition.type == "PodScheduled" for condition in pod.status.conditions or ()):
        return f"no scheduler has handled it: none seems to run for schedulerName {named}"
    return f"it waits for scheduler {named}, which does not support GPU shares"


def _offered(nodes: Iterable[SeenNode]) -> frozenset[str]:
    """Resources that some node has, also while their device plugin is down."""
    return frozenset(
        name
        for node in nodes
        for amounts in (node.node.status.capacity, node.node.status.allocatable)
        for name, amount in (amounts or {}).items()
        if str(amount) != "0"
    )


def _too_large(pod: Pod, request: Request, empty: Ledger, actual: Callable[[], Ledger]) -> Iterator[Result]:
    """A request that no node could fulfil if it were empty and healthy."""
    nodes = empty.node_names()
    verdict = empty.filter(request, nodes)
    if verdict.fits:
        return
    summary, _ = summarized(nodes, verdict)
    help_text = of_nodes(actual(), request, summary.category, {**verdict.refused, **verdict.hopeless})
    yield warning(f"pod {pod.key}", f"no node could run it even if empty: {reason_text(summary)}", help_text)


def _unoffered(pod: Pod, offered: Collection[str] | None) -> Iterator[Result]:
    """Resources with names that look like ours, or of other device plugins, that no node offers; ``None``: nodes were not read."""
    requested = [
        (container.name, resource)
        for container in (*pod.spec.containers, *(pod.spec.init_containers or ()))
        for resource in (container.resources and container.resources.limits) or ()
    ]
    for text, instead in unoffered(requested, offered):
        yield warning(f"pod {pod.key}", text, instead)


def _requests_gpus(pod: Pod) -> bool:
    try:
        return request_of(pod) is not None
    except InvalidRequest:
        return False
