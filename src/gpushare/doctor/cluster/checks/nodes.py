"""Nodes: labels, the GPUs that agents describe, and the resources that kubelets offer."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final

from gpushare.api import names
from gpushare.api.errors import InvalidQuantity, ModelError
from gpushare.api.node.device import Device, description_of, driver_fault, idle_cordons, mode_of, node_devices
from gpushare.api.node.enforcement_text import isolation_failure
from gpushare.api.node.modes import NodeMode
from gpushare.api.node.shared_event_texts import (
    REASON_DRIVER_FAILED,
    REASON_NO_DRIVER,
    REASON_RELEASED,
    REASON_STOPPED,
    REASON_UNHEALTHY,
    REASON_UNKNOWN_MODE,
)
from gpushare.api.objects import Node, NodeCondition, ObjectMeta
from gpushare.api.quantity import Quantity, parse_amount
from gpushare.api.taints import CORDON_TAINT
from gpushare.doctor.cluster.facts import ClusterFacts, SeenNode, gpu_nodes
from gpushare.doctor.findings import Result, Unread, fault, fine, unknown, warning
from gpushare.doctor.suggested_commands import INSTALLER, agent_log, doctor_of_node, upgrade
from gpushare.nodeagent.driver.health import XID_REASON

_LABELS: Final = (
    names.LABEL_MODE,
    names.LABEL_PLACEMENT,
    names.LABEL_MAX_PODS,
    names.LABEL_MAX_NODE_PODS,
    names.LABEL_DESCRIBED,
)
#: Similarity to one of our labels from which a label is taken for a misspelling.
_ALIKE: Final = 0.85
_OF_DRIVER: Final = (REASON_NO_DRIVER, REASON_DRIVER_FAILED, REASON_RELEASED)


def node_labels(facts: ClusterFacts) -> Iterator[Result]:
    """Whether labels are spelled correctly, and have valid values."""
    if isinstance(facts.nodes, Unread):
        yield unknown("nodes", facts.nodes.why)
        return
    for node in facts.nodes:
        for label in sorted(node.labels.keys() - set(_LABELS)):
            near = next(iter(get_close_matches(label, _LABELS, 1, _ALIKE)), None)
            if near is not None or label.startswith("ack.node.gpu."):
                yield warning(
                    node.subject, f"its label {label} has no effect", _relabelled(node, label, near)
                )
        problem = _label_problem(node)
        if problem:
            yield fault(node.subject, problem, "correct it on the node; until then it accepts no new pods")
        idle = _idle(node)
        if idle:
            yield warning(
                node.subject,
                idle,
                f"correct it, or `kubectl annotate node {node.name} {names.ANN_CORDONED}-`",
            )


def _relabelled(node: SeenNode, label: str, intended: str | None) -> str:
    if intended is None or intended in node.labels:
        return f"`kubectl label node {node.name} {label}-`"
    return f"`kubectl label node {node.name} {label}- {intended}={node.labels[label]}`"


def _idle(node: SeenNode) -> str:
    """Cordons of GPUs that do not exist; a node whose description cannot be read is left to another check."""
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
    """The node with its labels only: its agent's description is examined elsewhere."""
    meta = node.node.metadata
    cordons = {key: text for key, text in (meta.annotations or {}).items() if key == names.ANN_CORDONED}
    return Node(ObjectMeta(name=meta.name, labels=meta.labels, annotations=cordons))


def node_descriptions(facts: ClusterFacts) -> Iterator[Result]:
    """Whether each labelled node is described by its agent, in a readable form, and in the mode of its label."""
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
                f"a running node agent rewrites it within seconds; otherwise {agent_log(facts, node.name)}",
            )
            continue
        if described is None:
            if node.is_ready and mode.offers_gpus and not _reports_no_gpu(node):
                yield fault(
                    node.subject,
                    f"it is labelled {names.LABEL_MODE}={mode.value}, but no agent has reported its GPUs",
                    f"{agent_log(facts, node.name)}: no driver, no GPU, or no permission to write",
                )
            continue
        if described.mode is not mode:
            yield fault(
                node.subject,
                f"its label says {mode.value}, but its agent still runs in mode {described.mode.value}: it accepts no new pods",
                f"the agent follows within seconds; if not, {agent_log(facts, node.name)} says why",
            )
        elif not described.devices and not _reports_no_gpu(node):
            yield fault(
                node.subject,
                "its agent finds no GPU",
                doctor_of_node(facts, node.name) or "`nvidia-smi` on the node: does it list GPUs?",
            )


def _reports_no_gpu(node: SeenNode) -> bool:
    """Whether the agent reports that there is no driver or no GPU: that is a finding about the node's health."""
    return bool(driver_fault(node.node))


def node_capacity(facts: ClusterFacts) -> Iterator[Result]:
    """Whether each kubelet offers what the agent describes."""
    for node in gpu_nodes(facts):
        try:
            devices = node_devices(node.node)
            described = description_of(node.node)
        except ModelError:
            continue
        if devices is None or described is None or devices.refusal or not node.is_ready:
            continue
        healthy_mib = [device.total_mib for device in devices.devices if device.healthy]
        capacity = devices.mode.capacity(healthy_mib, devices.unit)
        wanted = {
            resource: capacity.get(resource, 0)
            for resource in (names.GPU_MEM, names.GPU_CORE, names.GPU_WHOLE)
        }
        allocatable = node.node.status.allocatable or {}
        deviations = [
            f"{allocatable.get(resource, 0)} of {resource} instead of {amount}"
            for resource, amount in wanted.items()
            if not _is_amount(allocatable.get(resource, 0), amount)
        ]
        if deviations:
            yield fault(
                node.subject,
                f"its kubelet offers {', '.join(deviations)}",
                "kubelets publish changes within seconds: check again after a recent change; "
                f"otherwise the agent does not run, or is not registered with the kubelet: {agent_log(facts, node.name)}",
            )


def _is_amount(quantity: Quantity, amount: int) -> bool:
    """Whether a quantity as Kubernetes writes it, such as ``1k``, is that amount."""
    try:
        return parse_amount(quantity) == amount
    except InvalidQuantity:
        return False


def _not_isolated(node: SeenNode) -> Iterator[Result]:
    try:
        devices = node_devices(node.node)
    except ModelError:
        return
    reason = "" if devices is None else isolation_failure(devices)
    if devices is None or not reason:
        return
    fallback = devices.mode.fallback or NodeMode.SHARE
    yield warning(
        node.subject,
        f"its containers see their share, but nothing enforces it: {reason}",
        f"repair that; or `kubectl label node {node.name} {names.LABEL_MODE}={fallback.value} --overwrite` "
        + ("to use gpushare's libraries" if fallback.isolated else "if you trust the containers"),
    )


def node_health(facts: ClusterFacts) -> Iterator[Result]:
    """Whether nodes are ready, their GPUs are in service and used by pods only, and their containers are held to their share."""
    for node in gpu_nodes(facts):
        if not node.is_ready:
            yield fault(node.subject, "its kubelet is not ready", f"`kubectl describe node {node.name}`")
            continue
        if any(taint.key == CORDON_TAINT for taint in node.taints):
            yield fine(
                "",
                f"{node.subject} is cordoned: no new pods are placed there until `kubectl uncordon {node.name}`",
            )
        try:
            described = description_of(node.node)
        except ModelError:
            continue
        yield from _not_isolated(node)
        condition = node.node.condition(names.CONDITION_READY)
        lost = [device for device in described.devices if device.is_faulty] if described else []
        if condition is not None and condition.reason in _OF_DRIVER:
            lost = []  # they work, as far as is known: no reset would help
        yield from _lost(
            node, lost, all_of_them=described is not None and len(lost) == len(described.devices)
        )
        for device in described.devices if described else ():
            if device.kept_back:
                yield fine("", f"{node.subject}: GPU {device.label} ({device.uuid}) is {device.reason}")
            if device.foreign_mib:
                yield _used_without_allocation(node, device)
        if (
            condition is None
            or condition.status == "True"
            or condition.reason in (REASON_UNKNOWN_MODE, REASON_STOPPED)
        ):
            continue  # other checks examine the label, and what the kubelet offers without an agent
        if lost and condition.reason == REASON_UNHEALTHY:
            continue  # these GPUs are reported above
        yield fault(
            node.subject,
            f"{names.CONDITION_READY} is {condition.status}: {condition.message}",
            _suggestion(facts, node, condition),
        )


def _reset(device: Device) -> str:
    """How to reset the GPU; of a MIG instance its GPU, which has others."""
    parent = device.place[0]
    if device.is_instance:
        return f"reset GPU {parent} once no instance of it is in use (`nvidia-smi -r -i {parent}`)"
    return f"reset it (`nvidia-smi -r -i {parent}`)"


def _used_without_allocation(node: SeenNode, device: Device) -> Result:
    return warning(
        node.subject,
        f"{device.foreign_text}, and are not allocated to pods",
        f"end the processes, which `kubectl describe node {node.name}` names as well (event UnmanagedGPUUsage); if none is "
        f"left, delete the pods on the GPU and {_reset(device)}, or reboot",
    )


def _lost(node: SeenNode, lost: Sequence[Device], *, all_of_them: bool) -> Iterator[Result]:
    for device in lost:
        wait = (
            "after an XID it returns by itself after some minutes without another one; otherwise "
            if XID_REASON in device.reason
            else ""
        )
        message = f"GPU {device.label} ({device.uuid}) is out of service: {device.reason}"
        if all_of_them:
            yield fault(
                node.subject,
                message,
                f"{wait}`kubectl drain {node.name} --ignore-daemonsets`; `dmesg | grep -i xid` there; "
                f"reset the GPUs (`nvidia-smi -r`), or reboot; then `kubectl uncordon {node.name}`",
            )
        else:
            yield warning(
                node.subject,
                message,
                f"{wait}`dmesg | grep -i xid` on the node; delete the pods on the GPU, {_reset(device)}, or reboot",
            )


def _suggestion(facts: ClusterFacts, node: SeenNode, condition: NodeCondition) -> str:
    doctor_command = doctor_of_node(facts, node.name)
    if condition.reason == REASON_DRIVER_FAILED:
        advice = "`nvidia-smi` as root on the node loads the driver's module, or reports its error; `dmesg | grep -i nvrm` there; after an upgrade of the driver reboot the node"
    elif condition.reason == REASON_NO_DRIVER:
        advice = f"install the driver on the node, or name its directory: {upgrade(facts, INSTALLER, 'nodeAgent.driverRoot=DIRECTORY')}"
        if facts.playground is not None:
            advice = "install the driver on the node"
    elif condition.reason == REASON_RELEASED:
        advice = (
            f"wait for NVIDIA's GPU Operator; if the label stays, the log of its driver pod on {node.name} says why: "
            "the driver is in use while pods on the node have GPUs"
        )
    else:
        advice = f"`kubectl describe node {node.name}`: its events say what to do"
    return f"{advice}; {doctor_command} checks it" if doctor_command else advice
