"""What was found when room was to be made for a pod by ending others: kept beside its decision, in bounds.

kube-scheduler asks (verb ``preempt``) on which of its nodes the ends that it has in mind would leave room on GPUs; and where only we have
refused a pod we look for ends ourselves (``preemption``). Times are seconds since 1970.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.server import protocol

BY_SCHEDULER: Final = "kube-scheduler"
BY_US: Final = "gpushare"
#: Victims of one node, and nodes that stand for a reason, that are kept.
MOST_VICTIMS: Final = 32
EXAMPLES: Final = 3

NOT_LOOKED_AT: Final = "not looked at: enough nodes were, or have room"
BELOW_MIN: Final = "an end in mind would bring an elastic quota below its min"
NOT_ENOUGH: Final = "the ends in mind, and those of others that may go, leave no room on its GPUs"
GUARDED: Final = "a PodDisruptionBudget protects who would have to end besides, and others have room without"
NO_ROOM: Final = "even without the pods that may be ended there its GPUs lack the room"
BY_POLICY: Final = "its ResourcePolicy has another node for it"
NOBODY: Final = "on no node would there be room for it if all the pods that may be ended had ended"
LEAVING: Final = "pods that end there already leave room enough"


class Victim(msgspec.Struct, frozen=True, rename="camel"):
    """Who would have to end. ``pod`` (``namespace/name``) is empty for one that nobody follows: kube-scheduler names UIDs alone.

    ``besides``: kube-scheduler had not thought of it.
    """

    uid: str
    pod: str
    priority: int
    besides: bool


class Room(msgspec.Struct, frozen=True, rename="camel"):
    """A node that has room without ``victims``, of whom there are ``count``."""

    node: str
    count: int
    victims: tuple[Victim, ...]


class NoRoom(msgspec.Struct, frozen=True, rename="camel"):
    """So many nodes without, for one reason, and some of them."""

    reason: str
    nodes: int
    examples: tuple[str, ...]


class Preemption(msgspec.Struct, frozen=True, rename="camel"):
    """``by`` whom pods are ended, ``BY_SCHEDULER`` or ``BY_US``; about how many nodes it was thought; which of them have room then.

    With ``BY_US`` the one node of ``room`` was decided for, and its victims were asked to end. ``said`` is why nobody was.
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
    left: Mapping[str, protocol.Victims],
    found: Mapping[str, protocol.Victims],
    vain: Mapping[str, str],
    *,
    ended_early: bool,
) -> Preemption:
    """An answer of ``preempt``: of what was ``offered`` policies ``left`` some.

    ``vain`` are nodes that were looked at and are not among ``found``, with the reason of each.
    """
    counts, examples = Counter(vain.values()), _examples(vain)
    rest = len(left) - len(found) - len(vain)
    counts[NOT_LOOKED_AT if ended_early else NO_ROOM] += rest
    counts[BY_POLICY] += len(offered) - len(left)
    room = tuple(
        Room(node, len(one.uids), _victims(view, one.uids, set(offered[node].uids)))
        for node, one in found.items()
    )
    refused = tuple(
        NoRoom(reason, nodes, examples.get(reason, ())) for reason, nodes in counts.most_common() if nodes
    )
    return Preemption(BY_SCHEDULER, at_s, len(offered), room, refused)


def decided(view: ClusterCache, at_s: float, nodes: int, node: str, victims: Iterable[str]) -> Preemption:
    """We make room on ``node``, of so many, by the end of ``victims`` (UIDs)."""
    told = tuple(victims)
    said = "" if told else LEAVING
    return Preemption(
        BY_US, at_s, nodes, (Room(node, len(told), _victims(view, told, set(told))),), said=said
    )


def in_vain(at_s: float, nodes: int, said: str) -> Preemption:
    """We end nobody."""
    return Preemption(BY_US, at_s, nodes, (), said=said)


def _victims(view: ClusterCache, uids: Iterable[str], thought_of: set[str]) -> tuple[Victim, ...]:
    found = []
    for uid in tuple(uids)[:MOST_VICTIMS]:
        record = view.with_node(uid)
        pod, priority = ("", 0) if record is None else (record.pod, record.priority)
        found.append(Victim(uid, pod, priority, uid not in thought_of))
    return tuple(found)


def _examples(why: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for node, reason in why.items():
        if len(found.get(reason, ())) < EXAMPLES:
            found[reason] = (*found.get(reason, ()), node)
    return found
