"""The state of one gang: its pods, which of them count, and in which order they get room."""

import asyncio
import sys
from dataclasses import dataclass, field

from gpushare.api.request.pod_group import Gang
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.services import Candidate


@dataclass(slots=True, eq=False)
class Group:
    """The state of one gang.

    ``pods``: its records by UID.
    ``succeeded``: pods that have ended successfully, until they are deleted.
    ``offered``: by UID, the nodes that kube-scheduler offered for the pod.
    ``planned``: by UID, the node on which room is reserved.
    ``in_permit``: pods that wait in ``Permit`` now.
    ``arrived``: pods that have reached ``Permit`` since the plan was made: those in ``in_permit``, and those whose wait timed out.
    ``last_arrival_s``: when the last of those arrived, in the event loop's time.
    ``placed``: pods that ``Permit`` has admitted.
    ``opened``: set when ``Permit`` admits the waiting pods.
    ``planned_at_s``: when the plan was made.
    ``last_new_request_s``: when kube-scheduler last filtered a pod for the first time.
    ``rests_until_s``: until when the gang gives way to others.
    """

    pods: dict[str, PodRecord] = field(default_factory=dict)
    succeeded: dict[str, Gang] = field(default_factory=dict)
    offered: dict[str, list[str]] = field(default_factory=dict)
    planned: dict[str, str] = field(default_factory=dict)
    in_permit: set[str] = field(default_factory=set)
    arrived: set[str] = field(default_factory=set)
    last_arrival_s: float = 0.0
    placed: set[str] = field(default_factory=set)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    planned_at_s: float = 0.0
    last_new_request_s: float = 0.0
    rests_until_s: float = 0.0


def candidates_of(group: Group, first: Candidate, running: set[str]) -> list[Candidate]:
    """The pods that may share the room: ``first``, then pods that kube-scheduler has filtered, then the others."""
    others = [
        (uid, record.pod, record.request)
        for uid, record in group.pods.items()
        if uid != first[0] and uid not in running and not record.leaving and record.request is not None
    ]
    return [first, *sorted(others, key=lambda one: one[0] not in group.offered)]


def succeeded_of(group: Group, gang: Gang) -> set[str]:
    """UIDs of pods that have succeeded and have the same controller: pods of another controller belong to an earlier gang of that name."""
    return {uid for uid, member in group.succeeded.items() if member.owner == gang.owner}


def existing_count(group: Group, gang: Gang) -> int:
    """How many of its pods exist or have succeeded, without those that are being deleted."""
    return sum(not record.leaving for record in group.pods.values()) + len(succeeded_of(group, gang))


def pending_of(group: Group) -> list[str]:
    """UIDs of pending pods."""
    return [uid for uid, record in group.pods.items() if not record.node and not record.leaving]


def remember(group: Group, uid: str, nodes: list[str]) -> None:
    """Store the nodes that kube-scheduler offered for the pod."""
    # Pods of one template are mostly offered the same nodes, in any order: they share one list.
    names = frozenset(nodes)
    for known in {id(known): known for known in group.offered.values()}.values():
        if len(known) == len(nodes) and names.issuperset(known):
            group.offered[uid] = known
            return
    group.offered[uid] = list(map(sys.intern, nodes))  # gangs share the names
