"""Pending pods that ask for GPUs under names that no node offers: those of other device plugins, and misspelt ones of ours."""

import json
from collections.abc import Iterable
from typing import Any, Final

from gpushare.api import names
from gpushare.inspect.errors import KubectlFailed
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.reasons.mistakes.names import is_of_others, is_unknown, unoffered

_MOST_NAMED: Final = 3

Json = dict[str, Any]


def not_offered(kubectl: Kubectl, pods: Iterable[Json]) -> "list[str]":
    """What of ``pods``, which are pending, no node offers, each with what to write instead. Raises ``KubectlMissing``.

    Nodes are read only where a name looks wrong.
    """
    asking = [(pod, asked) for pod in pods if (asked := list(_asked(pod)))]
    if not asking:
        return []
    offered = _offered(kubectl)
    found = [
        f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}: {text}; {instead}"
        for pod, asked in asking
        for text, instead in unoffered(asked, offered)
    ]
    more = len(found) - _MOST_NAMED
    return found[:_MOST_NAMED] + ([f"so do {more} containers more"] if more > 0 else [])


def _asked(pod: Json) -> "Iterable[tuple[str, str]]":
    """Container and resource."""
    spec = pod["spec"]
    for one in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        for resource in (one.get("resources") or {}).get("limits") or {}:
            if is_of_others(resource) or is_unknown(resource) or resource == names.GPU_COUNT:
                yield one["name"], resource


def _offered(kubectl: Kubectl) -> "set[str] | None":
    """Resources that a node has; ``None`` where nodes cannot be read."""
    with kubectl.start("/api/v1/nodes") as begun:
        (answer,) = begun.outcomes()
    if isinstance(answer, KubectlFailed):
        return None
    return {
        resource
        for node in json.loads(answer).get("items") or ()
        for resource, amount in ((node.get("status") or {}).get("capacity") or {}).items()
        if str(amount) != "0"
    }
