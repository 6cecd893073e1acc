"""What containers really use of GPUs: read from the node agents' metrics, through the API server's proxy of their pods."""

import json
import re
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import quote

from gpushare.inspect.kubectl import Kubectl
from gpushare.inspect.proxied import Proxied

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


def read(kubectl: Kubectl, nodes: Iterable[str]) -> RealUse:
    """Ask the agents of ``nodes``; raises ``KubectlMissing``, ``KubectlFailed``."""
    wanted = set(nodes)
    with kubectl.proxied() as proxied:
        return _read(proxied, wanted)


def _read(proxied: Proxied, wanted: "set[str]") -> RealUse:
    (answer,) = proxied.answers([_AGENTS])
    if answer is None:
        return RealUse({}, dict.fromkeys(wanted, "the node agents' pods may not be listed"), frozenset())
    where: dict[str, str] = {}
    for pod in json.loads(answer).get("items") or ():
        node, meta = pod["spec"].get("nodeName", ""), pod["metadata"]
        if node in wanted and (pod.get("status") or {}).get("phase") == "Running":
            where[node] = (
                f"/api/v1/namespaces/{meta['namespace']}/pods/http:{meta['name']}:{_port(pod)}/proxy/metrics"
            )
    silent = dict.fromkeys(wanted - where.keys(), "it has no running node agent")
    told = dict(zip(where, proxied.answers(list(where.values()))))  # noqa: B905 (as many)
    found: dict[tuple[str, str], Use] = {}
    for node, text in told.items():
        if text is None:
            silent[node] = "its node agent's metrics cannot be read (needs the right to get pods/proxy)"
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
