"""What containers really use of GPUs: read from the node agents' metrics, through the API server's proxy of their pods.

An agent that runs beside the kubelet and in no pod is reached through the proxy of its node, at the port that the node's label says.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from gpushare.inspect.kubectl import Kubectl
from gpushare.inspect.proxied import Proxied
from gpushare.model import names
from gpushare.model.objects import Node

_AGENTS: Final = "/api/v1/pods?labelSelector=" + quote("app.kubernetes.io/name=gpushare-device-plugin")
_PORT: Final = "health"
_DEFAULT_PORT: Final = 9452
_MEMORY: Final = "gpushare_nodeagent_container_used_mebibytes"
_COMPUTE: Final = "gpushare_nodeagent_container_sm_percent"
_LINE: Final = re.compile(rf"({_MEMORY}|{_COMPUTE})\{{(.*)\}} (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Use(NamedTuple):
    """What the containers of a pod hold of a GPU, in MiB, and how much of its time they compute, in percent."""

    mib: float
    sm_percent: float


class RealUse(NamedTuple):
    """``of``: by pod (``namespace/name``) and GPU UUID. ``silent``: nodes whose agent told nothing, with why."""

    of: "dict[tuple[str, str], Use]"
    silent: "dict[str, str]"
    answered: "frozenset[str]"


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
    for node, text in told.items():
        if text is None:
            right = "pods/proxy" if "/pods/" in where[node] else "nodes/proxy"
            silent[node] = f"its node agent's metrics cannot be read (needs the right to get {right})"
        else:
            _add(found, text.decode(errors="replace"))
    return RealUse(found, silent, frozenset(node for node, text in told.items() if text is not None))


def _port(pod: "dict[str, object]") -> int:
    spec = pod["spec"]
    assert isinstance(spec, dict)
    for container in spec.get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == _PORT:
                return int(port["containerPort"])
    return _DEFAULT_PORT


def _add(found: "dict[tuple[str, str], Use]", text: str) -> None:
    for name, labels, value in _LINE.findall(text):
        label = dict(_LABEL.findall(labels))
        key = (label.get("pod", ""), label.get("gpu", ""))
        use = found.get(key, Use(0.0, 0.0))
        amount = float(value)
        if name == _MEMORY:
            found[key] = use._replace(mib=use.mib + amount)
        else:
            found[key] = use._replace(sm_percent=use.sm_percent + amount)
