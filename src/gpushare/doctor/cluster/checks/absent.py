"""Missing objects: a check that had nothing to examine must not report that all is well."""

from collections.abc import Callable, Collection
from typing import Any, Final

from gpushare.api import names
from gpushare.doctor.cluster.facts import ClusterFacts, gpu_nodes
from gpushare.doctor.findings import Unread

#: Field of the facts → name of its one object.
_OBJECTS: Final = {
    "daemon_sets": f"DaemonSet {names.DAEMON_SET_NAME}",
    "deployments": f"Deployment {names.SCHEDULER_NAME}",
    "config_maps": f"ConfigMap {names.SCHEDULER_NAME}",
    "policies": f"kind {names.POLICY_PLURAL}",
    "quota_trees": f"kind {names.QUOTA_PLURAL}",
}
#: For these an empty list means that no object exists; only a 404 of the API server means that the kind is missing.
_KINDS: Final = frozenset({"policies", "quota_trees"})
#: Each node with this label is examined.
_NO_NODE: Final = f"no node has the label {names.LABEL_MODE}; nothing to check"


def without(*fields: str) -> Callable[[ClusterFacts], str]:
    """A function that names those of ``fields`` of the facts that are empty; returns an empty text if none is, and in a playground."""

    def missing_objects(facts: ClusterFacts) -> str:
        if facts.playground is not None:
            return ""
        missing = [_OBJECTS[field] for field in fields if _is_missing(field, getattr(facts, field))]
        place = f" in namespace {facts.namespace}" if facts.namespace else ""
        return f"not installed{place}, and so not checked: {', '.join(missing)}" if missing else ""

    return missing_objects


def _is_missing(field: str, value: Collection[Any] | Unread) -> bool:
    if isinstance(value, Unread):
        return field in _KINDS and value.absent
    return field not in _KINDS and not value


def without_nodes(facts: ClusterFacts) -> str:
    """Reports that no node is ours; empty if one is, or if nodes cannot be read."""
    return "" if isinstance(facts.nodes, Unread) or gpu_nodes(facts) else _NO_NODE


def without_agents(facts: ClusterFacts) -> str:
    """Reports that there are no agents, or no nodes for them."""
    return without("daemon_sets")(facts) or without_nodes(facts)
