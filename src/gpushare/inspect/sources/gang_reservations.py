"""Capacity that the scheduler reserves for members of gangs that do not exist yet.

Nodes and pods show it as free; only the scheduler knows it. The scheduler is queried only while pods of a gang are pending.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from gpushare.api import names
from gpushare.api.node.device import gpu_label, is_instance
from gpushare.api.request.describe import memory_text
from gpushare.api.request.pluralize import counted
from gpushare.inspect.arguments import Options
from gpushare.inspect.errors import KubectlFailed
from gpushare.inspect.sources.cluster_source import Snapshot
from gpushare.inspect.sources.decision_client import ask
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.tabwriter import printable
from gpushare.inspect.views.allocation_model import ClusterUsage
from gpushare.inspect.views.timestamps import clock

#: GPUs named per gang without ``-d``.
_NAMED: Final = 3
_ANOTHER: Final = "a gang of another namespace"


class ReservedShare(NamedTuple):
    """Capacity of one GPU reserved for all pods of the gang together."""

    node: str
    gpu: int
    uuid: str
    units: int
    mib: int
    core_percent: int


class GangReservation(NamedTuple):
    """What is reserved for a gang. ``namespace`` and ``name`` are empty where the output is limited to another namespace.

    ``come`` of the minimum of ``least`` pods exist. ``until``: when it is released unless more pods arrive, in seconds since 1970.
    """

    namespace: str
    name: str
    come: int
    least: int
    until: int
    shares: "tuple[ReservedShare, ...]"


def gang_reservations(
    kubectl: Kubectl, options: Options, snapshot: Snapshot
) -> "tuple[tuple[GangReservation, ...], str]":
    """Reservations of gangs (on the node of ``options``), and the reason where they are unknown; raises ``KubectlMissing``."""
    if not _gang_is_pending(kubectl, options, snapshot):
        return (), ""
    decision = ask(kubectl, options.scheduler, "/kept")
    if decision.answer is None:
        return (), f"capacity reserved for gangs with pending pods is unknown: {decision.problem}"
    reservations = (_reservation(record, options) for record in decision.answer["kept"])
    return tuple(reservation for reservation in reservations if reservation.shares), ""


def _gang_is_pending(kubectl: Kubectl, options: Options, snapshot: Snapshot) -> bool:
    if options.node is None:
        return any(names.LABEL_GANG_NAME in (pod.metadata.labels or {}) for pod in snapshot.waiting)
    # For a single node only its own pods were read.
    selectors = (
        f"fieldSelector=spec.nodeName%3D%2Cstatus.phase%3DPending&labelSelector={names.LABEL_GANG_NAME}"
    )
    with kubectl.start(f"/api/v1/pods?limit=1&{selectors.replace('/', '%2F')}") as call:
        (answer,) = call.outcomes()
    if isinstance(answer, KubectlFailed):
        return False
    pods = json.loads(answer).get("items") or ()
    return any(names.LABEL_GANG_NAME in (pod["metadata"].get("labels") or {}) for pod in pods)


def _reservation(record: Mapping[str, Any], options: Options) -> GangReservation:
    namespace, _, name = record["gang"].partition("/")
    if options.namespace not in (None, namespace):
        namespace = name = ""
    shares = tuple(
        ReservedShare(
            share["node"], share["gpu"], share["uuid"], share["units"], share["MiB"], share["corePercent"]
        )
        for share in record["shares"]
        if options.node in (None, share["node"])
    )
    return GangReservation(namespace, name, record["come"], record["least"], record["until"], shares)


def reservations_text(
    reservations: Sequence[GangReservation], cluster: ClusterUsage, *, every: bool = False
) -> str:
    """A line for each gang, each with a line end; ``every``: name all GPUs."""
    unit_mib = {node.name: node.unit.mib for node in cluster.nodes}
    return "".join(
        f"{printable(_line(reservation, unit_mib, every=every))}\n" for reservation in reservations
    )


def _line(reservation: GangReservation, unit_mib: Mapping[str, int], *, every: bool) -> str:
    gang = f"gang {reservation.namespace}/{reservation.name}" if reservation.name else _ANOTHER
    shares = reservation.shares if every else reservation.shares[:_NAMED]
    capacity = ", ".join(_share(share, unit_mib) for share in shares)
    if len(reservation.shares) > len(shares):
        capacity += f" and on {counted(len(reservation.shares) - len(shares), 'GPU')} more"
    exist = "exists" if reservation.come == 1 else "exist"
    return (
        f"Reserved for {gang}: {capacity} ({reservation.come} of {counted(reservation.least, 'pod')} {exist}; until {clock(reservation.until)}, "
        "unless more are created)"
    )


def _share(share: ReservedShare, unit_mib: Mapping[str, int]) -> str:
    unit = unit_mib.get(share.node, 0)
    memory = memory_text(share.units * unit) if unit and share.units else memory_text(share.mib)
    compute = f" and {share.core_percent}% compute" if share.core_percent else ""
    return (
        f"{memory}{compute} on node {share.node} GPU {gpu_label(share.gpu, instance=is_instance(share.uuid))}"
    )
