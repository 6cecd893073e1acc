"""The room that gangs keep for pods that have not come yet: free by what nodes and pods say, and given to nobody else.

The scheduler alone knows it. It is asked where pods of a gang wait, and not otherwise.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from gpushare.api import names
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

#: GPUs that are named of one gang, but with ``-d``.
_NAMED: Final = 3
_ANOTHER: Final = "a gang of another namespace"


class KeptShare(NamedTuple):
    """What is kept of one GPU, for all pods of the gang together."""

    node: str
    gpu: int
    uuid: str
    units: int
    mib: int
    core_percent: int


class Kept(NamedTuple):
    """What is kept for a gang, whose names are empty where only pods of another namespace are to be named.

    Of ``least`` pods so many run or have ``come``. ``until``: when it is given up where no more of them come, in seconds since 1970.
    """

    namespace: str
    name: str
    come: int
    least: int
    until: int
    shares: "tuple[KeptShare, ...]"


def kept(kubectl: Kubectl, options: Options, snapshot: Snapshot) -> "tuple[tuple[Kept, ...], str]":
    """What gangs keep (of the node that ``options`` name), and why that is not known; raises ``KubectlMissing``."""
    if not _gang_waits(kubectl, options, snapshot):
        return (), ""
    decided = ask(kubectl, options.scheduler, "/kept")
    if decided.told is None:
        return (), f"what is kept for gangs whose pods wait is not known: {decided.problem}"
    found = (_kept(one, options) for one in decided.told["kept"])
    return tuple(one for one in found if one.shares), ""


def _gang_waits(kubectl: Kubectl, options: Options, snapshot: Snapshot) -> bool:
    if options.node is None:
        return any(names.LABEL_GANG_NAME in (one.metadata.labels or {}) for one in snapshot.waiting)
    # Of one node the pods there were read alone.
    selectors = (
        f"fieldSelector=spec.nodeName%3D%2Cstatus.phase%3DPending&labelSelector={names.LABEL_GANG_NAME}"
    )
    with kubectl.start(f"/api/v1/pods?limit=1&{selectors.replace('/', '%2F')}") as begun:
        (answer,) = begun.outcomes()
    if isinstance(answer, KubectlFailed):
        return False
    found = json.loads(answer).get("items") or ()
    return any(names.LABEL_GANG_NAME in (one["metadata"].get("labels") or {}) for one in found)


def _kept(told: Mapping[str, Any], options: Options) -> Kept:
    namespace, _, name = told["gang"].partition("/")
    if options.namespace not in (None, namespace):
        namespace = name = ""
    shares = tuple(
        KeptShare(one["node"], one["gpu"], one["uuid"], one["units"], one["MiB"], one["corePercent"])
        for one in told["shares"]
        if options.node in (None, one["node"])
    )
    return Kept(namespace, name, told["come"], told["least"], told["until"], shares)


def kept_text(found: Sequence[Kept], cluster: ClusterUsage, *, every: bool = False) -> str:
    """A line for each gang, a line end after each; ``every``: however many GPUs it is."""
    unit_mib = {node.name: node.unit.mib for node in cluster.nodes}
    return "".join(f"{printable(_line(one, unit_mib, every=every))}\n" for one in found)


def _line(one: Kept, unit_mib: Mapping[str, int], *, every: bool) -> str:
    whom = f"gang {one.namespace}/{one.name}" if one.name else _ANOTHER
    named = one.shares if every else one.shares[:_NAMED]
    what = ", ".join(_share(share, unit_mib) for share in named)
    if len(one.shares) > len(named):
        what += f" and on {counted(len(one.shares) - len(named), 'GPU')} more"
    has = "has" if one.come == 1 else "have"
    return (
        f"Kept for {whom}: {what} ({one.come} of {counted(one.least, 'pod')} {has} come; until {clock(one.until)}, "
        "unless more come)"
    )


def _share(share: KeptShare, unit_mib: Mapping[str, int]) -> str:
    unit = unit_mib.get(share.node, 0)
    memory = memory_text(share.units * unit) if unit and share.units else memory_text(share.mib)
    compute = f" and {share.core_percent}% compute" if share.core_percent else ""
    return f"{memory}{compute} on node {share.node} GPU {share.gpu}"
