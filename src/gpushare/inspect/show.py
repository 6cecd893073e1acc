"""From what was read to the text that is written: which of the forms, and what is said on stderr."""

from typing import Literal, cast

from gpushare.inspect.arguments import Options
from gpushare.inspect.columns import printable
from gpushare.inspect.errors import InspectError
from gpushare.inspect.kubectl import Kubectl, Round
from gpushare.inspect.listing import unknown_node
from gpushare.inspect.shown import Shown
from gpushare.inspect.source import read
from gpushare.inspect.usage import usage_of
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
            from gpushare.inspect.fragments import fragments_document
            from gpushare.inspect.written import written

            document = fragments_document(
                cluster, snapshot.nodes, snapshot.waiting, namespace=options.namespace
            )
            return Shown(written(document, options.output), tuple(remarks))
        from gpushare.inspect.structured import encoded

        form = cast("Literal['json', 'yaml']", options.output)
        return Shown(encoded(cluster, form, namespace=options.namespace), tuple(remarks))
    if not cluster.nodes:
        remarks.append(
            f"no node has {names.GPU_MEM}; label nodes with GPUs {names.LABEL_MODE}=share, cgpu, core_mem or mps"
        )
    remarks += [f"warning: {printable(one)}" for node in cluster.nodes for one in node.out_of_service]
    if options.fragmentation:
        from gpushare.inspect.fragments import fragments

        return Shown(
            fragments(cluster, snapshot.nodes, snapshot.waiting, namespace=options.namespace), tuple(remarks)
        )
    wide = options.output == "wide"
    if options.details:
        from gpushare.inspect.details import details

        return Shown(details(cluster, wide=wide, namespace=options.namespace), tuple(remarks))
    from gpushare.inspect.tables import summary

    return Shown(summary(cluster, wide=wide), tuple(remarks))
