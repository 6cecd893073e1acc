"""ResourcePolicies: units that have nodes."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final

import msgspec

from gpushare.doctor.cluster_facts import ClusterFacts, SeenNode
from gpushare.doctor.findings import Said, Unread, warning
from gpushare.model.resource_policy import Unit, decode_policy

#: How alike a word must be to one that nodes have to be taken for a slip.
_ALIKE: Final = 0.7


def unit_nodes(facts: ClusterFacts) -> Iterator[Said]:
    """Whether each unit has a node, but for those whose pods wait for nodes to come."""
    if isinstance(facts.policies, Unread) or isinstance(facts.nodes, Unread):
        return
    for raw in facts.policies:
        try:
            policy = decode_policy(msgspec.json.encode(raw))
        except ValueError:
            continue  # the schema lets none such through
        for number, unit in enumerate(policy.units, 1):
            if unit.waits or any(unit.has_node(node.labels) for node in facts.nodes):
                continue
            yield warning(
                f"resourcepolicy {policy.key}",
                f"unit {number} has no node: {_lacking(unit, facts.nodes)}",
                "correct its nodeSelector, or label nodes so; where they come later, all is well",
            )


def _lacking(unit: Unit, nodes: Sequence[SeenNode]) -> str:
    """Which of the labels that it asks for is in the way."""
    what = f"{'virtual' if unit.kind.is_virtual else 'real'} node"
    for key, value in unit.node_selector.items():
        values = {node.labels[key] for node in nodes if key in node.labels}
        if value in values:
            continue
        if not values:
            near = _near(key, {label for node in nodes for label in node.labels})
            return f"none has label {key}{f'; there is {near}' if near else ''}"
        near = _near(value, values)
        return f"none is labelled {key}={value}{f'; there is {key}={near}' if near else ''}"
    wanted = ",".join(f"{key}={value}" for key, value in unit.node_selector.items())
    return f"no {what} is labelled {wanted}" if wanted else f"there is no {what}"


def _near(word: str, known: set[str]) -> str:
    return next(iter(get_close_matches(word, sorted(known), 1, _ALIKE)), "")
