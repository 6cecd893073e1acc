"""``kubectl inspect cgpu --pods``: every pod on a GPU, with allocated and used memory and compute."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from gpushare.api.request.pluralize import counted
from gpushare.inspect.arguments import Options
from gpushare.inspect.color import Paint
from gpushare.inspect.errors import InspectError
from gpushare.inspect.sources.cluster_source import read as read_cluster
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.live_usage import NOT_LOOKED, RealUse, Use, ports_of, read, total
from gpushare.inspect.tabwriter import printable
from gpushare.inspect.view_result import Shown
from gpushare.inspect.views.allocation_model import ClusterUsage, NodeUsage, PodUsage, usage_of
from gpushare.inspect.views.pod_table import Row, by_memory, table

VERSION: Final = 1
_MAX_NAMED: Final = 3


class Rows(NamedTuple):
    """Rows of all nodes, and warnings about what could not be read."""

    rows: "list[Row]"
    remarks: "tuple[str, ...]"


def rows(kubectl: Kubectl, namespace: "str | None") -> Rows:
    """Read the cluster and its node agents; raises ``InspectError``."""
    snapshot = read_cluster(kubectl, None)
    cluster = usage_of(snapshot.nodes, snapshot.pods, snapshot.claims, whole=True)
    with_pods = [node.name for node in cluster.nodes if node.pods]
    problems = (*cluster.warnings, *filter(None, [snapshot.claims_problem]))
    remarks = [f"warning: {printable(problem)}" for problem in problems]
    use = RealUse({}, {}, frozenset())
    if with_pods:
        try:
            use = read(kubectl, with_pods, ports_of(snapshot.nodes))
        except InspectError as error:
            use = RealUse({}, dict.fromkeys(with_pods, str(error)), frozenset())
    silent = dict(use.silent)
    for node in cluster.nodes:
        silent.update(_unknown_usage(node, use))
    return Rows(_rows(cluster, use, namespace), (*remarks, *_silent(silent)))


def pods(kubectl: Kubectl, options: Options, paint: Paint) -> Shown:
    """Read the cluster once and render it; for ``--top`` sorted by used memory."""
    result = rows(kubectl, options.namespace)
    if options.view == "top":
        result = result._replace(rows=sorted(result.rows, key=by_memory, reverse=True))
    if options.output:
        from gpushare.inspect.views.documents import written

        document = {
            "version": VERSION,
            "kind": "Pods",
            "pods": [_record(row) for row in result.rows],
            "warnings": [remark.removeprefix("warning: ") for remark in result.remarks],
        }
        return Shown(written(document, options.output), result.remarks)
    if not result.rows:
        from gpushare.inspect.sources.not_found_hints import within

        return Shown(f"No pod has GPU memory{within(kubectl, options.namespace)}.\n", result.remarks)
    return Shown("\n".join(table(result.rows, paint)) + "\n", result.remarks)


def _rows(cluster: ClusterUsage, use: RealUse, namespace: "str | None") -> list[Row]:
    rows = []
    for node in cluster.nodes:
        for pod in node.pods:
            if namespace not in (None, pod.namespace):
                continue
            for share in pod.shares:
                usage = _usage(pod, share.device.uuid, use)
                # A pod that a sampling agent does not list uses nothing on this GPU, unless the GPU is failed.
                unlisted = 0.0 if node.name in use.looked and not share.device.is_faulty else None
                rows.append(
                    Row(
                        pod.namespace,
                        pod.name,
                        pod.uid,
                        node.name,
                        share.device.index,
                        share.device.uuid,
                        share.mib,
                        unlisted if usage is None else usage.mib,
                        share.core_percent,
                        unlisted if usage is None else usage.sm_percent,
                        share.containers,
                        pod.claim,
                        share.limit_mib,
                    )
                )
    return rows


def _usage(pod: PodUsage, uuid: str, use: RealUse) -> "Use | None":
    """What the pod uses of a GPU, or the pods that use the claim together; ``None`` if no agent lists any of them."""
    listed = [use.of[key, uuid] for key in pod.keys if (key, uuid) in use.of]
    if not listed:
        return None
    return Use(total(usage.mib for usage in listed), total(usage.sm_percent for usage in listed))


def _record(row: Row) -> "dict[str, object]":
    containers = {} if row.containers is None else {"containers": list(row.containers)}
    claim = {"claim": row.claim} if row.claim else {}
    limit = {"limitMiB": row.limit_mib} if row.limit_mib else {}
    return {
        "namespace": row.namespace,
        "name": row.name,
        "uid": row.uid,
        "node": row.node,
        "gpu": row.gpu,
        "uuid": row.uuid,
        "givenMiB": row.allocated_mib,
        "usedMiB": row.used_mib,
        "givenCorePercent": row.allocated_core_percent,
        "usedCorePercent": row.used_core_percent,
        **containers,
        **claim,
        **limit,
    }


def _unknown_usage(node: NodeUsage, use: RealUse) -> "dict[str, str]":
    """Subjects of unknown usage, with the reason, where GPUs of the node are out of service: single GPUs, or the whole node."""
    failed_gpus = {
        share.device.label: share.device.reason or "no reason given"
        for pod in node.pods
        for share in pod.shares
        if share.device.is_faulty and _usage(pod, share.device.uuid, use) is None
    }
    if node.name not in use.silent:
        return {
            f"GPU {label} of node {node.name}": f"it is out of service: {reason}"
            for label, reason in failed_gpus.items()
        }
    if use.silent[node.name] != NOT_LOOKED or any(not gpu.device.is_faulty for gpu in node.gpus):
        return {}
    reasons = "; ".join(
        f"GPU {label} is out of service: {reason}" for label, reason in sorted(failed_gpus.items())
    )
    return {node.name: reasons} if reasons else {}


def _silent(silent: Mapping[str, str]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for node, reason in sorted(silent.items()):
        by_reason.setdefault(reason, []).append(node)
    return [
        printable(
            f"warning: GPU usage of pods is unknown on {', '.join(nodes[:_MAX_NAMED])}"
            f"{_more(len(nodes) - _MAX_NAMED)}: {reason}"
        )
        for reason, nodes in by_reason.items()
    ]


def _more(count: int) -> str:
    return f" and {counted(count, 'more node')}" if count > 0 else ""
