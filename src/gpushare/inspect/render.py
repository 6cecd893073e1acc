"""From what was read to the text that is written: which of the forms, and what is said on stderr."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from gpushare.api import names
from gpushare.api.node.modes import MODES, mode_giving
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
    from gpushare.inspect.sources.gang_reservations import Kept


def look(kubectl: Kubectl, options: Options, begun: Round | None = None) -> Shown:
    """Read the cluster once and set it in the form that ``options`` ask for.

    ``begun`` is a reading that was started before. Raises ``InspectError``.
    """
    if options.advise:
        from gpushare.inspect.views.recommend import advised

        return advised(kubectl, options, begun)
    snapshot = read(kubectl, options.node, begun)
    cluster = usage_of(snapshot.nodes, snapshot.pods)
    remarks = [f"warning: {printable(warning)}" for warning in cluster.remarks]
    if options.node is not None and not cluster.nodes:
        raise (
            InspectError("", "; ".join(cluster.warnings)) if remarks else _not_shared(snapshot, options.node)
        )
    kept: tuple[Kept, ...] = ()
    if cluster.nodes and not options.fragmentation:
        from gpushare.inspect.sources.gang_reservations import kept as kept_now

        kept, unknown = kept_now(kubectl, options, snapshot)
        remarks += [f"warning: {printable(unknown)}"] if unknown else []
    if options.output in ("json", "yaml"):
        if options.fragmentation:
            return Shown(_fragmentation(kubectl, options, snapshot, cluster), tuple(remarks))
        from gpushare.inspect.views.json_output import encoded

        form = cast("Literal['json', 'yaml']", options.output)
        return Shown(encoded(cluster, form, kept, namespace=options.namespace), tuple(remarks))
    if not cluster.nodes:
        remarks.append(
            _not_described(snapshot.nodes)
            or f"no node has {names.GPU_MEM}; label nodes with GPUs {names.LABEL_MODE}={_sharing()}"
        )
    if options.node is None and not options.fragmentation:
        remarks += [printable(one) for one in _whole(snapshot.nodes, cluster)]
    remarks += [f"warning: {printable(one)}" for node in cluster.nodes for one in node.out_of_service]
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
    if kept:
        from gpushare.inspect.sources.gang_reservations import kept_text

        text += kept_text(kept, cluster, every=options.details)
    return Shown(text, tuple(remarks))


def _not_shared(snapshot: Snapshot, node: str) -> InspectError:
    """Of a node that is there, and in no table of shares."""
    mode = next(((one.metadata.labels or {}).get(names.LABEL_MODE, "") for one in snapshot.nodes), "")
    if told := _not_described(snapshot.nodes):
        return InspectError("", told)
    if not _gives_whole(mode):
        return unknown_node(node)
    return InspectError(
        "",
        f'node "{node}" is in mode {mode}: it gives whole GPUs ({names.GPU_WHOLE}), and has no {names.GPU_MEM} to share; '
        "`kubectl inspect cgpu --pods` shows who has them",
    )


def _gives_whole(label: str) -> bool:
    return label in MODES and MODES[label].gives_whole


def _sharing() -> str:
    """The labels of nodes that share their GPUs' memory, as they are listed in a sentence."""
    *others, last = (mode.value for mode in MODES.values() if mode.shares_memory)
    return f"{', '.join(others)} or {last}"


def _whole(nodes: Sequence[Node], cluster: ClusterUsage) -> "list[str]":
    """A line on nodes that give whole GPUs, which are in no table of shares; none where there are no such nodes."""
    shown = {node.name for node in cluster.nodes}
    found = [
        node.metadata.name
        for node in nodes
        if _gives_whole((node.metadata.labels or {}).get(names.LABEL_MODE, ""))
        and names.ANN_DEVICES in (node.metadata.annotations or {})
        and node.metadata.name not in shown
    ]
    if not found:
        return []
    named, more = found[:_MOST_NAMED], len(found) - _MOST_NAMED
    if more > 0:
        named.append(f"and {more} more")
    return [
        f"nodes that give whole GPUs ({mode_giving(names.GPU_WHOLE).value}) are not in the table: {', '.join(named)}; "
        "`kubectl inspect cgpu --pods` shows who has them"
    ]


def _not_described(nodes: Sequence[Node]) -> str:
    """That nodes have a label by which they would share, and no agent has said what they have; empty where that is not so."""
    found = [
        (node.metadata.name, mode)
        for node in nodes
        if (mode := (node.metadata.labels or {}).get(names.LABEL_MODE, "")) in MODES
        and MODES[mode].resources
        and names.ANN_DEVICES not in (node.metadata.annotations or {})
    ]
    if not found:
        return ""
    (name, mode), *others = found
    besides = f" (and {len(others)} more)" if others else ""
    return (
        f"node {name} is labelled {names.LABEL_MODE}={mode}{besides}, and no node agent has described it: is the chart "
        "ack-ai-installer installed? `gpushare doctor` looks"
    )


_MOST_NAMED: Final = 3


def _fragmentation(kubectl: Kubectl, options: Options, snapshot: Snapshot, cluster: ClusterUsage) -> str:
    from gpushare.inspect.sources.decision_client import all_waiting
    from gpushare.inspect.views.fragmentation import fragments, fragments_document

    def scheduler() -> "list[dict[str, Any]]":
        return all_waiting(kubectl, options.scheduler)

    nodes, held, waiting = snapshot
    namespace = options.namespace
    if not options.output:
        return fragments(cluster, nodes, held, waiting, scheduler, namespace=namespace)
    from gpushare.inspect.views.documents import written

    return written(
        fragments_document(cluster, nodes, held, waiting, scheduler, namespace=namespace), options.output
    )
