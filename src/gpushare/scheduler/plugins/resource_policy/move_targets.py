"""Places for the replacements of moved pods, under their ResourcePolicies.

To its policy the replacement is a new pod: it has not been pending yet, and does not have the labels and annotations of a unit. It must
get a place at once, in the unit that the policy selects first. The moved pod still counts there, as it ends only after its replacement
was created. The place is booked when the move is decided, so that no other pod takes the last place under the unit's caps.
"""

from typing import Final

import msgspec

from gpushare.api.crd.resource_policy import PolicyPod, policy_pod_of
from gpushare.api.objects import Pod
from gpushare.scheduler.plugins.resource_policy.model.unit_selection import choose
from gpushare.scheduler.plugins.resource_policy.model.unit_usage import PolicyBook, own_labels
from gpushare.scheduler.plugins.resource_policy.plugin import Policies

_REPLACEMENT_KEY: Final = "moved:"


class PolicyPlaces:
    """Checks and books places for moved pods. Not thread-safe."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._taken: dict[str, PolicyBook] = {}

    def objection(self, moved: Pod, node: str) -> str:
        """Why the policy of ``moved`` does not allow its replacement on ``node`` at once; empty if it does, or without a policy."""
        place = self._place(_REPLACEMENT_KEY, moved, node)
        return place if isinstance(place, str) else ""

    def take(self, key: str, moved: Pod, node: str) -> str:
        """As ``objection``; without an objection the place is also booked in its unit, under ``key``, until ``give_up``."""
        place = self._place(key, moved, node)
        if isinstance(place, str):
            return place
        book, pod, unit = place
        book.book(pod, unit)
        self._taken[key] = book
        return ""

    def give_up(self, key: str) -> None:
        """Release the place booked under ``key``, if any."""
        book = self._taken.pop(key, None)
        if book is not None:
            book.unbook(key)

    def _place(self, key: str, moved: Pod, node: str) -> tuple[PolicyBook, PolicyPod, int] | str:
        """Book, pod and unit of the replacement, or why it may not have a place; an empty text without a policy."""
        namespace = moved.metadata.namespace
        if not self._policies.governs(namespace):
            return ""
        pod = _recreated(key, policy_pod_of(moved))
        census = self._policies.census
        book = census.book_for(namespace, pod.labels)
        if book is None:
            return ""
        name = book.policy.key
        if namespace in self._policies.unread:
            return f"ResourcePolicy {name}: its pods have not been loaded yet"
        group = book.group_of(pod)
        if isinstance(group, str):
            return group
        masks = list(book.masks(pod, census.nodes.places((node,))))
        # A pod that never preempts skips the policy's attempts to preempt in a unit.
        tried = range(len(masks)) if moved.spec.preemption_policy == "Never" else ()
        choice = choose(book.policy, book.standings(pod, group, masks), 0.0, tried)
        if choice.unit is not None:
            return book, pod, choice.unit
        unit = next((index for index, mask in enumerate(masks) if mask[0]), None)
        if unit is None:
            return f"ResourcePolicy {name}: node {node} is in none of its units"
        return f"ResourcePolicy {name}: unit {unit + 1}: {choice.reasons[unit]}"


def _recreated(key: str, pod: PolicyPod) -> PolicyPod:
    """The pod as its controller recreates it: without a node and history, and without the labels that a unit added."""
    return msgspec.structs.replace(
        pod,
        uid=key,
        node="",
        labels=own_labels(pod),
        scheduled=0.0,
        nominated="",
        untimed=False,
        refused_since=0.0,
    )
