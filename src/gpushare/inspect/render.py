"""Renders a reading of the cluster in the requested format, with remarks for stderr."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from gpushare.api import names
from gpushare.api.node.device import driver_fault
from gpushare.api.node.modes import MODES, mode_giving
from gpushare.api.node.other_plugins import offer_text, offered_by_others
from gpushare.api.objects import Node
from gpushare.inspect.arguments import Options
from gpushare.inspect.errors import InspectError
from gpushare.inspect.sources.cluster_source import Snapshot, read
from gpushare.inspect.sources.kubectl import Kubectl, Round
from gpushare.inspect.sources.paths import unknown_node
from gpushare.inspect.tabwriter import printable
from gpushare.inspect.view_result import Shown
from gpushare.inspect.views.allocation_model import ClusterUsage, usage_of

if TYPE_CHECKING:
    from gpushare.inspect.sources.gang_reservations import GangReservation
    from gpushare.inspect.views.other_nodes import OtherNode


def render(kubectl: Kubectl, options: Options, begun: Round | None = None) -> Shown:
    """Read the cluster once and render it in the format that ``options`` request.

    ``begun`` is a reading that was started before. Raises ``InspectError``.
    """
    if options.advise:
        from gpushare.inspect.views.recommend import recommended

        return recommended(kubectl, options, begun)
    snapshot = read(kubectl, options.node, begun)
    cluster = usage_of(snapshot.nodes, snapshot.pods, snapshot.claims)
    remarks = [f"warning: {printable(warning)}" for warning in cluster.remarks]
    remarks += [f"warning: {printable(snapshot.claims_problem)}"] if snapshot.claims_problem else []
    if options.node is not None and not cluster.nodes:
        raise (
            InspectError("", "; ".join(cluster.warnings)) if remarks else _not_shared(snapshot, options.node)
        )
    reservations: tuple[GangReservation, ...] = ()
    if cluster.nodes and not options.fragmentation:
        from gpushare.inspect.sources.gang_reservations import gang_reservations

        reservations, problem = gang_reservations(kubectl, options, snapshot)
        remarks += [f"warning: {printable(problem)}"] if problem else []
    remarks += [f"warning: {printable(text)}" for text in _offered_twice(snapshot.nodes, cluster)]
    others = _other_nodes(snapshot.nodes, cluster) if options.all_nodes else None
    if options.output in ("json", "yaml"):
        if options.fragmentation:
            return Shown(_fragmentation(kubectl, options, snapshot, cluster), tuple(remarks))
        from gpushare.inspect.views.json_output import encoded

        output_format = cast("Literal['json', 'yaml']", options.output)
        return Shown(
            encoded(
                cluster,
                output_format,
                reservations,
                namespace=options.namespace,
                others=others,
            ),
            tuple(remarks),
        )
    if not cluster.nodes:
        if undescribed := _not_described(snapshot.nodes):
            remarks.append(undescribed)
        elif not any(map(driver_fault, snapshot.nodes)):
            remarks.append(
                f"no node has {names.GPU_MEM}; label nodes with GPUs {names.LABEL_MODE}={_sharing()}"
            )
    if options.node is None and not options.fragmentation:
        remarks += [printable(remark) for remark in _whole_gpu_remarks(snapshot.nodes, cluster)]
    remarks += [f"warning: {printable(remark)}" for node in cluster.nodes for remark in node.out_of_service]
    remarks += [f"warning: {printable(remark)}" for node in cluster.nodes for remark in node.foreign_use]
    remarks += [f"warning: {printable(node.not_isolated)}" for node in cluster.nodes if node.not_isolated]
    if options.fragmentation:
        return Shown(_fragmentation(kubectl, options, snapshot, cluster), tuple(remarks))
    wide = options.output == "wide"
    if options.details:
        from gpushare.inspect.views.node_details import details

        text = details(cluster, wide=wide, namespace=options.namespace)
    else:
        from gpushare.inspect.views.nodes import summary

        text = summary(cluster, wide=wide)
    if others:
        from gpushare.inspect.views.other_nodes import other_nodes_text

        text += "\n" * bool(text) + other_nodes_text(others)
    if reservations:
        from gpushare.inspect.sources.gang_reservations import reservations_text

        text += reservations_text(reservations, cluster, every=options.details)
    return Shown(text, tuple(remarks))


def _not_shared(snapshot: Snapshot, node: str) -> InspectError:
    """The error for a node that exists and is in no table of shares."""
    mode = next(((item.metadata.labels or {}).get(names.LABEL_MODE, "") for item in snapshot.nodes), "")
    if message := _not_described(snapshot.nodes):
        return InspectError("", message)
    if not _allocates_whole(mode):
        return unknown_node(node)
    return InspectError(
        "",
        f'node "{node}" is in mode {mode}: it allocates whole GPUs ({names.GPU_WHOLE}), and shares no {names.GPU_MEM}; '
        "`kubectl inspect cgpu --pods` shows their pods",
    )


def _allocates_whole(label: str) -> bool:
    return label in MODES and MODES[label].gives_whole


def _sharing() -> str:
    """The modes that share GPU memory, listed for a sentence: ``a, b or c``."""
    *others, last = (mode.value for mode in MODES.values() if mode.shares_memory)
    return f"{', '.join(others)} or {last}"


def _whole_gpu_remarks(nodes: Sequence[Node], cluster: ClusterUsage) -> "list[str]":
    """A remark on nodes that allocate whole GPUs, which no table of shares shows; empty without such nodes."""
    shown = {node.name for node in cluster.nodes}
    whole_nodes = [
        node.metadata.name
        for node in nodes
        if _allocates_whole((node.metadata.labels or {}).get(names.LABEL_MODE, ""))
        and names.ANN_DEVICES in (node.metadata.annotations or {})
        and node.metadata.name not in shown
    ]
    if not whole_nodes:
        return []
    named, more = whole_nodes[:_MAX_NAMED], len(whole_nodes) - _MAX_NAMED
    if more > 0:
        named.append(f"and {more} more")
    return [
        f"nodes that allocate whole GPUs ({mode_giving(names.GPU_WHOLE).value}) are not in the table: {', '.join(named)}; "
        "`kubectl inspect cgpu --pods` shows their pods"
    ]


def _other_nodes(nodes: Sequence[Node], cluster: ClusterUsage) -> "list[OtherNode]":
    from gpushare.inspect.views.other_nodes import other_nodes

    return other_nodes(nodes, {node.name for node in cluster.nodes})


def _offered_twice(nodes: Sequence[Node], cluster: ClusterUsage) -> "list[str]":
    """A warning for each node in the table whose GPUs another device plugin offers, too."""
    shown = {node.name for node in cluster.nodes}
    return [
        f"node {node.metadata.name}: another device plugin also offers its GPUs ({offer_text(offered)}); `gpushare doctor` says what to do"
        for node in nodes
        if node.metadata.name in shown and (offered := offered_by_others(node))
    ]


def _not_described(nodes: Sequence[Node]) -> str:
    """A message about nodes that have a mode label but whose GPUs no node agent has described; empty without such nodes."""
    undescribed = [
        (node.metadata.name, mode)
        for node in nodes
        if (mode := (node.metadata.labels or {}).get(names.LABEL_MODE, "")) in MODES
        and MODES[mode].resources
        and not driver_fault(node)
        and names.ANN_DEVICES not in (node.metadata.annotations or {})
    ]
    if not undescribed:
        return ""
    (name, mode), *others = undescribed
    more = f" (and {len(others)} more)" if others else ""
    return (
        f"node {name} is labelled {names.LABEL_MODE}={mode}{more}, but no node agent has reported its GPUs: is chart "
        "ack-ai-installer installed? `gpushare doctor` checks it"
    )


_MAX_NAMED: Final = 3


def _fragmentation(kubectl: Kubectl, options: Options, snapshot: Snapshot, cluster: ClusterUsage) -> str:
    from gpushare.inspect.sources.decision_client import pending_pods
    from gpushare.inspect.views.fragmentation import fragments, fragments_document

    def scheduler() -> "list[dict[str, Any]]":
        return pending_pods(kubectl, options.scheduler)

    nodes, held, waiting = snapshot.nodes, snapshot.pods, snapshot.waiting
    namespace = options.namespace
    if not options.output:
        return fragments(cluster, nodes, held, waiting, scheduler, namespace=namespace)
    from gpushare.inspect.views.documents import written

    return written(
        fragments_document(cluster, nodes, held, waiting, scheduler, namespace=namespace), options.output
    )
