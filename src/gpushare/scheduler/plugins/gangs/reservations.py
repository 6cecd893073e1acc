"""The room that gangs keep for pods of theirs that have not come to be bound: whose it is, and for how long it is kept."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from gpushare.api.request.request import Request
from gpushare.ledger import Held, Ledger, Verdict
from gpushare.scheduler.plugins.gangs.members import Group

#: How long room is kept for a gang whose pods do not all come, and while kube-scheduler asks about no further one of those that it
#: was not asked about, in seconds.
KEPT_S: Final = 60.0
UNASKED_S: Final = 15.0
#: Nodes that are tried for one answer, some fifty microseconds each: whoever makes a gang of thousands is not to slow down others.
_MOST_NODES: Final = 8
#: Gangs that are named for one node.
_NAMED: Final = 3


def until_s(group: Group) -> float:
    """Until when what is kept is kept on whenever one of the gang is asked about, in the time of ``Gangs.monotonic``."""
    most_s = group.since_s + KEPT_S
    if group.planned.keys() <= group.offered.keys():
        return most_s
    return min(most_s, group.news_s + UNASKED_S)


class GangRoom:
    """Knows the gangs that keep room, from when they begin to (``note``)."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._on_node: dict[str, dict[str, Group]] = {}
        """Of each node the UIDs that room is, or was, kept for there, and their gangs."""

    def note(self, group: Group) -> None:
        """It keeps room from now on."""
        if all(self._on_node.get(node, {}).get(uid) is group for uid, node in group.planned.items()):
            return
        # Who keeps nothing any more is forgotten where others begin to.
        for node in set(group.planned.values()) & self._on_node.keys():
            self._kept_on(node)
        for uid, node in group.planned.items():
            self._on_node.setdefault(node, {})[uid] = group

    def kept(self) -> Iterator[tuple[str, Group, list[Held]]]:
        """The key of each gang that keeps room, the gang, and what is kept; gangs of which all pods came keep nothing any more."""
        for group in dict.fromkeys(one for known in self._on_node.values() for one in known.values()):
            uids = [uid for uid in group.planned if uid not in group.placed]
            held = [one for one in map(self._ledger.held, uids) if one is not None and not one.confirmed]
            if held:
                gang = group.pods[held[0].uid].gang
                assert gang is not None
                yield gang.key, group, held

    def named(self, request: Request, verdict: Verdict) -> Verdict:
        """``verdict`` on a request with the gangs named that keep room on nodes which would take it otherwise."""
        if not self._on_node or not verdict.refused:
            return verdict
        refused = verdict.refused
        keepers = self.keepers(request, refused)
        named = {node: f"{refused[node]}; room there is kept for {gangs}" for node, gangs in keepers.items()}
        return Verdict(verdict.fits, refused | named, verdict.hopeless) if named else verdict

    def keepers(self, request: Request, nodes: Collection[str]) -> dict[str, str]:
        """Those of ``nodes`` that would take the request if gangs kept no room there, and these gangs, in words.

        Of many such nodes some are looked at.
        """
        there: dict[str, dict[str, str]] = {}
        for node in list(self._on_node):
            if node in nodes and (kept := self._kept_on(node)):
                there[node] = kept
                if len(there) == _MOST_NODES:
                    break
        fitting = set(self._ledger.fitting(request, list(there))) if there else ()
        return {
            node: _in_words(kept.values())
            for node, kept in there.items()
            if node not in fitting and self._ledger.evictions.fits_without(request, node, list(kept))
        }

    def _kept_on(self, node: str) -> dict[str, str]:
        """For whom room is kept there still, and the keys of their gangs; who is bound, or was planned elsewhere since, is forgotten."""
        known = self._on_node[node]
        kept = {}
        for uid, group in list(known.items()):
            held = self._ledger.held(uid)
            if held is None or held.confirmed or held.node != node or group.planned.get(uid) != node:
                del known[uid]
            elif (
                uid not in group.placed and (pod := group.pods.get(uid)) is not None and pod.gang is not None
            ):
                kept[uid] = pod.gang.key
        if not known:
            del self._on_node[node]
        return kept


def _in_words(keys: Iterable[str]) -> str:
    gangs = sorted(set(keys))
    if len(gangs) == 1:
        return f"gang {gangs[0]}"
    more = len(gangs) - _NAMED
    return f"gangs {', '.join(gangs[:_NAMED])}{f' and {more} more' if more > 0 else ''}"
