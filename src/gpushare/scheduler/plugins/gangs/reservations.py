"""The room reserved for gangs' pods that are not bound yet: which gang has it, and for how long."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from gpushare.api.request.request import Request
from gpushare.ledger import Held, Ledger, Verdict
from gpushare.scheduler.plugins.gangs.members import Group

#: Seconds for which room stays reserved for a gang whose pods do not all reach ``Permit``.
#: And seconds for which it stays while kube-scheduler has not filtered all planned pods and filters no further one.
KEPT_S: Final = 60.0
UNASKED_S: Final = 15.0
#: Maximum number of nodes examined per request, at about fifty microseconds each, so that a gang of thousands does not slow down others.
_MOST_NODES: Final = 8
#: Maximum number of gangs named for one node.
_NAMED: Final = 3


def until_s(group: Group) -> float:
    """Until when the gang's reservations are prolonged at each request for one of its pods, in the time of ``Gangs.monotonic``."""
    most_s = group.planned_at_s + KEPT_S
    if group.planned.keys() <= group.offered.keys():
        return most_s
    return min(most_s, group.last_new_request_s + UNASKED_S)


class GangReservations:
    """The gangs with reservations, from the call of ``note``."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._on_node: dict[str, dict[str, Group]] = {}
        """By node, the UIDs for which room is, or was, reserved there, and their gangs."""

    def note(self, group: Group) -> None:
        """The gang has reservations from now on."""
        if all(self._on_node.get(node, {}).get(uid) is group for uid, node in group.planned.items()):
            return
        # Drop outdated entries of the nodes that get new ones.
        for node in set(group.planned.values()) & self._on_node.keys():
            self._reserved_on(node)
        for uid, node in group.planned.items():
            self._on_node.setdefault(node, {})[uid] = group

    def kept(self) -> Iterator[tuple[str, Group, list[Held]]]:
        """Key, gang and reservations of each gang with unconfirmed reservations. A gang whose pods were all admitted has none."""
        for group in dict.fromkeys(one for known in self._on_node.values() for one in known.values()):
            uids = [uid for uid in group.planned if uid not in group.placed]
            held = [one for one in map(self._ledger.held, uids) if one is not None and not one.confirmed]
            if held:
                gang = group.pods[held[0].uid].gang
                assert gang is not None
                yield gang.key, group, held

    def with_gangs_named(self, request: Request, verdict: Verdict) -> Verdict:
        """``verdict``, with the gangs named in the reasons of nodes that would take the request without their reservations."""
        if not self._on_node or not verdict.refused:
            return verdict
        refused = verdict.refused
        keepers = self.keepers(request, refused)
        with_gangs_named = {
            node: f"{refused[node]}; the capacity there is reserved for {gangs}"
            for node, gangs in keepers.items()
        }
        return (
            Verdict(verdict.fits, refused | with_gangs_named, verdict.hopeless)
            if with_gangs_named
            else verdict
        )

    def keepers(self, request: Request, nodes: Collection[str]) -> dict[str, str]:
        """By node, the gangs (in words) whose reservations alone keep the node from taking the request.

        Examines at most ``_MOST_NODES`` nodes.
        """
        by_node: dict[str, dict[str, str]] = {}
        for node in list(self._on_node):
            if node in nodes and (gangs_by_uid := self._reserved_on(node)):
                by_node[node] = gangs_by_uid
                if len(by_node) == _MOST_NODES:
                    break
        fitting = set(self._ledger.fitting(request, list(by_node))) if by_node else ()
        return {
            node: _in_words(gangs_by_uid.values())
            for node, gangs_by_uid in by_node.items()
            if node not in fitting and self._ledger.evictions.fits_without(request, node, list(gangs_by_uid))
        }

    def _reserved_on(self, node: str) -> dict[str, str]:
        """UIDs of pods with a reservation on the node, and their gangs' keys. Drops pods that are bound, or planned elsewhere by now."""
        groups = self._on_node[node]
        gangs_by_uid = {}
        for uid, group in list(groups.items()):
            held = self._ledger.held(uid)
            if held is None or held.confirmed or held.node != node or group.planned.get(uid) != node:
                del groups[uid]
            elif (
                uid not in group.placed and (pod := group.pods.get(uid)) is not None and pod.gang is not None
            ):
                gangs_by_uid[uid] = pod.gang.key
        if not groups:
            del self._on_node[node]
        return gangs_by_uid


def _in_words(keys: Iterable[str]) -> str:
    gangs = sorted(set(keys))
    if len(gangs) == 1:
        return f"gang {gangs[0]}"
    more = len(gangs) - _NAMED
    return f"gangs {', '.join(gangs[:_NAMED])}{f' and {more} more' if more > 0 else ''}"
