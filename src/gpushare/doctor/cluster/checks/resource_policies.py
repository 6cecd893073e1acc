"""ResourcePolicies: their units have nodes, and their pods follow them."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.crd.resource_policy import (
    ResourcePolicy,
    Unit,
    decode_policy,
    others_text,
    strays_from_policies,
)
from gpushare.api.objects import Pod
from gpushare.doctor.cluster.facts import ClusterFacts, Json, SeenNode
from gpushare.doctor.findings import Result, Unread, warning

#: Similarity to a word of some node from which a word is taken for a misspelling.
_ALIKE: Final = 0.7


def unit_nodes(facts: ClusterFacts) -> Iterator[Result]:
    """Whether each unit has a node, except units whose pods wait for nodes to be added."""
    if isinstance(facts.policies, Unread) or isinstance(facts.nodes, Unread):
        return
    for policy in _readable(facts.policies):
        for number, unit in enumerate(policy.units, 1):
            if unit.waits or any(unit.has_node(node.labels) for node in facts.nodes):
                continue
            yield warning(
                f"resourcepolicy {policy.key}",
                f"unit {number} has no node: {_lacking(unit, facts.nodes)}",
                "correct its nodeSelector, or label nodes accordingly; ignore this if nodes will be added later",
            )


def pods_of_others(facts: ClusterFacts) -> Iterator[Result]:
    """Whether the pods that a policy selects name our scheduler: other schedulers ignore the policy."""
    if isinstance(facts.policies, Unread) or isinstance(facts.policy_pods, Unread):
        return
    policies = sorted(_readable(facts.policies), key=lambda policy: policy.rank)
    strays = _strays(policies, facts.policy_pods)
    for policy in policies:
        pods = strays[policy.key]
        if pods:
            yield warning(
                f"resourcepolicy {policy.key}",
                others_text(len(pods), capped=any(unit.is_capped for unit in policy.units))
                + f", as pod {min(pod.key for pod in pods)}",
                f"write schedulerName: {names.SCHEDULER_NAME} in their template; admission sets it only for pods that request GPUs",
            )


def _strays(policies: Sequence[ResourcePolicy], pods: Sequence[Pod]) -> dict[str, list[Pod]]:
    """For each policy the pods that it governs (it is the oldest that selects them) but that another scheduler places."""
    strays: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        if pod.finished or not strays_from_policies(pod):
            continue
        namespace, labels = pod.metadata.namespace, pod.metadata.labels or {}
        decides = (policy for policy in policies if policy.namespace == namespace and policy.selects(labels))
        if (policy := next(decides, None)) is not None:
            strays[policy.key].append(pod)
    return strays


def _readable(policies: Sequence[Json]) -> Iterator[ResourcePolicy]:
    for raw in policies:
        try:
            yield decode_policy(msgspec.json.encode(raw))
        except ValueError:
            continue  # the schema rejects such objects


def _lacking(unit: Unit, nodes: Sequence[SeenNode]) -> str:
    """Which of the required labels no node has."""
    node_text = f"{'virtual' if unit.kind.is_virtual else 'real'} node"
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
    return f"no {node_text} is labelled {wanted}" if wanted else f"there is no {node_text}"


def _near(word: str, known: set[str]) -> str:
    return next(iter(get_close_matches(word, sorted(known), 1, _ALIKE)), "")
