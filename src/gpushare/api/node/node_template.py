"""The resources of nodes that do not exist yet, in the formats of autoscalers.

An autoscaler that creates the first node of a group knows CPUs and memory from its cloud, but not our resources. Tags, annotations or
objects declare them, in a form per autoscaler (docs/guide/autoscaling.md). Amounts are those that a node agent will advertise.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from gpushare.api import names
from gpushare.api.errors import ModelError
from gpushare.api.node.device import described_devices
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.pluralize import counted

_TAG: Final = "k8s.io/cluster-autoscaler/node-template"
_AZURE: Final = "k8s.io_cluster-autoscaler_node-template"
_CLUSTER_API: Final = "capacity.cluster-autoscaler.kubernetes.io"
_GCE_RESOURCES: Final = "extended_resources"
_GCE_LABELS: Final = "node_labels"


class InvalidTemplate(ModelError):
    """Nodes that cannot be described to this autoscaler."""


class NodeTemplate(msgspec.Struct, frozen=True):
    """Nodes of a group: MiB per GPU, mode, and memory unit."""

    gpus_mib: tuple[int, ...]
    mode: NodeMode = NodeMode.SHARE
    unit: MemoryUnit = MemoryUnit.GIB

    @property
    def labels(self) -> dict[str, str]:
        """The labels that the group must set on its nodes, for pods that select them."""
        return {names.LABEL_MODE: self.mode.value}

    @property
    def capacity(self) -> dict[str, int]:
        """Our resources that a node advertises in its mode; may be empty."""
        return self.mode.capacity(self.gpus_mib, self.unit)


def template_of(node: Node) -> NodeTemplate:
    """Nodes like ``node`` with all GPUs healthy.

    Raises ``InvalidTemplate`` if no node agent has described it, ``MalformedDevices`` if the description is malformed.
    """
    described = described_devices(node)
    if described is None:
        raise InvalidTemplate(
            f"node {node.metadata.name}",
            f"no node agent has described it (annotation {names.ANN_DEVICES}); name a node that shares its GPUs",
        )
    mode, unit, devices = described
    return NodeTemplate(tuple(device.total_mib for device in devices), mode, unit)


def written(template: NodeTemplate, form: str, group: str) -> Mapping[str, Any]:
    """The template of the nodes of ``group``, in one of ``FORMS``.

    Raises ``InvalidTemplate`` if there is nothing to describe, or the form cannot express it.
    """
    if not template.gpus_mib or not template.capacity:
        raise InvalidTemplate(
            group,
            f"nodes in mode {template.mode.value} with {counted(len(template.gpus_mib), 'GPU')} advertise nothing of ours",
        )
    return FORMS[form](template, group)


def _tags(template: NodeTemplate, group: str) -> Mapping[str, Any]:
    """AWS: tags of an Auto Scaling group; Tencent Cloud takes the same."""
    del group
    labels = {f"{_TAG}/label/{name}": value for name, value in template.labels.items()}
    return labels | {f"{_TAG}/resources/{name}": str(amount) for name, amount in template.capacity.items()}


def _azure(template: NodeTemplate, group: str) -> Mapping[str, Any]:
    """Tags of a scale set, with underscores instead of slashes."""
    del group
    labels = {f"{_AZURE}_label_{name.replace('/', '_')}": value for name, value in template.labels.items()}
    return labels | {
        f"{_AZURE}_resources_{name.replace('/', '_')}": str(amount)
        for name, amount in template.capacity.items()
    }


def _gce(template: NodeTemplate, group: str) -> Mapping[str, Any]:
    """``AUTOSCALER_ENV_VARS`` in the kube-env of an instance template."""
    del group
    resources = ",".join(f"{name}={amount}" for name, amount in template.capacity.items())
    labels = ",".join(f"{name}={value}" for name, value in template.labels.items())
    return {"AUTOSCALER_ENV_VARS": f"{_GCE_LABELS}={labels};{_GCE_RESOURCES}={resources}"}


def _cluster_api(template: NodeTemplate, group: str) -> Mapping[str, Any]:
    """Annotations of a MachineDeployment, which support only one resource other than CPU, memory and disk."""
    labels = ",".join(f"{name}={value}" for name, value in template.labels.items())
    resources = {name: amount for name, amount in template.capacity.items() if name != names.GPU_COUNT}
    if len(resources) > 1:
        raise InvalidTemplate(
            group,
            f"annotations of the Cluster API hold one resource, nodes in mode {template.mode.value} have {' and '.join(resources)}: "
            "write the form capacity into status.capacity of the group's infrastructure template, whose provider must support that",
        )
    ((name, amount),) = resources.items()
    return {
        f"{_CLUSTER_API}/gpu-type": name,
        f"{_CLUSTER_API}/gpu-count": str(amount),
        f"{_CLUSTER_API}/labels": labels,
    }


def _capacity(template: NodeTemplate, group: str) -> Mapping[str, Any]:
    """Plain: labels and capacity, as in a Node."""
    del group
    return {
        "labels": template.labels,
        "capacity": {name: str(amount) for name, amount in template.capacity.items()},
    }


def _karpenter(template: NodeTemplate, group: str) -> Mapping[str, Any]:
    """A NodeOverlay (karpenter.sh/v1alpha1) for the NodePool ``group``; the NodePool must set the labels."""
    return {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": group},
        "spec": {
            "requirements": [{"key": "karpenter.sh/nodepool", "operator": "In", "values": [group]}],
            "capacity": {name: str(amount) for name, amount in template.capacity.items()},
        },
    }


FormFn = Callable[[NodeTemplate, str], Mapping[str, Any]]
FORMS: Final[Mapping[str, FormFn]] = {
    "capacity": _capacity,
    "aws": _tags,
    "azure": _azure,
    "gce": _gce,
    "cluster-api": _cluster_api,
    "karpenter": _karpenter,
}
