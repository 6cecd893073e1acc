"""Node mode ``dra``: what ResourceClaims need of the API server, its features, the kubelets and the agents' slices."""

from collections.abc import Iterator, Sequence
from typing import Final

from gpushare.api import names
from gpushare.api.allocation.resource_slice import current_slices
from gpushare.api.node.modes import NodeMode
from gpushare.doctor.cluster.checks.api_server import minor_of, server_minor
from gpushare.doctor.cluster.facts import ClusterFacts, SeenNode, claiming_nodes, devices_of, gpu_nodes
from gpushare.doctor.findings import Result, Unread, fault, fine, unknown, warning
from gpushare.doctor.suggested_commands import INSTALLER, agent_log, upgrade

#: The first Kubernetes in which claims share devices by capacity without a setting.
OLDEST: Final = (1, 36)
SHARING: Final = "DRAConsumableCapacity"
TAINTS: Final = "DRADeviceTaints"


def claims(facts: ClusterFacts) -> Iterator[Result]:
    """Whether ResourceClaims can get GPUs of the nodes in mode ``dra``."""
    ours = gpu_nodes(facts)
    nodes = claiming_nodes(ours)
    if not nodes:
        unread = isinstance(facts.slices, Unread) or isinstance(facts.device_classes, Unread)
        if ours and not unread:
            yield fine("", f"no node is in mode {NodeMode.DRA.value}")
        return
    server = server_minor(facts)
    if server is not None and server < OLDEST:
        yield from _too_old("API server", server, nodes)
        return
    for node in nodes:
        kubelet = minor_of(node.details.status.node_info.kubelet_version)
        if kubelet is not None and kubelet < OLDEST:
            yield from _too_old(f"kubelet of {node.subject}", kubelet, [node])
    if isinstance(facts.features, Unread):
        yield unknown("API server", f"its features cannot be read: {facts.features.why}")
    elif facts.features.get(SHARING) is False:
        yield fault(
            "API server",
            f"its feature {SHARING} is off: a GPU is allocated to one claim only",
            f"remove {SHARING}=false from the --feature-gates of API server, scheduler, controllers and kubelets",
        )
    elif facts.features.get(TAINTS) is False:
        yield warning(
            "API server",
            f"its feature {TAINTS} is off: a GPU that accepts no new claims leaves the slice, and pods stay on a lost one",
            f"set {TAINTS}=true in --feature-gates and serve the API versions it needs",
        )
    if isinstance(facts.device_classes, list) and names.DRA_DRIVER not in facts.device_classes:
        yield fault(
            f"DeviceClass {names.DRA_DRIVER}",
            "it does not exist: claims that name it are not allocated",
            f"{upgrade(facts, INSTALLER)}: the chart creates it if the API server serves resource.k8s.io/v1",
        )
    yield from _slices(facts, nodes)


def _too_old(subject: str, version: tuple[int, int], nodes: Sequence[SeenNode]) -> Iterator[Result]:
    labelled = ", ".join(node.name for node in nodes)
    yield fault(
        subject,
        f"it is {version[0]}.{version[1]}, and mode {NodeMode.DRA.value} needs 1.36: older versions allocate a device to one claim only. "
        f"Nodes with that label: {labelled}",
        f"`kubectl label node {nodes[0].name} {names.LABEL_MODE}={NodeMode.CORE_MEM.value} --overwrite`, or upgrade",
    )


def _slices(facts: ClusterFacts, nodes: Sequence[SeenNode]) -> Iterator[Result]:
    if isinstance(facts.slices, Unread):
        if facts.slices.absent:
            yield fault(
                "API server",
                "it does not serve resource.k8s.io/v1: no claim can be created",
                "serve it (--runtime-config), or choose another mode label for the nodes",
            )
        return
    by_node = current_slices(facts.slices)
    described = devices_of(list(nodes))
    for node in nodes:
        published = by_node.get(node.name, [])
        if not published:
            devices = described.get(node.name)
            if node.is_ready and devices is not None and any(not gpu.kept_back for gpu in devices.devices):
                yield fault(
                    node.subject,
                    "it has no ResourceSlice of ours: claims get no GPU of it",
                    f"its event ClaimsUnavailable and {agent_log(facts, node.name)} say why",
                )
        elif any(len(published) != one.of for one in published):
            yield fault(
                node.subject,
                f"{len(published)} of its {published[0].of} ResourceSlices are there: kube-scheduler allocates none of its GPUs",
                f"its agent writes them within seconds; if not, {agent_log(facts, node.name)} says why",
            )
        elif not all(device.allow_multiple_allocations for one in published for device in one.devices):
            yield fault(
                node.subject,
                "GPUs of its ResourceSlice do not allow several claims",
                f"is the feature {SHARING} on? Its agent writes the slice again: {agent_log(facts, node.name)}",
            )
