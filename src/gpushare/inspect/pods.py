"""``kubectl inspect cgpu --pods``: who uses what, with what is really used beside what was given."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gpushare.inspect.arguments import Options
from gpushare.inspect.colour import Paint
from gpushare.inspect.columns import Line, aligned, printable
from gpushare.inspect.errors import InspectError
from gpushare.inspect.kubectl import Kubectl
from gpushare.inspect.real_use import NOT_LOOKED, RealUse, ports_of, read
from gpushare.inspect.shown import Shown
from gpushare.inspect.source import read as read_cluster
from gpushare.inspect.usage import ClusterUsage, NodeUsage, usage_of
from gpushare.model.counted import counted

VERSION: Final = 1
#: What stands where nobody knows.
MISSING: Final = "-"
_MOST_TOLD: Final = 3
_NAMES: Final = ("namespace", "name", "node")
#: No name is made shorter: so long is the longest of their headings.
_LEAST_NAME: Final = 9


class Row(NamedTuple):
    """A pod on a GPU. What is used is ``None`` where it is not known.

    ``containers``: those that have a part of the GPU, where not all containers of the pod have the same GPUs.
    """

    namespace: str
    name: str
    uid: str
    node: str
    gpu: int
    uuid: str
    given_mib: int
    used_mib: "float | None"
    given_core_percent: int
    used_core_percent: "float | None"
    containers: "tuple[str, ...] | None" = None


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
    """Read once, and set it."""
    found = rows(kubectl, options.namespace)
    if options.output:
        from gpushare.inspect.written import written

        document = {
            "version": VERSION,
            "kind": "Pods",
            "pods": [_told(one) for one in found.rows],
            "warnings": [one.removeprefix("warning: ") for one in found.remarks],
        }
        return Shown(written(document, options.output), found.remarks)
    if not found.rows:
        return Shown("No pod holds GPU memory.\n", found.remarks)
    # A column more where it says something, and not beside what --top has to fit on a screen.
    divided = any(one.containers is not None for one in found.rows)
    return Shown("\n".join(table(found.rows, paint, containers=divided)) + "\n", found.remarks)


def table(some: Sequence[Row], paint: Paint, *, containers: bool = False) -> list[str]:
    """The rows in columns; whoever uses more than it was given is red. ``containers``: with who of the pod has the GPU."""
    heading = ("NAMESPACE", "NAME", "NODE", "GPU", "GIVEN(MiB)", "USED(MiB)", "GIVEN(%)", "USED(%)")
    lines: list[Line] = [(*heading, "CONTAINERS") if containers else heading]
    lines += [
        (
            one.namespace,
            one.name,
            one.node,
            str(one.gpu),
            str(one.given_mib),
            MISSING if one.used_mib is None else f"{one.used_mib:.0f}",
            str(one.given_core_percent) if one.given_core_percent else MISSING,
            MISSING if one.used_core_percent is None else f"{one.used_core_percent:.0f}",
            *([", ".join(one.containers or ())] if containers else ()),
        )
        for one in some
    ]
    head, *rest = aligned(lines)
    return [
        paint("bold", head),
        *(paint("red", line) if _is_over(one) else line for one, line in zip(some, rest)),  # noqa: B905 (as many)
    ]


def narrowed(some: "Sequence[Row]", width: int) -> "list[Row]":
    """The rows with the longest names shortened in their middle, so that their table is ``width`` wide if it can be."""
    over = max(map(len, table(some, Paint()))) - width
    if over <= 0 or not some:
        return list(some)
    longest = [max(len(getattr(one, name)) for one in some) for name in _NAMES]
    most = max(longest)
    while most > _LEAST_NAME and sum(max(one - most, 0) for one in longest) < over:
        most -= 1
    return [
        one._replace(
            namespace=shortened(one.namespace, most),
            name=shortened(one.name, most),
            node=shortened(one.node, most),
        )
        for one in some
    ]


def shortened(name: str, most: int) -> str:
    """``name`` in ``most`` characters: its middle goes, as what tells pods of one owner apart is at the end."""
    if len(name) <= most:
        return name
    end = (most - 1) // 2
    return f"{name[: most - 1 - end]}…{name[len(name) - end :]}"


def _is_over(one: Row) -> bool:
    over = one.used_mib is not None and one.used_mib > one.given_mib
    return over or bool(
        one.given_core_percent
        and one.used_core_percent is not None
        and one.used_core_percent > one.given_core_percent
    )


def _rows(cluster: ClusterUsage, use: RealUse, namespace: "str | None") -> list[Row]:
    found = []
    for node in cluster.nodes:
        for pod in node.pods:
            if namespace not in (None, pod.namespace):
                continue
            for share in pod.shares:
                real = use.of.get((f"{pod.namespace}/{pod.name}", share.device.uuid))
                # An agent that looks and does not name a pod knows that it uses nothing, of a GPU that it can ask.
                nothing = 0.0 if node.name in use.looked and share.device.healthy else None
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
        if not share.device.healthy and (f"{pod.namespace}/{pod.name}", share.device.uuid) not in use.of
    }
    if node.name not in use.silent:
        return {
            f"GPU {index} of node {node.name}": f"it is out of service: {why}"
            for index, why in untold.items()
        }
    if use.silent[node.name] != NOT_LOOKED or any(gpu.device.healthy for gpu in node.gpus):
        return {}
    whys = "; ".join(f"GPU {index} is out of service: {why}" for index, why in sorted(untold.items()))
    return {node.name: whys} if whys else {}


def _silent(silent: "Mapping[str, str]") -> list[str]:
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
