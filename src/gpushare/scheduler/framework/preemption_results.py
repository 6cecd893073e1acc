"""Results of preemption for a pod, stored with its decision, with bounded size.

With the verb ``preempt``, kube-scheduler proposes victims on nodes, and the extender selects the nodes on which their eviction frees
enough of the GPUs. If only the extender has refused a pod, the plugin ``preemption`` searches for victims itself. Times are seconds
since 1970.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.server import protocol

BY_SCHEDULER: Final = "kube-scheduler"
BY_US: Final = "gpushare"
#: How many victims of a node, and how many example nodes of a reason, are stored.
MOST_VICTIMS: Final = 32
EXAMPLES: Final = 3

NOT_LOOKED_AT: Final = "not evaluated: enough other nodes were found"
BELOW_MIN: Final = "evicting the candidate pods would take an elastic quota below its min"
NOT_ENOUGH: Final = "evicting all candidate pods would still not free enough on its GPUs"
GUARDED: Final = "a pod that would also have to be evicted is protected by a PodDisruptionBudget, and other nodes need no such eviction"
NO_ROOM: Final = "its GPUs would not have enough free even if every pod that may be preempted were evicted"
BY_POLICY: Final = "the pod's ResourcePolicy assigns it to another node"
NO_ROOM_ANYWHERE: Final = (
    "no node would have enough free even if every pod that may be preempted were evicted"
)
LEAVING: Final = "pods that are already terminating there free enough"


class Victim(msgspec.Struct, frozen=True, rename="camel"):
    """A pod to evict. ``pod`` (``namespace/name``) is empty if the cache does not know it: kube-scheduler passes only UIDs.

    ``besides``: kube-scheduler had not proposed it.
    """

    uid: str
    pod: str
    priority: int
    besides: bool


class Room(msgspec.Struct, frozen=True, rename="camel"):
    """A node that has room after the eviction of ``count`` pods, the first of which are ``victims``."""

    node: str
    count: int
    victims: tuple[Victim, ...]


class NoRoom(msgspec.Struct, frozen=True, rename="camel"):
    """The number of nodes without room for one reason, and examples."""

    reason: str
    nodes: int
    examples: tuple[str, ...]


class Preemption(msgspec.Struct, frozen=True, rename="camel"):
    """The result of one preemption.

    ``by``: ``BY_SCHEDULER`` or ``BY_US``. ``nodes``: how many nodes were considered. ``room``: those that have room after evictions. With
    ``BY_US``, ``room`` is the one node that was chosen, and its victims are evicted. ``said`` is the reason why no pod was evicted.
    """

    by: str
    at: float
    nodes: int
    room: tuple[Room, ...]
    refused: tuple[NoRoom, ...] = ()
    said: str = ""


def of_verb(
    view: ClusterCache,
    at_s: float,
    offered: Mapping[str, protocol.Victims],
    allowed: Mapping[str, protocol.Victims],
    found: Mapping[str, protocol.Victims],
    without_room: Mapping[str, str],
    *,
    ended_early: bool,
) -> Preemption:
    """The result of a ``preempt`` request.

    ``offered``: the nodes of the request; ``allowed``: those that policies allow; ``found``: those with room; ``without_room``: by node, the reason
    why an examined node has none.
    """
    counts, examples = Counter(without_room.values()), _examples(without_room)
    other_nodes = len(allowed) - len(found) - len(without_room)
    counts[NOT_LOOKED_AT if ended_early else NO_ROOM] += other_nodes
    counts[BY_POLICY] += len(offered) - len(allowed)
    room = tuple(
        Room(node, len(victims.uids), _victims(view, victims.uids, set(offered[node].uids)))
        for node, victims in found.items()
    )
    refused = tuple(
        NoRoom(reason, nodes, examples.get(reason, ())) for reason, nodes in counts.most_common() if nodes
    )
    return Preemption(BY_SCHEDULER, at_s, len(offered), room, refused)


def decided(view: ClusterCache, at_s: float, nodes: int, node: str, victims: Iterable[str]) -> Preemption:
    """We evict ``victims`` (UIDs) on ``node``, chosen from ``nodes`` nodes."""
    uids = tuple(victims)
    reason = "" if uids else LEAVING
    return Preemption(
        BY_US, at_s, nodes, (Room(node, len(uids), _victims(view, uids, set(uids))),), said=reason
    )


def without_victims(at_s: float, nodes: int, reason: str) -> Preemption:
    """We evict no pod."""
    return Preemption(BY_US, at_s, nodes, (), said=reason)


def _victims(view: ClusterCache, uids: Iterable[str], proposed: set[str]) -> tuple[Victim, ...]:
    victims = []
    for uid in tuple(uids)[:MOST_VICTIMS]:
        record = view.with_node(uid)
        pod, priority = ("", 0) if record is None else (record.pod, record.priority)
        victims.append(Victim(uid, pod, priority, uid not in proposed))
    return tuple(victims)


def _examples(reasons: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    examples: dict[str, tuple[str, ...]] = {}
    for node, reason in reasons.items():
        if len(examples.get(reason, ())) < EXAMPLES:
            examples[reason] = (*examples.get(reason, ()), node)
    return examples
