"""One gang as it is known: its pods, who of them counts, and in which order they get room."""

import asyncio
from typing import TYPE_CHECKING

from gpushare.api.request.pod_group import Gang
from gpushare.scheduler.framework.services import Candidate, Standing

if TYPE_CHECKING:
    from gpushare.scheduler.cache.pod_records import PodRecord


class Group:
    """One gang: its pods by UID, the nodes that keep room for some of them, and who came to be bound.

    ``done`` are those that have ended well, until their objects go.
    """

    __slots__ = (
        "came_s",
        "come",
        "done",
        "here",
        "news_s",
        "offered",
        "opened",
        "placed",
        "planned",
        "pods",
        "rests_until_s",
        "since_s",
    )

    def __init__(self) -> None:
        self.pods: dict[str, PodRecord] = {}
        self.done: dict[str, Gang] = {}
        self.offered: dict[str, list[str]] = {}
        self.planned: dict[str, str] = {}
        self.here: set[str] = set()
        self.come: set[str] = (
            set()
        )  # who has come to be bound since the plan was made: those that are here, and those that gave up
        self.came_s = 0.0  # when the last of those came, in the event loop's time
        self.placed: set[str] = set()
        self.opened = asyncio.Event()
        self.since_s = 0.0
        self.news_s = 0.0
        self.rests_until_s = 0.0


def candidates_of(group: Group, first: Candidate, running: set[str]) -> list[Candidate]:
    """Who may have room together, ``first`` before others, and before those that were not asked about yet those that were."""
    others = [
        (uid, record.pod, record.request)
        for uid, record in group.pods.items()
        if uid != first[0] and uid not in running and not record.leaving and record.request is not None
    ]
    return [first, *sorted(others, key=lambda one: one[0] not in group.offered)]


def done_of(group: Group, gang: Gang) -> set[str]:
    """Those that have ended well, of the same controller: of another one they are of a gang that ran before, by the same name."""
    return {uid for uid, one in group.done.items() if one.owner == gang.owner}


def there_of(group: Group, gang: Gang) -> int:
    """How many of its pods there are, without those that leave."""
    return sum(not one.leaving for one in group.pods.values()) + len(done_of(group, gang))


def waiting_of(group: Group) -> list[str]:
    """Those that have no node, and are to have one."""
    return [uid for uid, one in group.pods.items() if not one.node and not one.leaving]


def remember(group: Group, uid: str, nodes: list[str]) -> None:
    """The pod was asked about, with ``nodes`` to choose from."""
    # Pods made from one template are offered the same nodes: one list stands for all of them.
    for known in group.offered.values():
        if known == nodes:
            group.offered[uid] = known
            return
    group.offered[uid] = nodes


def standing_of(group: Group, record: "PodRecord", running: set[str], *, resting: bool) -> Standing | None:
    """How the gang stands for one of its pods; ``None`` for one that asks for no GPU, or is in no gang."""
    gang, request = record.gang, record.request
    if gang is None or request is None:
        return None
    wrong = next((one for one in group.pods.values() if one.problem), None)
    return Standing(
        there_of(group, gang),
        len(running),
        gang.least - len(running),
        candidates_of(group, (record.uid, record.pod, request), running),
        group.pods.keys(),
        group.offered,
        wrong,
        group.planned.get(record.uid, ""),
        bool(group.planned),
        resting,
    )
