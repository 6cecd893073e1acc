"""Places that are kept for pods that are moved, as their ResourcePolicies see them.

What replaces such a pod is a new one to its policy: it has waited for nothing, and has none of what a unit has put on the one
before it. Its place must be in a unit that the policy would give it at once, with the pod that moves counted yet, for that ends
after the other comes. From the decision on the place counts in its unit, so that nobody else takes the last one under its caps.
"""

from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.crd.resource_policy import PolicyPod, policy_pod_of
from gpushare.api.objects import Pod
from gpushare.scheduler.plugins.resource_policy.model.unit_selection import choose
from gpushare.scheduler.plugins.resource_policy.model.unit_usage import PolicyBook
from gpushare.scheduler.plugins.resource_policy.plugin import Policies

_NEW: Final = "moved:"


class PolicyPlaces:
    """Not for several threads."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._taken: dict[str, PolicyBook] = {}

    def objection(self, moved: Pod, node: str) -> str:
        """Why the policy of ``moved`` would not let what replaces it go to ``node`` at once; empty where it would, and without a policy."""
        return self._at(_NEW, moved, node)[0]

    def take(self, key: str, moved: Pod, node: str) -> str:
        """The same; where nothing is objected the place counts in its unit, under ``key``, until ``give_up``."""
        why, book, pod, unit = self._at(key, moved, node)
        if not why and book is not None and pod is not None:
            book.book(pod, unit)
            self._taken[key] = book
        return why

    def give_up(self, key: str) -> None:
        """The place counts nowhere any more, if it did."""
        book = self._taken.pop(key, None)
        if book is not None:
            book.unbook(key)

    def _at(self, key: str, moved: Pod, node: str) -> tuple[str, PolicyBook | None, PolicyPod | None, int]:
        namespace = moved.metadata.namespace
        if not self._policies.governs(namespace):
            return "", None, None, 0
        pod = _anew(key, policy_pod_of(moved))
        census = self._policies.census
        book = census.book_for(namespace, pod.labels)
        if book is None:
            return "", None, None, 0
        name = book.policy.key
        if namespace in self._policies.unread:
            return f"ResourcePolicy {name}: its pods are not read yet", None, None, 0
        group = book.group_of(pod)
        if isinstance(group, str):
            return group, None, None, 0
        masks = list(book.masks(pod, census.nodes.places((node,))))
        # Who ends nobody is not held back in a unit in which that would be tried first.
        tried = range(len(masks)) if moved.spec.preemption_policy == "Never" else ()
        choice = choose(book.policy, book.standings(pod, group, masks), 0.0, tried)
        if choice.unit is not None:
            return "", book, pod, choice.unit
        at = next((number for number, mask in enumerate(masks) if mask[0]), None)
        if at is None:
            return f"ResourcePolicy {name}: node {node} is in none of its units", None, None, 0
        return f"ResourcePolicy {name}: unit {at + 1}: {choice.reasons[at]}", None, None, 0


def _anew(key: str, pod: PolicyPod) -> PolicyPod:
    """The pod as its controller makes it again: without node and past, and without the labels that a unit has put on it."""
    put = pod.annotations.get(names.ANN_UNIT_LABELS, "").split(",")
    return msgspec.structs.replace(
        pod,
        uid=key,
        node="",
        labels={label: text for label, text in pod.labels.items() if label not in put},
        scheduled=0.0,
        nominated="",
        untimed=False,
        refused_since=0.0,
    )
