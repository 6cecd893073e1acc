"""From what was read to the text that is written: which of the forms, and what is said on stderr."""

from typing import Any, Literal, cast

from gpushare.inspect.arguments import Options
from gpushare.inspect.columns import printable
from gpushare.inspect.errors import InspectError
from gpushare.inspect.kubectl import Kubectl, Round
from gpushare.inspect.listing import unknown_node
from gpushare.inspect.shown import Shown
from gpushare.inspect.source import Snapshot, read
from gpushare.inspect.usage import ClusterUsage, usage_of
from gpushare.model import names


def look(kubectl: Kubectl, options: Options, begun: Round | None = None) -> Shown:
    """Read the cluster once and set it in the form that ``options`` ask for.

    ``begun`` is a reading that was started before. Raises ``InspectError``.
    """
    if options.advise:
        from gpushare.inspect.advising import advised

        return advised(kubectl, options, begun)
    snapshot = read(kubectl, options.node, begun)
    cluster = usage_of(snapshot.nodes, snapshot.pods)
    remarks = [f"warning: {printable(warning)}" for warning in (*cluster.warnings, *cluster.cordoned)]
    if options.node is not None and not cluster.nodes:
        raise InspectError("", "; ".join(cluster.warnings)) if remarks else unknown_node(options.node)
    if options.output in ("json", "yaml"):
        if options.fragmentation:
            return Shown(_fragmentation(kubectl, options, snapshot, cluster), tuple(remarks))
        from gpushare.inspect.structured import encoded

        form = cast("Literal['json', 'yaml']", options.output)
        return Shown(encoded(cluster, form, namespace=options.namespace), tuple(remarks))
    if not cluster.nodes:
        remarks.append(
            f"no node has {names.GPU_MEM}; label nodes with GPUs {names.LABEL_MODE}=share, cgpu, core_mem or mps"
        )
    remarks += [f"warning: {printable(one)}" for node in cluster.nodes for one in node.out_of_service]
    if options.fragmentation:
        return Shown(_fragmentation(kubectl, options, snapshot, cluster), tuple(remarks))
    wide = options.output == "wide"
    if options.details:
        from gpushare.inspect.details import details

        return Shown(details(cluster, wide=wide, namespace=options.namespace), tuple(remarks))
    from gpushare.inspect.tables import summary

    return Shown(summary(cluster, wide=wide), tuple(remarks))


def _fragmentation(kubectl: Kubectl, options: Options, snapshot: Snapshot, cluster: ClusterUsage) -> str:
    from gpushare.inspect.decided import all_waiting
    from gpushare.inspect.fragments import fragments, fragments_document

    def scheduler() -> "list[dict[str, Any]]":
        return all_waiting(kubectl, options.scheduler)

    nodes, held, waiting = snapshot
    namespace = options.namespace
    if not options.output:
        return fragments(cluster, nodes, held, waiting, scheduler, namespace=namespace)
    from gpushare.inspect.written import written

    return written(
        fragments_document(cluster, nodes, held, waiting, scheduler, namespace=namespace), options.output
    )
