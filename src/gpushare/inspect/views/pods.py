"""``kubectl inspect cgpu --pods``: who uses what, with what is really used beside what was given."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from gpushare.api.request.pluralize import counted
from gpushare.inspect.arguments import Options
from gpushare.inspect.color import Paint
from gpushare.inspect.errors import InspectError
from gpushare.inspect.sources.cluster_source import read as read_cluster
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.live_usage import NOT_LOOKED, RealUse, ports_of, read
from gpushare.inspect.tabwriter import printable
from gpushare.inspect.view_result import Shown
from gpushare.inspect.views.allocation_model import ClusterUsage, NodeUsage, usage_of
from gpushare.inspect.views.pod_table import Row, by_memory, table

VERSION: Final = 1
_MOST_TOLD: Final = 3


class Rows(NamedTuple):
    """Of all nodes, and what could not be read."""

    rows: "list[Row]"
    remarks: "tuple[str, ...]"


def rows(kubectl: Kubectl, namespace: "str | None") -> Rows:
    """Read the cluster and its node agents; raises ``InspectError``."""
    snapshot = read_cluster(kubectl, None)
    cluster = usage_of(snapshot.nodes, snapshot.pods, whole=True)
    there = [node.name for node in cluster.nodes if node.pods]
    remarks = [f"warning: {printable(warning)}" for warning in cluster.warnings]
    use = RealUse({}, {}, frozenset())
    if there:
        try:
            use = read(kubectl, there, ports_of(snapshot.nodes))
        except InspectError as error:
            use = RealUse({}, dict.fromkeys(there, str(error)), frozenset())
    silent = dict(use.silent)
    for node in cluster.nodes:
        silent.update(_lost(node, use))
    return Rows(_rows(cluster, use, namespace), (*remarks, *_silent(silent)))


def pods(kubectl: Kubectl, options: Options, paint: Paint) -> Shown:
    """Read once, and set it; of ``--top`` those that use most memory come first."""
    found = rows(kubectl, options.namespace)
    if options.view == "top":
        found = found._replace(rows=sorted(found.rows, key=by_memory, reverse=True))
    if options.output:
        from gpushare.inspect.views.documents import written

        document = {
            "version": VERSION,
            "kind": "Pods",
            "pods": [_told(one) for one in found.rows],
            "warnings": [one.removeprefix("warning: ") for one in found.remarks],
        }
        return Shown(written(document, options.output), found.remarks)
    if not found.rows:
        from gpushare.inspect.sources.not_found_hints import within

        return Shown(f"No pod holds GPU memory{within(kubectl, options.namespace)}.\n", found.remarks)
    return Shown("\n".join(table(found.rows, paint)) + "\n", found.remarks)


def _rows(cluster: ClusterUsage, use: RealUse, namespace: "str | None") -> list[Row]:
    found = []
    for node in cluster.nodes:
        for pod in node.pods:
            if namespace not in (None, pod.namespace):
                continue
            for share in pod.shares:
                real = use.of.get((f"{pod.namespace}/{pod.name}", share.device.uuid))
                # An agent that looks and does not name a pod knows that it uses nothing, of a GPU that it can ask.
                nothing = 0.0 if node.name in use.looked and not share.device.ails else None
                found.append(
                    Row(
                        pod.namespace,
                        pod.name,
                        pod.uid,
                        node.name,
                        share.device.index,
                        share.device.uuid,
                        share.mib,
                        nothing if real is None else real.mib,
                        share.core_percent,
                        nothing if real is None else real.sm_percent,
                        share.containers,
                    )
                )
    return found


def _told(one: Row) -> "dict[str, object]":
    containers = {} if one.containers is None else {"containers": list(one.containers)}
    return {
        "namespace": one.namespace,
        "name": one.name,
        "uid": one.uid,
        "node": one.node,
        "gpu": one.gpu,
        "uuid": one.uuid,
        "givenMiB": one.given_mib,
        "usedMiB": one.used_mib,
        "givenCorePercent": one.given_core_percent,
        "usedCorePercent": one.used_core_percent,
        **containers,
    }


def _lost(node: NodeUsage, use: RealUse) -> "dict[str, str]":
    """What is not known as GPUs of the node do not answer, with why: of some of them, or all. Agents know no more then, whatever they are set to."""
    untold = {
        share.device.index: share.device.reason or "no reason given"
        for pod in node.pods
        for share in pod.shares
        if share.device.ails and (f"{pod.namespace}/{pod.name}", share.device.uuid) not in use.of
    }
    if node.name not in use.silent:
        return {
            f"GPU {index} of node {node.name}": f"it is out of service: {why}"
            for index, why in untold.items()
        }
    if use.silent[node.name] != NOT_LOOKED or any(not gpu.device.ails for gpu in node.gpus):
        return {}
    whys = "; ".join(f"GPU {index} is out of service: {why}" for index, why in sorted(untold.items()))
    return {node.name: whys} if whys else {}


def _silent(silent: Mapping[str, str]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for node, reason in sorted(silent.items()):
        by_reason.setdefault(reason, []).append(node)
    return [
        printable(
            f"warning: what pods really use is not known of {', '.join(nodes[:_MOST_TOLD])}"
            f"{_more(len(nodes) - _MOST_TOLD)}: {reason}"
        )
        for reason, nodes in by_reason.items()
    ]


def _more(count: int) -> str:
    return f" and {counted(count, 'more node')}" if count > 0 else ""
