"""Pods that wait for GPUs under names that no node of the cluster offers: those of other device plugins, and misspelt ones of ours."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gpushare.inspect.errors import KubectlFailed
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.reasons.mistakes.names import is_of_others, is_unknown, meant

_MOST_TOLD: Final = 3

Json = dict[str, Any]


def not_offered(kubectl: Kubectl, pods: Iterable[Json], *, misspelt: bool = True) -> "list[str]":
    """What of ``pods``, which wait, no node offers, each with what to write instead. Nodes are read where one asks for such.

    ``misspelt``: also names that are nearly ours, and not those of other device plugins alone. Raises ``KubectlMissing``.
    """
    asking = [(pod, container, one) for pod in pods for container, one in _asked(pod, misspelt=misspelt)]
    if not asking:
        return []
    offered = _offered(kubectl)
    if offered is None:
        return []
    found = [
        f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}: container {container} asks for {resource}, "
        f"which no node of this cluster offers; write {meant(resource)}"
        for pod, container, resource in asking
        if resource not in offered
    ]
    more = len(found) - _MOST_TOLD
    return found[:_MOST_TOLD] + ([f"so do {more} containers more"] if more > 0 else [])


def _asked(pod: Json, *, misspelt: bool) -> "Iterator[tuple[str, str]]":
    """Container and resource."""
    spec = pod["spec"]
    for one in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        for resource in (one.get("resources") or {}).get("limits") or {}:
            if is_of_others(resource) or (misspelt and is_unknown(resource)):
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
