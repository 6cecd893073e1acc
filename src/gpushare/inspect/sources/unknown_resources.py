"""Pending pods that request GPU resources that no node offers: those of other device plugins, and misspelt names of ours."""

import json
from collections.abc import Iterable
from typing import Any, Final

from gpushare.api import names
from gpushare.api.node.other_plugins import is_of_other_plugin
from gpushare.inspect.errors import KubectlFailed
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.reasons.mistakes.names import is_unknown, unoffered

_MAX_NAMED: Final = 3

Json = dict[str, Any]


def not_offered(kubectl: Kubectl, pods: Iterable[Json]) -> "list[str]":
    """Messages about resources of pending ``pods`` that no node offers, each with a correction. Raises ``KubectlMissing``.

    Nodes are read only where a name is suspicious.
    """
    suspects = [(pod, requests) for pod in pods if (requests := list(_suspicious_requests(pod)))]
    if not suspects:
        return []
    offered = _offered(kubectl)
    messages = [
        f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}: {text}; {instead}"
        for pod, requests in suspects
        for text, instead in unoffered(requests, offered)
    ]
    more = len(messages) - _MAX_NAMED
    return messages[:_MAX_NAMED] + ([f"and {more} more containers"] if more > 0 else [])


def _suspicious_requests(pod: Json) -> "Iterable[tuple[str, str]]":
    """Container and name of each suspicious resource."""
    spec = pod["spec"]
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        for resource in (container.get("resources") or {}).get("limits") or {}:
            if is_of_other_plugin(resource) or is_unknown(resource) or resource == names.GPU_COUNT:
                yield container["name"], resource


def _offered(kubectl: Kubectl) -> "set[str] | None":
    """Resources that any node has; ``None`` where nodes cannot be read."""
    with kubectl.start("/api/v1/nodes") as call:
        (answer,) = call.outcomes()
    if isinstance(answer, KubectlFailed):
        return None
    return {
        resource
        for node in json.loads(answer).get("items") or ()
        for resource, amount in ((node.get("status") or {}).get("capacity") or {}).items()
        if str(amount) != "0"
    }
