"""Usage history of the node agents, read through the API server's proxy.

An agent is a pod of its DaemonSet. Where it runs on the host beside the kubelet instead, a label of the node names its port.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.objects import Node, Pod
from gpushare.inspect.errors import KubectlFailed
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.live_usage import NOT_LOOKED
from gpushare.inspect.sources.usage_samples import MAX_UNKNOWN_RATIO, Figures, Used

_PATH: Final = "proxy/usage"


class _Container(msgspec.Struct, rename="camel"):
    namespace: str
    pod: str
    container: str
    gpu: str
    first: int
    last: int
    peak_mib: int = msgspec.field(name="peakMiB")
    p95_mib: int = msgspec.field(name="p95MiB")
    last_mib: int = msgspec.field(name="lastMiB")
    peak_percent: int = 0
    p95_percent: int = 0
    work_seconds: int = 0
    waited_seconds: int = 0
    uid: str = ""
    looks: int = 0
    unreported_looks: int = msgspec.field(name="untoldLooks", default=0)


class _Answer(msgspec.Struct):
    version: int
    since: int
    containers: list[_Container]
    begins: int | None = msgspec.field(name="from", default=None)
    looked: int | None = None


#: Decoder of an agent's answer.
ANSWER: Final = msgspec.json.Decoder(_Answer)


def paths_of(nodes: Iterable[Node], pods: Iterable[Pod]) -> dict[str, str]:
    """The path of the agent's usage page by node name; nodes without an agent are left out."""
    paths = {}
    for pod in pods:
        labels = pod.metadata.labels or {}
        if labels.get("app.kubernetes.io/name") == names.AGENT_PART and pod.status.phase == "Running":
            # Without a port, the proxy uses the first port of the pod's container.
            paths[pod.spec.node_name] = (
                f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}/{_PATH}"
            )
    for node in nodes:
        port = (node.metadata.labels or {}).get(names.LABEL_AGENT_PORT, "")
        if port.isdecimal() and node.metadata.name not in paths:
            paths[node.metadata.name] = f"/api/v1/nodes/{node.metadata.name}:{port}/{_PATH}"
    return paths


def figures_of_agents(
    kubectl: Kubectl,
    namespace: str,
    paths: dict[str, str],
    nodes: Sequence[str],
    window_s: float | None = None,
) -> Figures:
    """Usage that the agents of ``nodes`` recorded in the last ``window_s`` (``None``: all). ``namespace`` is the scheduler's.

    Agents that cannot be read are listed in ``missing``; the figures of the others are returned.
    """
    used: list[Used] = []
    starts: list[int] = []
    query = "" if window_s is None else f"?window={window_s:.0f}"
    missing = [f"node {node}: no node agent runs there" for node in nodes if node not in paths]
    since: list[int] = []
    reachable = [node for node in nodes if node in paths]
    outcomes = _outcomes(kubectl, namespace, [paths[node] + query for node in reachable])
    for node, outcome in zip(reachable, outcomes):  # noqa: B905 (same length)
        answer = _read(node, outcome, missing)
        if answer is None:
            continue
        since.append(answer.since)
        starts.append(answer.since if answer.begins is None else answer.begins)
        if window_s is not None and answer.begins is None:
            missing.append(
                f"node {node}: its agent is of an earlier version, which supports no window: its whole history is used"
            )
        if answer.looked == 0:
            missing.append(f"node {node}: {NOT_LOOKED}")
        used += [used_of(container) for container in answer.containers]
    return Figures(
        "the node agents", tuple(used), tuple(missing), max(since, default=None), min(starts, default=None)
    )


def _outcomes(kubectl: Kubectl, namespace: str, paths: Sequence[str]) -> "list[bytes | KubectlFailed]":
    if not paths:
        return []
    try:
        with kubectl.reader(namespace) as reader:
            return reader.outcomes(paths)
    except KubectlFailed as error:
        return [error for _ in paths]


def _read(node: str, outcome: "bytes | KubectlFailed", missing: list[str]) -> _Answer | None:
    if isinstance(outcome, KubectlFailed):
        missing.append(f"node {node}: its agent cannot be read: {outcome.complaint}")
        return None
    try:
        answer = ANSWER.decode(outcome)
    except msgspec.DecodeError as error:
        missing.append(f"node {node}: its agent's answer cannot be read ({error}); it is of another version")
    else:
        if answer.version == 1:
            return answer
        missing.append(
            f"node {node}: its agent uses version {answer.version} of the format, this command version 1; upgrade the older one"
        )
    return None


def used_of(container: _Container) -> Used:
    """An agent's figures of a container, in the form common to all sources."""
    return Used(
        container.namespace,
        container.pod,
        container.container,
        container.gpu,
        float(container.last - container.first),
        container.peak_mib,
        container.p95_mib,
        container.last_mib,
        container.peak_percent,
        container.p95_percent,
        min(container.waited_seconds / container.work_seconds, 1.0) if container.work_seconds else 0.0,
        container.uid,
        container.unreported_looks <= MAX_UNKNOWN_RATIO * container.looks,
    )
