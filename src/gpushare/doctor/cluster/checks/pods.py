"""Pods: records that can be read and are true, nothing given twice, nobody who waits for a scheduler that is not there."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from gpushare.api import names
from gpushare.api.allocation.annotations import read_allocation
from gpushare.api.crd.resource_policy import seconds_of
from gpushare.api.errors import InvalidRequest, ModelError
from gpushare.api.node.device import NodeDevices
from gpushare.api.node.modes import mode_giving
from gpushare.api.objects import Pod
from gpushare.api.request.describe import instead_of_slip, slip_of
from gpushare.api.request.pluralize import counted
from gpushare.api.request.pod_group import gang_of
from gpushare.api.request.request import Request, request_of
from gpushare.doctor.cluster.facts import ClusterFacts, SeenNode, devices_of
from gpushare.doctor.findings import Said, Unread, fault, warning
from gpushare.reasons.mistakes.names import is_of_others, is_unknown, meant
from gpushare.reasons.mistakes.pods import slip_of_scheduler, slips_of_waiting
from gpushare.reasons.mistakes.selectors import mistyped

#: What containers may ask for, whether a node offers it now or not.
_KNOWN: Final = frozenset(
    {names.GPU_MEM, names.GPU_CORE, names.GPU_WHOLE, names.GPU_MEMORY, names.GPU_MEMORY_PERCENT}
)

#: By then every scheduler that runs has written on a pod why it waits.
_TIME_TO_LOOK_S: Final = 10.0


def pod_records(facts: ClusterFacts) -> Iterator[Said]:
    """Whether each pod that has a node and asks for a GPU has a record that is true there."""
    if isinstance(facts.pods, Unread) or isinstance(facts.nodes, Unread):
        return
    known = devices_of(facts.nodes)
    held: dict[tuple[str, str], int] = defaultdict(int)
    for pod in facts.pods:
        node = pod.spec.node_name
        if not node or pod.finished or not _asks(pod):
            continue
        try:
            allocation = read_allocation(pod.metadata.annotations or {}, known.get(node))
        except ModelError as error:
            yield fault(f"pod {pod.key}", error.problem, "delete it; whoever owns it makes another")
            continue
        if allocation is None:
            yield fault(
                f"pod {pod.key}",
                f"it is on node {node} without a record of what it holds: {pod.spec.scheduler_name or 'somebody'} put it there",
                f"delete it, and let it name schedulerName: {names.SCHEDULER_NAME}",
            )
            continue
        devices = known.get(node)
        for share in allocation.gpus:
            held[node, share.uuid] += share.mib
            if devices is not None and devices.devices and devices.device_of(share.uuid, share.index) is None:
                yield fault(
                    f"pod {pod.key}",
                    f"it holds GPU {share.uuid}, which node {node} does not have (any more)",
                    "where the GPU was taken out, delete the pod",
                )
    yield from _overfull(known, held)


def _overfull(known: dict[str, NodeDevices], held: dict[tuple[str, str], int]) -> Iterator[Said]:
    for (node, uuid), mib in sorted(held.items()):
        devices = known.get(node)
        device = None if devices is None else next((one for one in devices.devices if one.uuid == uuid), None)
        if device is not None and mib > device.total_mib:
            yield fault(
                f"node {node}",
                f"{mib} MiB of GPU {device.index} are given, and it has {device.total_mib}",
                "look for a second scheduler; delete the youngest pods of that GPU",
            )


def waiting_pods(facts: ClusterFacts) -> Iterator[Said]:
    """Whether every pod that asks for a GPU has been given to our scheduler, in a way that can be served."""
    offered = None if isinstance(facts.nodes, Unread) else _offered(facts.nodes)
    known = [] if isinstance(facts.nodes, Unread) else list(devices_of(facts.nodes).values())
    there = {
        label
        for one in (() if isinstance(facts.nodes, Unread) else facts.nodes)
        for label in one.labels.items()
    }
    for pod in () if isinstance(facts.pods, Unread) else facts.pods:
        if pod.spec.node_name or pod.finished:
            continue
        try:
            request = request_of(pod)
            gang_of(pod)
        except InvalidRequest as error:
            yield warning(
                f"pod {pod.key}",
                f"no node can ever take it: {error.problem}",
                "correct it in the manifest, and make the pod anew",
            )
            continue
        yield from _nobodys(pod, offered)
        for text in (*slips_of_waiting(pod), *mistyped(pod, there)):
            yield warning(f"pod {pod.key}", text, "correct the manifest, and make the pod anew")
        if request is not None and known:
            yield from _too_large(pod, request, known)
        if request is not None and pod.spec.scheduler_name != names.SCHEDULER_NAME:
            yield warning(
                f"pod {pod.key}",
                _waits_for(pod, facts),
                f"let it name schedulerName: {names.SCHEDULER_NAME}, or leave the name out where admission points pods",
            )


def _waits_for(pod: Pod, facts: ClusterFacts) -> str:
    """Of a pod that asks for GPUs of ours and names another scheduler: whether that one has looked at it is written on the pod."""
    named = pod.spec.scheduler_name or "default-scheduler"
    if slip := slip_of_scheduler(pod):
        return slip
    made_s = seconds_of(pod.metadata.creation_timestamp)
    had_time = isinstance(facts.server_time_s, Unread) or facts.server_time_s - made_s > _TIME_TO_LOOK_S
    if had_time and not any(one.type == "PodScheduled" for one in pod.status.conditions or ()):
        return f"no scheduler has looked at it: none seems to run for schedulerName {named}"
    return f"it waits for scheduler {named}, which knows nothing of GPUs' shares"


def _offered(nodes: Iterable[SeenNode]) -> frozenset[str]:
    """Resources of which a node has some, also while their device plugin is away."""
    return _KNOWN.union(
        name
        for one in nodes
        for amounts in (one.node.status.capacity, one.node.status.allocatable)
        for name, amount in (amounts or {}).items()
        if str(amount) != "0"
    )


def _too_large(pod: Pod, request: Request, known: Collection[NodeDevices]) -> Iterator[Said]:
    """What no node could give if it were empty and all of its GPUs well."""
    giving = [
        node
        for node in known
        if node.mode.serves(whole=request.by_gpu, core=request.wants_core, gpus=request.gpu_count)
        and request.unit_mib in (0, node.unit.mib)
    ]
    sizes = [sorted((node.units_of(one) for one in node.devices), reverse=True) for node in giving]
    if any(
        len(its) >= request.gpu_count and its[request.gpu_count - 1] >= request.memory_units for its in sizes
    ):
        return
    asked = f"{counted(request.gpu_count, 'GPU')} of one node"
    if not request.by_gpu:
        compute = f" and {request.core_percent}% compute" if request.wants_core else ""
        asked = f"{counted(request.memory_units, 'unit')}{compute} on {'each of ' if request.gpu_count > 1 else ''}{asked}"
    most = max((its[0] for its in sizes if its), default=0)
    best = (
        f"the largest GPU for such pods has {counted(most, 'unit')}" if most else "no node gives such shares"
    )
    if most and request.gpu_count > 1:
        best += f", and no node has more than {max(map(len, sizes))} of them"
    for node in giving:
        if slip := slip_of(request, node.unit):
            yield warning(
                f"pod {pod.key}",
                f"no node could take it if it were empty: it asks for {asked}; {best}; {slip}",
                f"{instead_of_slip(request, node.unit)}, and make the pod anew",
            )
            return
    unmade = request.by_gpu and not giving
    if unmade:
        best = f"nodes of mode {mode_giving(names.GPU_WHOLE).value} alone give whole GPUs, and there is none"
    yield warning(
        f"pod {pod.key}",
        f"no node could take it if it were empty: it asks for {asked}; {best}",
        f"label a node {names.LABEL_MODE}={mode_giving(names.GPU_WHOLE).value}, or ask for {names.GPU_MEM}"
        if unmade
        else f"ask for less, or add a node that has it; {names.LABEL_MODE} says what the GPUs of a node are used as",
    )


def _nobodys(pod: Pod, offered: Collection[str] | None) -> Iterator[Said]:
    """Resources by names that look like ours, or are other device plugins', and that nobody offers; ``None``: nodes were not read."""
    for container in (*pod.spec.containers, *(pod.spec.init_containers or ())):
        for resource in (container.resources and container.resources.limits) or ():
            if is_unknown(resource) and resource not in (offered or _KNOWN):
                yield warning(
                    f"pod {pod.key}",
                    f"no node offers {resource}, for which its container {container.name} asks",
                    f"correct the name: write {meant(resource)}",
                )
            elif is_of_others(resource) and offered is not None and resource not in offered:
                yield warning(
                    f"pod {pod.key}",
                    f"no node offers {resource}, for which its container {container.name} asks",
                    f"write {meant(resource)}, or add a node whose device plugin offers it",
                )


def _asks(pod: Pod) -> bool:
    try:
        return request_of(pod) is not None
    except InvalidRequest:
        return False
