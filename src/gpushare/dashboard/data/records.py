"""Pods and nodes as the dashboard's watches take them: the scheduler's records, with which nodes pods want and how nodes are labelled."""

from collections.abc import Callable

import msgspec

from gpushare.api.objects import decode_node, decode_pod
from gpushare.kubescheduler.required_nodes import wish_of
from gpushare.scheduler.cache.cache import NodeReader, NodeRecord
from gpushare.scheduler.cache.pod_records import PodRecord, record_of


def decode_seen(raw: bytes) -> tuple[str, PodRecord] | None:
    """A pod's JSON as ``Cluster.pods`` takes it; ``None`` when it has nothing to do with our GPUs."""
    pod = decode_pod(raw)
    record = record_of(pod)
    if record is None:
        return None
    wish = wish_of(pod)
    return record.pod, msgspec.structs.replace(record, wish=wish) if wish else record


def seen_node_decoder(reader: NodeReader) -> Callable[[bytes], tuple[str, NodeRecord]]:
    """A decoder of nodes' JSON as ``Cluster.seen_nodes`` takes them."""

    def decode(raw: bytes) -> tuple[str, NodeRecord]:
        node = decode_node(raw)
        record = msgspec.structs.replace(reader.read(node), labels=node.metadata.labels)
        return record.devices.name, record

    return decode
