"""What a policy's pods hold of its units: bound pods, and pods with a booking that were not seen bound yet.

A pod counts in the first unit that contains its node and whose labels and annotations it carries. So a unit may offer a node that is
also in an earlier unit only to pods that will not count in the earlier one, which the labels and annotations of the two
units decide. This keeps every unit within its caps, whichever nodes the units share.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from gpushare.api import names
from gpushare.api.crd.resource_policy import PolicyPod, ResourcePolicy
from gpushare.api.request.amounts import Amounts
from gpushare.api.request.pluralize import counted
from gpushare.ledger.arrays import Mask, Places
from gpushare.scheduler.plugins.resource_policy.model.unit_nodes import Nodes
from gpushare.scheduler.plugins.resource_policy.model.unit_selection import Standing

NodeGroup = tuple[str, ...]
"""The values of ``matchLabelKeys``."""


class Counted(NamedTuple):
    """A bound pod in a unit (from 0). ``counts``: whether it counts towards the unit's caps."""

    group: NodeGroup
    unit: int
    amounts: Amounts
    counts: bool
    leaving: bool


class Booking(NamedTuple):
    """A place in a unit that was booked for a pod: by ``filter`` (``node`` is empty) or by ``bind``."""

    group: NodeGroup
    unit: int
    amounts: Amounts
    node: str


@dataclass(slots=True, eq=False)
class _Tally:
    """The number of a group's pods in a unit, and the sum of their requests."""

    pods: int = 0
    amounts: dict[str, int] = field(default_factory=dict)


_EMPTY_TALLY: Final = _Tally()


class PolicyBook:
    """One policy, its pods by UID, and its units' sums."""

    def __init__(self, policy: ResourcePolicy, nodes: Nodes) -> None:
        self.policy = policy
        self.counted: dict[str, Counted] = {}
        """Bound pods in a unit."""
        self.booked: dict[str, Booking] = {}
        self.strays: set[str] = set()
        """UIDs of pods that the policy selects but another scheduler places."""
        self._nodes = nodes
        self._rows = [nodes.add_row(unit) for unit in policy.units]
        self._tallies: dict[tuple[NodeGroup, int], _Tally] = {}
        self._bound = [0] * len(policy.units)
        self._leaving = [0] * len(policy.units)

    def close(self) -> None:
        """Release the book's rows; it must not be used afterwards."""
        for row in self._rows:
            self._nodes.drop_row(row)

    def without_nodes(self) -> list[bool]:
        """For each unit, whether it has no nodes."""
        return [not row.mask.any() for row in self._rows]

    # --- groups ---------------------------------------------------------------------------------

    def group_of(self, pod: PolicyPod) -> NodeGroup | str:
        """The pod's group, or, as a string, the reason why it has none: a missing label."""
        for key in self.policy.label_keys:
            if key not in pod.labels:
                return f"ResourcePolicy {self.policy.key} counts pods by label {key}, which this pod does not have; add it to the pod's template"
        return tuple(pod.labels[key] for key in self.policy.label_keys)

    # --- what pods hold -------------------------------------------------------------------------

    def put(self, pod: PolicyPod) -> None:
        """Add or update a bound pod."""
        self.drop(pod.uid)
        group = self.group_of(pod)
        unit = self._unit_at(pod)
        if unit is None or isinstance(group, str):
            return
        policy = self.policy
        previous = policy.ignores_previous and (pod.scheduled or pod.created) < policy.created
        counts = not previous and not (policy.ignores_terminating and pod.leaving)
        entry = self.counted[pod.uid] = Counted(group, unit, pod.amounts, counts, pod.leaving)
        self._count(entry, 1)

    def drop(self, uid: str) -> None:
        """Remove a pod that is no longer bound, or no longer selected by this policy."""
        entry = self.counted.pop(uid, None)
        if entry is not None:
            self._count(entry, -1)

    def book(self, pod: PolicyPod, unit: int, node: str = "") -> None:
        """Book a place in ``unit`` for the pod, until ``put`` or ``unbook``. Replaces an earlier booking."""
        self.unbook(pod.uid)
        group = self.group_of(pod)
        assert not isinstance(group, str)
        booking = self.booked[pod.uid] = Booking(group, unit, pod.amounts, node)
        self._add(booking, 1)

    def unbook(self, uid: str) -> None:
        """Remove the pod's booking, if there is one."""
        booking = self.booked.pop(uid, None)
        if booking is not None:
            self._add(booking, -1)

    def pods_in(self) -> list[int]:
        """The number of bound pods in each unit, including those that do not count towards its caps."""
        return list(self._bound)

    # --- questions ------------------------------------------------------------------------------

    def standings(self, pod: PolicyPod, group: NodeGroup, masks: list[Mask]) -> list[Standing]:
        """The state of each unit for the pod; ``masks`` (from the method ``masks``) are about the nodes that take it."""
        return [
            Standing(self.full(pod, group, number), bool(mask.any()), self._leaving[number])
            for number, mask in enumerate(masks)
        ]

    def masks(self, pod: PolicyPod, at: Places) -> Iterator[Mask]:
        """For each unit, which of the nodes at the columns ``at`` it offers to the pod."""
        own_masks: list[Mask] = []
        for number, row in enumerate(self._rows):
            own = row.mask.take(at)
            own_masks.append(own)
            closed = self._closed_by_earlier(pod, number, own_masks)
            yield own & ~np.logical_or.reduce(closed) if closed else own

    def unit_for(self, pod: PolicyPod, node: str) -> int | None:
        """The first unit with ``node`` whose caps admit the pod; ``None`` if there is none."""
        group = self.group_of(pod)
        if isinstance(group, str):
            return None
        at = self._nodes.places((node,))
        for number, mask in enumerate(self.masks(pod, at)):
            if mask[0] and not self.full(pod, group, number):
                return number
        return None

    def full(self, pod: PolicyPod, group: NodeGroup, number: int) -> str:
        """Why the caps of a unit do not admit the pod; empty if they do."""
        unit = self.policy.units[number]
        if not unit.is_capped:
            return ""
        booking = self.booked.get(pod.uid)
        own = 0 if booking is None or (booking.group, booking.unit) != (group, number) else 1
        tally = self._tallies.get((group, number), _EMPTY_TALLY)
        if unit.most_pods is not None and tally.pods - own >= unit.most_pods:
            return f"it has {tally.pods - own} of at most {counted(unit.most_pods, 'pod')}"
        for name, most in (unit.most or {}).items():
            requested = pod.amounts.get(name, 0)
            used = tally.amounts.get(name, 0) - own * requested
            if used + requested > most:
                return f"its pods request {used / 1000:g} of at most {most / 1000:g} {name}, this one {requested / 1000:g}"
        return ""

    # --- within ---------------------------------------------------------------------------------

    def _unit_at(self, pod: PolicyPod) -> int | None:
        column = self._nodes.place(pod.node)
        for number, row in enumerate(self._rows):
            if row.mask[column] and row.unit.is_carried(pod.labels, pod.annotations):
                return number
        return None

    def _closed_by_earlier(self, pod: PolicyPod, number: int, masks: list[Mask]) -> list[Mask]:
        """Masks of the earlier units in which the pod would count with the labels and annotations of unit ``number``."""
        if not number:
            return []
        unit = self.policy.units[number]
        labels, annotations = own_labels(pod) | unit.pod_labels, {**pod.annotations, **unit.pod_annotations}
        return [
            mask
            for earlier, mask in zip(self.policy.units, masks[:number], strict=False)
            if earlier.is_carried(labels, annotations)
        ]

    def _count(self, entry: Counted, step: int) -> None:
        self._bound[entry.unit] += step
        self._leaving[entry.unit] += step * entry.leaving
        if entry.counts:
            self._add(entry, step)

    def _add(self, entry: Counted | Booking, step: int) -> None:
        tally = self._tallies.setdefault((entry.group, entry.unit), _Tally())
        tally.pods += step
        for name, amount in entry.amounts.items():
            tally.amounts[name] = tally.amounts.get(name, 0) + step * amount
        if not tally.pods:
            del self._tallies[entry.group, entry.unit]  # each rollout creates new groups


def own_labels(pod: PolicyPod) -> dict[str, str]:
    """The pod's labels without those that a unit has added."""
    added = pod.annotations.get(names.ANN_UNIT_LABELS, "").split(",")
    return {key: value for key, value in pod.labels.items() if key not in added}
