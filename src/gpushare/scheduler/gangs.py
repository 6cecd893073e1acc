"""Gangs: room for all of a gang's pods is found and kept at once, and they are bound together or not at all.

kube-scheduler asks pod by pod. The first pod that it asks about decides for its whole gang: as many pods as must
run together are given their shares in the ledger at one stroke, or none is. From then on each is offered its own
node alone, and nobody else gets the room. So two gangs never hold half of what the other needs. At ``bind`` the
pods wait for each other, for a few seconds, longer as long as more of them come; who waits in vain is tried again by kube-scheduler, keeps
its room, and counts as come: with a gang of hundreds the first have given up long before the last come.
When they have not all come after a minute, or one of them is gone, the room of the whole gang is given up, never
that of a part, and for some seconds others may have it.

What other plugins of kube-scheduler say of a pod (processors, taints, affinity) is known from the nodes that were
offered when the pod was asked about; before that the nodes of the pod that is asked about stand for them.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from gpushare.ledger import Ledger, Verdict
from gpushare.model.gang import Gang
from gpushare.model.request import Request
from gpushare.scheduler.counted import are, have, pods
from gpushare.scheduler.records import PodRecord

type_of_told = Callable[[str], None]
type_of_told_with_pod = Callable[[str, str], None]
type_of_told_many = Callable[[Iterable[str]], None]
type_of_refusal = Callable[[str], str]

#: How long a bind waits after the last of its gang that came, and in all, in seconds; less than kube-scheduler waits for an
#: answer. It goes through 20 to 100 pods a second: of a gang of hundreds the first come again when the last have come.
PATIENCE_S: Final = 3.0
MOST_PATIENCE_S: Final = 8.0
#: How long room is kept for a gang whose pods do not all come, and how long others may have it then, in seconds.
KEPT_S: Final = 60.0
REST_S: Final = 10.0
#: Pods of which it is remembered that we were asked about them too early; the oldest give way.
_EARLY_ONES: Final = 4096
_THE_OTHERS: Final = "others of it need what is here"
_WITHOUT_GPU: Final = "those that ask for no GPU are to be bound first"


class Wanting(NamedTuple):
    """A pod of a gang, what it asks for, and the nodes that it may have."""

    record: PodRecord
    request: Request
    nodes: list[str]


class NotTogether(Exception):
    """Why a pod of a gang cannot be bound now, in words for its event."""


class _Group:
    """One gang: its pods by UID, the nodes that keep room for some of them, and who came to be bound."""

    __slots__ = (
        "came_s",
        "come",
        "here",
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
        self.rests_until_s = 0.0


class Gangs:
    """Decides for whole gangs. Not for several threads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._patience_s = PATIENCE_S
        self._most_patience_s = MOST_PATIENCE_S
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[str, str] = {}
        self._early: OrderedDict[str, bool] = OrderedDict()
        """Pods about which we were asked before we knew them."""
        self.on_kept: type_of_told_with_pod = lambda uid, pod: None
        """Called for each pod (UID, ``namespace/name``) for which room is kept from now on."""
        self.on_given_up: type_of_told = lambda uid: None
        """Called for each UID whose room is not kept any longer: it releases the share, if nothing is under way."""
        self.on_planned: type_of_told_many = lambda uids: None
        """Called with the UIDs of pods that kube-scheduler should ask about soon: it may have laid them aside."""
        self.on_asked: type_of_told = lambda uid: None
        """Called for each pod that was asked about and has its room: it need not be asked about soon any more."""
        self.monotonic = time.monotonic
        self.refusal: type_of_refusal = lambda uid: ""
        """Why the pod of a UID may have no room, whatever there is; empty where it may."""
        self.passed: type_of_refusal = lambda uid: ""
        """Why it may not have the room that it was just given; empty where it may."""

        self.is_governed: Callable[[str], bool] = lambda namespace: False
        """Whether something else than room decides which pods of a namespace get a node, those without a GPU, too."""

    def __len__(self) -> int:
        return len(self._groups)

    def _running(self, group: _Group, but: str) -> set[str]:
        """Pods other than ``but`` that need nothing any more: bound, about to be, or without a GPU and free to go anywhere.

        One that is being deleted is none of them: those that take its place would run without the others.
        """
        bound = {
            uid
            for uid, one in group.pods.items()
            if one.node or (one.bystander and not self.is_governed(one.pod.partition("/")[0]))
        }
        leaving = {uid for uid, one in group.pods.items() if one.leaving}
        return (bound | group.placed) - leaving - {but}

    # --- what the informer tells --------------------------------------------------------------

    def upsert(self, record: PodRecord) -> None:
        """A pod was added or changed, and has not ended; it may belong to no gang, or to another one than before."""
        known = self._group_of.get(record.uid)
        if record.gang is None or known not in (None, record.gang.key):
            self.remove(record.uid)
        if record.gang is None:
            return
        self._group_of[record.uid] = record.gang.key
        group = self._groups.setdefault(record.gang.key, _Group())
        before = group.pods.get(record.uid)
        new, early = before is None, self._early.pop(record.uid, False)
        group.pods[record.uid] = record
        if record.leaving and record.uid in group.planned:
            self._give_up(group)  # the plan was with it
        if record.node:
            group.offered.pop(record.uid, None)
            if record.bystander and before is not None and not before.node:
                # The others may have waited for it.
                self.on_planned(
                    [uid for uid, one in group.pods.items() if not one.node and not one.bystander]
                )
        elif new and len(group.pods) < record.gang.least:
            if early:
                self.on_planned([record.uid])  # what it was told is not why it waits
        elif new:
            # kube-scheduler may have asked about it before we knew it, and about the others while it was missing.
            complete = len(group.pods) == record.gang.least
            self.on_planned(
                [uid for uid, one in group.pods.items() if not one.node] if complete else [record.uid]
            )

    def remove(self, uid: str) -> None:
        """A pod ended or is gone. What is kept for the rest of its gang is not enough any more: it is given up."""
        key = self._group_of.pop(uid, None)
        if key is None:
            return
        group = self._groups[key]
        gang = group.pods.pop(uid).gang
        group.offered.pop(uid, None)
        group.placed.discard(uid)
        # Where one that ran is gone the plan was for too few.
        together = len(group.planned.keys() | self._running(group, ""))
        if uid in group.planned or (gang is not None and group.planned and together < gang.least):
            self._give_up(group)
        if not group.pods:
            del self._groups[key]

    def lost(self, uid: str) -> None:
        """The reservation of a waiting pod has ended: so does what is kept for the rest of its gang."""
        group = self._groups.get(self._group_of.get(uid, ""))
        if group is None:
            return
        group.placed.discard(uid)  # its Binding never came: it needs room again, and is one more that does
        if uid in group.planned:
            self._give_up(group)
            group.rests_until_s = self.monotonic() + REST_S

    def planned_on(self, uid: str) -> str:
        """The node that the plan for its gang has for a pod; empty where there is none."""
        group = self._groups.get(self._group_of.get(uid, ""))
        return "" if group is None else group.planned.get(uid, "")

    def denied(self, uid: str) -> None:
        """The pod may not have the node that was planned for it: what is kept for the rest of its gang is in vain."""
        group = self._groups.get(self._group_of.get(uid, ""))
        if group is not None and uid in group.planned:
            self._give_up(group)

    def wake(self) -> None:
        """Have gangs tried again that gave way to others for long enough."""
        now_s = self.monotonic()
        for group in self._groups.values():
            if 0 < group.rests_until_s <= now_s:
                group.rests_until_s = 0.0
                self.on_planned([uid for uid, one in group.pods.items() if not one.node])

    # --- filter ---------------------------------------------------------------------------------

    def verdict(self, uid: str, pod: str, gang: Gang, request: Request, nodes: list[str]) -> Verdict | None:
        """Where the pod may go for its gang's sake; ``None``: wherever it fits, enough of its gang run already."""
        group = self._groups.get(gang.key) or _Group()
        if uid not in group.pods:
            # kube-scheduler's watch is ahead of ours, or behind: what nobody tells the end of is not kept.
            self._early[uid] = True
            if len(self._early) > _EARLY_ONES:
                self._early.popitem(last=False)
            return _refused(nodes, f"gang {gang.key}: this pod is not known yet")
        group.placed.discard(uid)
        running = self._running(group, uid)
        need = gang.least - len(running)
        if need <= 0:
            return None
        there = sum(not one.leaving for one in group.pods.values())
        if there < gang.least:
            self._give_up(group)
            return _refused(
                nodes, f"gang {gang.key} needs {pods(gang.least)} together: there {are(there)} {there}"
            )
        _remember(group, uid, nodes)
        if group.planned and self._is_kept(group):
            node = group.planned.get(uid)
            if node is None and len(group.planned.keys() | running) >= gang.least:
                return _refused(
                    nodes,
                    f"gang {gang.key}: its first {pods(gang.least)} {are(gang.least)} bound before others",
                )
            if node in nodes:
                if self.monotonic() < group.since_s + KEPT_S:
                    self._keep(group)
                self.on_asked(uid)
                return _there_alone(node)
        self._give_up(group)
        if self.monotonic() < group.rests_until_s:
            return _refused(
                nodes, f"gang {gang.key}: its pods have not come together in time, it gives way to others"
            )
        return self._plan(group, uid, pod, gang, request, need, running)

    def _plan(
        self, group: _Group, uid: str, pod: str, gang: Gang, request: Request, need: int, running: set[str]
    ) -> Verdict:
        nodes = group.offered[uid]
        chosen = _chosen(group, (uid, pod, request), need, running)
        if len(chosen) < need:
            wrong = [one for one in group.pods.values() if one.problem]
            why = f"pod {wrong[0].pod}: {wrong[0].problem}" if wrong else _WITHOUT_GPU
            return _refused(nodes, f"gang {gang.key} needs {pods(gang.least)} together: {why}")
        # Room that others make by their end is its own.
        lifted = self._ledger.lift(group.pods)
        for other, key, asked in _largest_first(chosen):
            offered = group.offered.get(other, nodes)
            refusal = self.refusal(other)
            node = None if refusal else self._reserve(other, key, asked, offered)
            if node is not None and (refusal := self.passed(other)):
                self.on_given_up(other)
                node = None
            if node is None:
                found = len(group.planned)
                self._give_up(group)
                head = f"gang {gang.key} needs room for {pods(need)} at once and there is room for {found}"
                refused = self._ledger.filter(asked, offered)
                self._ledger.keep_again(lifted)
                if refusal:
                    return _refused(nodes, f"{head}: {refusal}")
                reasons = refused.refused | refused.hopeless
                # Who finds room here for itself has it from the others, who would have none.
                return Verdict([], {name: f"{head}: {reasons.get(name, _THE_OTHERS)}" for name in nodes}, {})
            group.planned[other] = node
        group.since_s = self.monotonic()
        self._keep(group)
        self.on_planned([other for other, _, _ in chosen if other != uid])
        return _there_alone(group.planned[uid])

    def together_with(self, uid: str) -> list[str]:
        """UIDs of all pods of a pod's gang; of one without a gang its own."""
        group = self._groups.get(self._group_of.get(uid, ""))
        return [uid] if group is None else list(group.pods)

    def wanting(self, uid: str, nodes: list[str]) -> list[Wanting]:
        """Who of a pod's gang needs room at once with it, the largest first, for which pods of others may have to end.

        ``nodes`` may take the pod itself. Empty where the gang waits for something else, or room is being made for it
        already.
        """
        group = self._groups.get(self._group_of.get(uid, ""))
        if group is None:
            return []
        record = group.pods[uid]
        assert record.gang is not None
        running = self._running(group, uid)
        need = max(record.gang.least - len(running), 1)
        waits = len(group.pods) < record.gang.least or bool(group.planned)
        if waits or record.request is None or any(map(self._ledger.kept_on, group.pods)):
            return []
        if self.monotonic() < group.rests_until_s:
            return []
        chosen = _chosen(group, (uid, record.pod, record.request), need, running)
        if len(chosen) < need:
            return []
        return [
            Wanting(group.pods[other], asked, group.offered.get(other, nodes))
            for other, _, asked in _largest_first(chosen)
        ]

    def _reserve(self, uid: str, pod: str, request: Request, nodes: list[str]) -> str | None:
        held = self._ledger.held(uid)
        if held is not None:  # an earlier Binding may still arrive there
            return held.node if held.node in nodes else None
        node = self._ledger.best(request, nodes)
        if node is not None:
            self._ledger.reserve(uid, pod, request, node)
        return node

    def _is_kept(self, group: _Group) -> bool:
        held = map(self._ledger.held, group.planned)
        return all(
            one is not None and one.node == node
            for one, node in zip(held, group.planned.values(), strict=True)
        )

    def _keep(self, group: _Group) -> None:
        for uid in group.planned.keys() - group.placed:
            self.on_kept(uid, group.pods[uid].pod)

    def _give_up(self, group: _Group) -> None:
        planned = [uid for uid in group.planned if uid not in group.placed]
        group.planned.clear()
        group.here.clear()
        group.come.clear()
        for uid in planned:
            self.on_given_up(uid)

    # --- bind -----------------------------------------------------------------------------------

    async def together(self, uid: str, gang: Gang) -> None:
        """Return once enough of the gang have come to be bound; raises ``NotTogether`` when they do not."""
        group = self._groups.get(gang.key) or _Group()
        if len(self._running(group, uid)) < gang.least:
            if uid not in group.planned:
                raise NotTogether(f"gang {gang.key}: room for all of its pods has to be found first")
            if self.monotonic() < group.since_s + KEPT_S:
                self._keep(group)
            group.here.add(uid)
            group.come.add(uid)
            group.came_s = asyncio.get_running_loop().time()
            if len(self._running(group, "") | group.come) >= gang.least:
                self._open(group)
            else:
                await self._wait(group, uid, gang)
        group.placed.add(uid)

    def _open(self, group: _Group) -> None:
        """Let all go that have come: who is here now, and who gave up meanwhile as soon as it comes again."""
        gave_up = group.come - group.here
        group.placed |= group.come
        group.here, group.come = set(), set()
        group.opened.set()
        group.opened = asyncio.Event()
        if gave_up:
            self.on_planned(sorted(gave_up))

    async def _wait(self, group: _Group, uid: str, gang: Gang) -> None:
        opened, loop = group.opened, asyncio.get_running_loop()
        until_s = loop.time() + self._most_patience_s
        try:
            while not opened.is_set():
                timeout_s = min(group.came_s + self._patience_s, until_s) - loop.time()
                if timeout_s <= 0:
                    raise TimeoutError
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await opened.wait()
        except TimeoutError:
            come = len(self._running(group, "") | group.come)
            raise NotTogether(
                f"gang {gang.key}: {come} of {pods(gang.least)} {have(come)} come to be bound, room is kept for the others"
            ) from None
        finally:
            group.here.discard(uid)
        if uid not in group.placed:
            raise NotTogether(f"gang {gang.key}: the room that was kept for it was given up")


def _chosen(
    group: _Group, first: tuple[str, str, Request], need: int, running: set[str]
) -> list[tuple[str, str, Request]]:
    """``need`` pods that get room together, fewer where there are not as many; ``first`` is one of them."""
    chosen = [first]
    for uid, record in group.pods.items():
        if len(chosen) == need:
            break
        if uid != first[0] and uid not in running and record.request is not None and not record.leaving:
            chosen.append((uid, record.pod, record.request))
    return chosen


def _largest_first(chosen: list[tuple[str, str, Request]]) -> list[tuple[str, str, Request]]:
    """So that what is small finds a place beside them."""
    return sorted(chosen, key=lambda one: -one[2].memory_units * one[2].gpu_count)


def _remember(group: _Group, uid: str, nodes: list[str]) -> None:
    # Pods made from one template are offered the same nodes: one list stands for all of them.
    for known in group.offered.values():
        if known == nodes:
            group.offered[uid] = known
            return
    group.offered[uid] = nodes


def _there_alone(node: str) -> Verdict:
    # Why not on the others nobody hears of a pod that has a node, and to write thousands of reasons takes longer than to decide.
    return Verdict([node], {}, {})


def _refused(nodes: list[str], reason: str) -> Verdict:
    return Verdict([], dict.fromkeys(nodes, reason), {})
