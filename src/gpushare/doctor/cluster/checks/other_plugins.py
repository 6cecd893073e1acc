"""Whether another device plugin, such as NVIDIA's, offers the GPUs of nodes that share them."""

from collections.abc import Iterator

from gpushare.api import names
from gpushare.api.node.other_plugins import offer_text, offered_by_others
from gpushare.doctor.cluster.facts import ClusterFacts, gpu_nodes
from gpushare.doctor.findings import Result, fault, fine


def other_plugins(facts: ClusterFacts) -> Iterator[Result]:
    """Each node on which two plugins allocate the same GPUs."""
    nodes = gpu_nodes(facts)
    twice = [(node, offer) for node in nodes if (offer := offered_by_others(node.node))]
    for node, offer in twice:
        yield fault(
            node.subject,
            f"another device plugin also offers its GPUs ({offer_text(offer)}) and may allocate GPUs that have shares, so programs run out of memory",
            f"keep it off nodes with the label {names.LABEL_MODE} (NVIDIA's GPU Operator: "
            f"`kubectl label node {node.name} nvidia.com/gpu.deploy.device-plugin=false --overwrite`), or "
            f"`kubectl label node {node.name} {names.LABEL_MODE}-`",
        )
    if nodes and not twice:
        yield fine("", "no other device plugin offers GPUs of nodes with the label")
