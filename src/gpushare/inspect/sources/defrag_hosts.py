"""A cluster's usage as input of the defragmentation planner (``gpushare.planning.defragmentation``)."""

from collections.abc import Container, Iterator, Mapping

from gpushare.inspect.views.allocation_model import ClusterUsage, GpuUsage, NodeUsage
from gpushare.planning.defragmentation import NO_CAP, Gpu, Host, Occupant


def hosts_of(cluster: ClusterUsage, wanted: "Mapping[str, Container[str]] | None" = None) -> Iterator[Host]:
    """The nodes that accept pods which request GPU memory, with their GPUs in service.

    ``wanted``: the eligible nodes of pods (``namespace/name``) that select nodes.
    """
    return (
        _host(node, wanted or {})
        for node in cluster.nodes
        if not node.closed and not node.cordoned and not node.devices.mode.claims
    )


def _host(node: NodeUsage, wanted: "Mapping[str, Container[str]]") -> Host:
    holding = [pod for pod in node.pods if pod.shares]
    with_core = sum(any(share.core_percent for share in pod.shares) for pod in holding)
    cap = node.devices.max_node_pods
    return Host(
        name=node.name,
        unit_mib=node.unit.mib,
        gpus=tuple(_gpu(node, gpu, wanted) for gpu in node.gpus if gpu.device.in_service),
        gives_core=node.devices.mode.gives_core,
        memory_pods=len(holding) - with_core,
        core_pods=with_core,
        spare_pods=NO_CAP if cap is None else cap - len(holding),
    )


def _gpu(node: NodeUsage, gpu: GpuUsage, wanted: "Mapping[str, Container[str]]") -> Gpu:
    pods = tuple(
        Occupant(
            f"{pod.namespace}/{pod.name}",
            share.units,
            share.mib,
            share.core_percent,
            # Allocated in another unit: how many of this node's units its next request would be is unknown.
            may_move=len(pod.shares) == 1 and share.in_node_unit,
            nodes=wanted.get(f"{pod.namespace}/{pod.name}"),
            selection=pod.selection,
        )
        for pod in node.pods
        for share in pod.shares
        if share.device is gpu.device
    )
    cap = node.devices.max_pods
    return Gpu(
        device_index=gpu.device.index,
        free_units=gpu.free_units,
        free_core=100 - gpu.used_core_percent,
        spare_pods=NO_CAP if cap is None else cap - len(pods),
        pods=pods,
        device=gpu.device,
    )
