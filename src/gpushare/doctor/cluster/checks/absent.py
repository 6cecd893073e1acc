"""What is not there, so that a check of it looked at nothing: it must not say that all is well."""

from collections.abc import Callable, Collection
from typing import Any, Final

from gpushare.api import names
from gpushare.doctor.cluster.facts import ClusterFacts, gpu_nodes
from gpushare.doctor.findings import Unread

#: Field of the facts → what its one object is called.
_OBJECTS: Final = {
    "daemon_sets": f"DaemonSet {names.DAEMON_SET_NAME}",
    "deployments": f"Deployment {names.SCHEDULER_NAME}",
    "config_maps": f"ConfigMap {names.SCHEDULER_NAME}",
    "policies": f"kind {names.POLICY_PLURAL}",
    "quota_trees": f"kind {names.QUOTA_PLURAL}",
}
#: Of these an empty list says that nobody has made one; only the API server's word that it has none such is meant.
_KINDS: Final = frozenset({"policies", "quota_trees"})
#: Each node with one of these is looked at.
_NO_NODE: Final = f"no node is labelled {names.LABEL_MODE}, so there was none to look at"


def without(*fields: str) -> Callable[[ClusterFacts], str]:
    """A function that says which of these ``fields`` of the facts have nothing in them; empty where all have, and in a playground."""

    def said(facts: ClusterFacts) -> str:
        if facts.playground is not None:
            return ""
        missing = [_OBJECTS[field] for field in fields if _is_missing(field, getattr(facts, field))]
        place = f" in namespace {facts.namespace}" if facts.namespace else ""
        return f"not installed{place}, and so not looked at: {', '.join(missing)}" if missing else ""

    return said


def _is_missing(field: str, value: Collection[Any] | Unread) -> bool:
    if isinstance(value, Unread):
        return field in _KINDS and value.absent
    return field not in _KINDS and not value


def without_nodes(facts: ClusterFacts) -> str:
    """That no node is ours; empty where one is, or where nodes cannot be read."""
    return "" if isinstance(facts.nodes, Unread) or gpu_nodes(facts) else _NO_NODE


def without_agents(facts: ClusterFacts) -> str:
    """That there are no agents, or no nodes for them."""
    return without("daemon_sets")(facts) or without_nodes(facts)
