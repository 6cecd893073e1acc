"""What containers really use of GPUs: read from the node agents' metrics, through the API server's proxy of their pods.

An agent that runs beside the kubelet and in no pod is reached through the proxy of its node, at the port that the node's label says.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from gpushare.api import names
from gpushare.api.objects import Node
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.kubectl_proxy import Proxied

_AGENTS: Final = "/api/v1/pods?labelSelector=" + quote("app.kubernetes.io/name=gpushare-device-plugin")
_PORT: Final = "health"
_DEFAULT_PORT: Final = 9452
_MEMORY: Final = "gpushare_container_memory_used_bytes"
_COMPUTE: Final = "gpushare_container_compute_used_ratio"
#: What makes MiB and percent of a value.
_SCALES: Final = {_MEMORY: 1 / (1 << 20), _COMPUTE: 100.0}
_LINE: Final = re.compile(rf"^({'|'.join(_SCALES)})\{{(.*)\}} (\S+)$", re.MULTILINE)
#: Agents of 0.1.0 have the second name.
_SAMPLED: Final = re.compile(
    r"^gpushare_nodeagent_(?:last_sample|looked)_timestamp_seconds (\S+)$", re.MULTILINE
)
#: Exported for a GPU whose processes are known, also on nodes with whole GPUs, where the timestamp is 0. Agents of 0.1.0 have the second name.
_UNMANAGED: Final = re.compile(r"^gpushare_gpu_(?:unmanaged|foreign)_processes\{", re.MULTILINE)
#: Why it is not known what is used where an agent answers.
NOT_LOOKED: Final = "its node agent does not see who uses the GPUs (nodeAgent.watchdog.policy=off, a node that shares no GPUs, or it has only begun)"
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Use(NamedTuple):
    """What the containers of a pod hold of a GPU, in MiB, and how much of its time they compute, in percent; ``None``: not told."""

    mib: "float | None"
    sm_percent: "float | None"


class RealUse(NamedTuple):
    """``of``: by pod (``namespace/name``) and GPU UUID. ``silent``: nodes of which not all is known, with why.

    ``looked``: nodes whose agent has seen who uses the GPUs, so that a pod which it does not name uses none.
    """

    of: "dict[tuple[str, str], Use]"
    silent: "dict[str, str]"
    looked: "frozenset[str]"


def ports_of(nodes: Iterable[Node]) -> "dict[str, int]":
    """At which port the agent of a node is reached, of those (names) that say so: it is no pod there."""
    found = {}
    for node in nodes:
        port = (node.metadata.labels or {}).get(names.LABEL_AGENT_PORT, "")
        if port.isdecimal():
            found[node.metadata.name] = int(port)
    return found


def read(kubectl: Kubectl, nodes: Iterable[str], ports: "Mapping[str, int]") -> RealUse:
    """Ask the agents of ``nodes``; those in no pod at ``ports``. Raises ``KubectlMissing``, ``KubectlFailed``."""
    wanted = set(nodes)
    with kubectl.proxied() as proxied:
        return _read(proxied, wanted, ports)


def _read(proxied: Proxied, wanted: "set[str]", ports: "Mapping[str, int]") -> RealUse:
    where = {
        node: f"/api/v1/nodes/http:{node}:{port}/proxy/metrics"
        for node, port in ports.items()
        if node in wanted
    }
    (answer,) = proxied.answers([_AGENTS])
    for pod in json.loads(answer or b"{}").get("items") or ():
        node, meta = pod["spec"].get("nodeName", ""), pod["metadata"]
        if node in wanted and (pod.get("status") or {}).get("phase") == "Running":
            where[node] = (
                f"/api/v1/namespaces/{meta['namespace']}/pods/http:{meta['name']}:{_port(pod)}/proxy/metrics"
            )
    why = "it has no running node agent" if answer is not None else "the node agents' pods may not be listed"
    silent = dict.fromkeys(wanted - where.keys(), why)
    told = dict(zip(where, proxied.answers(list(where.values()))))  # noqa: B905 (as many)
    found: dict[tuple[str, str], Use] = {}
    looked = set()
    for node, text in told.items():
        if text is None:
            right = "pods/proxy" if "/pods/" in where[node] else "nodes/proxy"
            silent[node] = f"its node agent's metrics cannot be read (needs the right to get {right})"
        else:
            words = text.decode(errors="replace")
            found.update(_uses(words))
            when = _SAMPLED.search(words)
            if when is None:
                silent[node] = "its node agent is of an earlier version and does not say whether it looks"
            elif float(when[1]) or _UNMANAGED.search(words):
                looked.add(node)
            else:
                silent[node] = NOT_LOOKED
    return RealUse(found, silent, frozenset(looked))


def _port(pod: "dict[str, object]") -> int:
    spec = pod["spec"]
    assert isinstance(spec, dict)
    for container in spec.get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == _PORT:
                return int(port["containerPort"])
    return _DEFAULT_PORT


def _uses(text: str) -> "dict[tuple[str, str], Use]":
    told: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for name, labels, value in _LINE.findall(text):
        label = dict(_LABEL.findall(labels))
        pod = f"{label.get('namespace', '')}/{label.get('pod', '')}"
        its = told.setdefault((pod, label.get("UUID", "")), {}).setdefault(label.get("container", ""), {})
        its[name] = float(value) * _SCALES[name]
    return {
        key: Use(*(_sum(one.get(name) for one in its.values()) for name in (_MEMORY, _COMPUTE)))
        for key, its in told.items()
    }


def _sum(amounts: "Iterable[float | None]") -> "float | None":
    """Of all containers; what is not known of one is not known of all."""
    total = 0.0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total
