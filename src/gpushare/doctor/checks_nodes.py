"""Nodes: labels, what the agents say of the GPUs, and what the kubelets offer of it."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from gpushare.doctor.cluster_facts import ClusterFacts, SeenNode, gpu_nodes
from gpushare.doctor.commands import agent_log, doctor_of_node
from gpushare.doctor.findings import Said, Unread, fault, unknown, warning
from gpushare.model import names
from gpushare.model.device import NodeMode, description_of, idle_cordons, mode_of, node_devices
from gpushare.model.errors import ModelError
from gpushare.model.faults import REASON_STOPPED, REASON_UNHEALTHY, REASON_UNKNOWN_MODE
from gpushare.model.objects import Node, ObjectMeta

_LABELS: Final = (
    names.LABEL_MODE,
    names.LABEL_PLACEMENT,
    names.LABEL_MAX_PODS,
    names.LABEL_MAX_NODE_PODS,
    names.LABEL_DESCRIBED,
)
#: How alike a label must be to one of ours to be taken for a slip.
_ALIKE: Final = 0.85
_CONDITION: Final = "GPUShareReady"


def node_labels(facts: ClusterFacts) -> Iterator[Said]:
    """Whether labels are spelled as they must be, and have values that are known."""
    if isinstance(facts.nodes, Unread):
        yield unknown("nodes", facts.nodes.why)
        return
    for node in facts.nodes:
        for label in sorted(node.labels.keys() - set(_LABELS)):
            near = next(iter(get_close_matches(label, _LABELS, 1, _ALIKE)), None)
            if near is not None or label.startswith("ack.node.gpu."):
                yield warning(node.subject, f"nobody reads its label {label}", _relabelled(node, label, near))
        problem = _label_problem(node)
        if problem:
            yield fault(node.subject, problem, "correct it on the node; until then that takes no new pods")
        idle = _idle(node)
        if idle:
            yield warning(
                node.subject,
                idle,
                f"correct it, or `kubectl annotate node {node.name} {names.ANN_CORDONED}-`",
            )


def _relabelled(node: SeenNode, label: str, meant: str | None) -> str:
    if meant is None or meant in node.labels:
        return f"`kubectl label node {node.name} {label}-`"
    return f"`kubectl label node {node.name} {label}- {meant}={node.labels[label]}`"


def _idle(node: SeenNode) -> str:
    """What cordons name that is not there; of a node whose description cannot be read another check speaks."""
    try:
        devices = node_devices(node.node)
    except ModelError:
        return ""
    return "" if devices is None else idle_cordons(node.node, devices.devices)


def _label_problem(node: SeenNode) -> str:
    """What is wrong with the values of a node's labels and cordons."""
    try:
        devices = node_devices(_undescribed(node))
        mode_of(node.node)
    except ModelError as error:
        return error.problem
    return "" if devices is None else devices.problem


def _undescribed(node: SeenNode) -> Node:
    """The node with its labels alone: what its agent says of it is looked at elsewhere."""
    meta = node.node.metadata
    cordons = {key: text for key, text in (meta.annotations or {}).items() if key == names.ANN_CORDONED}
    return Node(ObjectMeta(name=meta.name, labels=meta.labels, annotations=cordons))


def node_devices_said(facts: ClusterFacts) -> Iterator[Said]:
    """Whether each labelled node is described by its agent, readably, and in the mode of its label."""
    for node in gpu_nodes(facts):
        if _label_problem(node):
            continue
        mode = mode_of(node.node)
        try:
            described = description_of(node.node)
        except ModelError as error:
            yield fault(
                node.subject,
                error.problem,
                f"a node agent that runs there writes it anew within seconds; else {agent_log(facts, node.name)}",
            )
            continue
        if described is None:
            if node.is_ready and mode is not NodeMode.DEFAULT:
                yield fault(
                    node.subject,
                    f"it is labelled {names.LABEL_MODE}={mode.value}, and no agent has described its GPUs",
                    f"{agent_log(facts, node.name)}: no driver, no GPU, or no right to write",
                )
            continue
        if described.mode is not mode:
            yield fault(
                node.subject,
                f"its label says {mode.value}, and its agent still {described.mode.value}: it takes no new pods",
                f"the agent follows within seconds; where it does not, {agent_log(facts, node.name)} says why",
            )
        elif not described.devices:
            yield fault(node.subject, "its agent finds no GPU", doctor_of_node(facts, node.name))


def node_capacity(facts: ClusterFacts) -> Iterator[Said]:
    """Whether each kubelet offers what the agent says that there is."""
    for node in gpu_nodes(facts):
        try:
            devices = node_devices(node.node)
            described = description_of(node.node)
        except ModelError:
            continue
        if devices is None or described is None or devices.refusal or not node.is_ready:
            continue
        healthy = [one for one in devices.devices if one.healthy]
        wanted = {
            names.GPU_MEM: sum(map(devices.units_of, healthy)) if devices.mode.shares_memory else 0,
            names.GPU_CORE: 100 * len(healthy) if devices.mode.gives_core else 0,
            names.GPU_WHOLE: len(healthy) if devices.mode is NodeMode.TOPOLOGY else 0,
        }
        allocatable = node.node.status.allocatable or {}
        off = [
            f"{allocatable.get(resource, 0)} of {resource} instead of {amount}"
            for resource, amount in wanted.items()
            if str(allocatable.get(resource, 0)) != str(amount)
        ]
        if off:
            yield fault(
                node.subject,
                f"its kubelet offers {', '.join(off)}",
                f"the node agent does not run, or is not registered with the kubelet: {agent_log(facts, node.name)}",
            )


def node_health(facts: ClusterFacts) -> Iterator[Said]:
    """Whether nodes are ready, their GPUs in service, and their containers held to their share."""
    for node in gpu_nodes(facts):
        if not node.is_ready:
            yield fault(node.subject, "its kubelet is not ready", f"`kubectl describe node {node.name}`")
            continue
        try:
            described = description_of(node.node)
        except ModelError:
            continue
        lost = [device for device in described.devices if not device.healthy] if described else []
        for device in lost:
            says = f"GPU {device.index} ({device.uuid}) is out of service: {device.reason}"
            if described is not None and len(lost) == len(described.devices):
                yield fault(
                    node.subject,
                    says,
                    f"`kubectl drain {node.name} --ignore-daemonsets`; `dmesg | grep -i xid` there; reset the GPUs (`nvidia-smi -r`), or reboot",
                )
            else:
                yield warning(
                    node.subject,
                    says,
                    f"`dmesg | grep -i xid` on the node; delete what runs on the GPU, reset it (`nvidia-smi -r -i {device.index}`), or reboot",
                )
        for condition in node.details.status.conditions or ():
            if condition.reason in (REASON_UNKNOWN_MODE, REASON_STOPPED):
                continue  # the label, and what the kubelet offers without an agent, have checks of their own
            if lost and condition.reason == REASON_UNHEALTHY:
                continue  # which GPUs these are is told above
            if condition.type == _CONDITION and condition.status != "True":
                yield fault(
                    node.subject,
                    f"{_CONDITION} is {condition.status}: {condition.message}",
                    f"`kubectl describe node {node.name}`: its events say what to do; so does {doctor_of_node(facts, node.name)}",
                )
