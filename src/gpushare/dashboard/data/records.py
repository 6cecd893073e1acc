"""Decoders of the dashboard's watches: the scheduler's records, with node selection of pods and labels of nodes."""

from collections.abc import Callable

import msgspec

from gpushare.api.objects import decode_node, decode_pod
from gpushare.dashboard.data.claims import ClaimPod, claim_pod_of
from gpushare.kubescheduler.required_nodes import wish_of
from gpushare.scheduler.cache.cache import NodeReader, NodeRecord
from gpushare.scheduler.cache.pod_records import PodRecord, record_of


def decode_seen(raw: bytes) -> tuple[str, PodRecord | ClaimPod] | None:
    """A pod's JSON as a record for ``Cluster.pods``; ``None`` for pods that do not concern GPUs."""
    pod = decode_pod(raw)
    record = record_of(pod)
    if record is None or record.bystander:
        claiming = claim_pod_of(pod)
        if claiming is not None:
            return claiming.pod, claiming
    if record is None:
        return None
    wish = wish_of(pod)
    return record.pod, msgspec.structs.replace(record, wish=wish) if wish else record


def seen_node_decoder(reader: NodeReader) -> Callable[[bytes], tuple[str, NodeRecord]]:
    """A decoder of nodes' JSON to records for ``Cluster.seen_nodes``."""

    def decode(raw: bytes) -> tuple[str, NodeRecord]:
        node = decode_node(raw)
        record = msgspec.structs.replace(reader.read(node), labels=node.metadata.labels)
        return record.devices.name, record

    return decode
