"""Current GPU usage of containers, read from the node agents' metrics through the API server's proxy of their pods.

An agent that runs on the host beside the kubelet is reached through the proxy of its node, at the port in the node's label.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from gpushare.api import names
from gpushare.api.objects import Node
from gpushare.inspect.errors import KubectlFailed
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.kubectl_proxy import Proxied

_AGENTS: Final = "/api/v1/pods?labelSelector=" + quote("app.kubernetes.io/name=gpushare-device-plugin")
_PAGE: Final = 500
_PORT: Final = "health"
_DEFAULT_PORT: Final = 9452
_MEMORY: Final = "gpushare_container_memory_used_bytes"
_COMPUTE: Final = "gpushare_container_compute_used_ratio"
#: Factors that convert values to MiB and percent.
_SCALES: Final = {_MEMORY: 1 / (1 << 20), _COMPUTE: 100.0}
_LINE: Final = re.compile(rf"^({'|'.join(_SCALES)})\{{(.*)\}} (\S+)$", re.MULTILINE)
#: The second name is that of agents of 0.1.0.
_SAMPLED: Final = re.compile(
    r"^gpushare_nodeagent_(?:last_sample|looked)_timestamp_seconds (\S+)$", re.MULTILINE
)
#: Exported for a GPU whose processes are known, also on nodes with whole GPUs, where the timestamp is 0. The second name is that of 0.1.0.
_UNMANAGED: Final = re.compile(r"^gpushare_gpu_(?:unmanaged|foreign)_processes\{", re.MULTILINE)
#: Why usage is unknown although the agent answers.
NOT_LOOKED: Final = "its node agent is not sampling GPU processes (nodeAgent.watchdog.policy=off, a node without shared GPUs, or an agent that has just started)"
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Use(NamedTuple):
    """GPU memory that a pod's containers use, in MiB, and their share of the GPU's compute time, in percent; ``None``: unknown."""

    mib: "float | None"
    sm_percent: "float | None"


class RealUse(NamedTuple):
    """``of``: usage by pod (``namespace/name``) and GPU UUID. ``silent``: nodes whose usage is not fully known, with the reason.

    ``looked``: nodes whose agent has sampled the GPUs' processes: a pod that such an agent does not list uses no GPU.
    """

    of: "dict[tuple[str, str], Use]"
    silent: "dict[str, str]"
    looked: "frozenset[str]"


def ports_of(nodes: Iterable[Node]) -> "dict[str, int]":
    """Ports of agents that run on the host instead of in a pod, by node name."""
    ports = {}
    for node in nodes:
        port = (node.metadata.labels or {}).get(names.LABEL_AGENT_PORT, "")
        if port.isdecimal():
            ports[node.metadata.name] = int(port)
    return ports


def read(kubectl: Kubectl, nodes: Iterable[str], ports: "Mapping[str, int]") -> RealUse:
    """Read the agents of ``nodes``; ``ports`` is that of ``ports_of``. Raises ``KubectlMissing``, ``KubectlFailed``."""
    wanted = set(nodes)
    with kubectl.proxied() as proxied:
        return _read(proxied, wanted, ports)


def _read(proxied: Proxied, wanted: "set[str]", ports: "Mapping[str, int]") -> RealUse:
    paths = {
        node: f"/api/v1/nodes/http:{node}:{port}/proxy/metrics"
        for node, port in ports.items()
        if node in wanted
    }
    agents, problem = _agents(proxied)
    for pod in agents:
        node, meta = pod["spec"].get("nodeName", ""), pod["metadata"]
        if node in wanted and (pod.get("status") or {}).get("phase") == "Running":
            paths[node] = (
                f"/api/v1/namespaces/{meta['namespace']}/pods/http:{meta['name']}:{_port(pod)}/proxy/metrics"
            )
    silent = dict.fromkeys(wanted - paths.keys(), problem or "it has no running node agent")
    answers = dict(zip(paths, proxied.outcomes(list(paths.values()), {})))  # noqa: B905 (same length)
    uses: dict[tuple[str, str], Use] = {}
    looked = set()
    for node, text in answers.items():
        if isinstance(text, KubectlFailed):
            missing_right = "pods/proxy" if "/pods/" in paths[node] else "nodes/proxy"
            silent[node] = (
                f"its node agent's metrics cannot be read (needs permission to get {missing_right})"
                if "(Forbidden)" in text.complaint
                else f"its node agent's metrics cannot be read ({text.complaint})"
            )
        else:
            metrics = text.decode(errors="replace")
            uses.update(_uses(metrics))
            sampled = _SAMPLED.search(metrics)
            if sampled is None:
                silent[node] = (
                    "its node agent is of an earlier version, which does not report whether it samples"
                )
            elif float(sampled[1]) or _UNMANAGED.search(metrics):
                looked.add(node)
            else:
                silent[node] = NOT_LOOKED
    return RealUse(uses, silent, frozenset(looked))


def _agents(proxied: Proxied) -> "tuple[list[Any], str]":
    """The node agents' pods, and why some could not be listed."""
    agents: list[Any] = []
    following = ""
    while True:
        (answer,) = proxied.outcomes([f"{_AGENTS}&limit={_PAGE}{following}"], {})
        if isinstance(answer, KubectlFailed):
            why = "no permission" if "(Forbidden)" in answer.complaint else answer.complaint
            return agents, f"the node agents' pods cannot be listed ({why})"
        page = json.loads(answer)
        agents += page.get("items") or ()
        token = (page.get("metadata") or {}).get("continue")
        if not token:
            return agents, ""
        following = f"&continue={quote(token, safe='')}"


def _port(pod: "dict[str, object]") -> int:
    spec = pod["spec"]
    assert isinstance(spec, dict)
    for container in spec.get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == _PORT:
                return int(port["containerPort"])
    return _DEFAULT_PORT


def _uses(text: str) -> "dict[tuple[str, str], Use]":
    by_pod: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for name, labels, value in _LINE.findall(text):
        label = dict(_LABEL.findall(labels))
        pod = f"{label.get('namespace', '')}/{label.get('pod', '')}"
        values = by_pod.setdefault((pod, label.get("UUID", "")), {}).setdefault(
            label.get("container", ""), {}
        )
        values[name] = float(value) * _SCALES[name]
    return {
        key: Use(
            *(total(container.get(name) for container in containers.values()) for name in (_MEMORY, _COMPUTE))
        )
        for key, containers in by_pod.items()
    }


def total(amounts: "Iterable[float | None]") -> "float | None":
    """The sum; ``None`` if any amount is unknown."""
    found = 0.0
    for amount in amounts:
        if amount is None:
            return None
        found += amount
    return found
