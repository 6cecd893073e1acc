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
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from gpushare.api.request.pod_group import Gang
from gpushare.api.request.request import Request
from gpushare.kube.clock import Clock
from gpushare.ledger import Verdict
from gpushare.process.event import Event
from gpushare.reasons.phrases import are, have, pods
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.cycle_state import CycleState
from gpushare.scheduler.framework.interface import NotPermitted, PodToBind, Task
from gpushare.scheduler.framework.services import (
    NO_QUOTAS,
    Candidate,
    GangRoom,
    PodQuotas,
    Standing,
    Wanting,
    largest_first,
    size_of,
)
from gpushare.scheduler.plugins.gangs.backoff import Rests
from gpushare.scheduler.plugins.gangs.members import (
    Group,
    candidates_of,
    done_of,
    remember,
    standing_of,
    there_of,
    waiting_of,
)
from gpushare.scheduler.plugins.gangs.reservations import GangReservations, until_s

#: How long a bind waits after the last of its gang that came, and in all, in seconds; less than kube-scheduler waits for an
#: answer. It goes through 20 to 100 pods a second: of a gang of hundreds the first come again when the last have come.
PATIENCE_S: Final = 3.0
MOST_PATIENCE_S: Final = 8.0
#: Seconds between two looks at gangs that give way to others.
_WAKE_S: Final = 1.0
#: Room that is given up sooner was kept from nobody.
_FLEETING_S: Final = 5.0
#: Pods of which it is remembered that we were asked about them too early; the oldest give way.
_EARLY_ONES: Final = 4096
_THE_OTHERS: Final = "others of it need what is here"
_WITHOUT_GPU: Final = "those that ask for no GPU are to be bound first"


class Gangs:
    """Decides for whole gangs. Not for several threads.

    ``quotas`` decide whether a pod may have room at all. ``governs``: whether a ResourcePolicy decides which pods of a namespace get a
    node, those without a GPU, too.
    """

    def __init__(
        self,
        view: ClusterCache,
        clock: Clock,
        *,
        quotas: PodQuotas = NO_QUOTAS,
        governs: Callable[[str], bool] = lambda namespace: False,
        retry: Callable[[Iterable[str]], None] = lambda uids: None,
        placed: Callable[[str], None] = lambda uid: None,
    ) -> None:
        self._view = view
        self._ledger = view.ledger
        self._quotas = quotas
        self._governs = governs
        self._clock = clock
        self.monotonic: Final = clock.monotonic
        self._patience_s = PATIENCE_S
        self._most_patience_s = MOST_PATIENCE_S
        self._groups: dict[str, Group] = {}
        self._group_of: dict[str, str] = {}
        self._early: OrderedDict[str, bool] = OrderedDict()
        """Pods about which we were asked before we knew them."""
        self.reserved: Event[str, str] = Event()
        """Called for each pod (UID, ``namespace/name``) for which room is kept from now on."""
        self.reservation_cancelled: Event[str] = Event()
        """Called for each UID whose room is not kept any longer: it releases the share, if nothing is under way."""
        self.retry_wanted: Event[Iterable[str]] = Event()
        """Called with the UIDs of pods that kube-scheduler should ask about soon: it may have laid them aside."""
        self.satisfied: Event[str] = Event()
        """Called for each pod that was asked about and has its room: it need not be asked about soon any more."""
        self.room = GangReservations(view.ledger)
        """Which gangs keep room where."""
        self._rests = Rests()
        self.retry_wanted.subscribe(retry)
        self.satisfied.subscribe(placed)
        view.pod_changing.subscribe(self.upsert)
        view.pod_ended.subscribe(self._ended)

    def tasks(self) -> list[Task]:
        """What runs for as long as the process."""
        return [("gangs", self.run())]

    async def run(self) -> None:
        """Have gangs tried again that gave way to others, for ever."""
        while True:
            await self._clock.sleep(_WAKE_S)
            self.wake()

    def __len__(self) -> int:
        return len(self._groups)

    def _running(self, group: Group, but: str, gang: Gang) -> set[str]:
        """Pods other than ``but`` that need nothing any more: bound, about to be, without a GPU and free to go anywhere, ended well.

        Who leaves is none of them: a successor has to find room together with those of the others that leave.
        """
        bound = {
            uid
            for uid, one in group.pods.items()
            if not one.leaving
            and (one.node or (one.bystander and not self._holds_back(one.pod.partition("/")[0])))
        }
        return (bound | group.placed | done_of(group, gang)) - {but}

    def come(self, group: Group, gang: Gang) -> int:
        """How many of its pods run, or have come to be bound."""
        return len(self._running(group, "", gang) | group.come)

    def _holds_back(self, namespace: str) -> bool:
        return self._governs(namespace) or namespace in self._quotas.followed

    # --- what the informer tells --------------------------------------------------------------

    def _ended(self, record: PodRecord, gone: bool) -> None:  # noqa: FBT001 - listeners are called by position
        if record.succeeded and not gone:
            self.upsert(record)
        else:
            self.remove(record.uid)

    def upsert(self, record: PodRecord) -> None:
        """A pod was added or changed, and has not ended; it may belong to no gang, or to another one than before."""
        known = self._group_of.get(record.uid)
        if record.gang is None or known not in (None, record.gang.key):
            self.remove(record.uid)
        if record.gang is None:
            return
        self._group_of[record.uid] = record.gang.key
        group = self._groups.setdefault(record.gang.key, Group())
        if record.succeeded:
            group.done[record.uid] = record.gang
            group.pods.pop(record.uid, None)
            group.planned.pop(record.uid, None)  # what it held is free, and what is kept for the others stays
            self._lessened(group, record.uid, record.gang)
            return
        before = group.pods.get(record.uid)
        new, early = before is None, self._early.pop(record.uid, False)
        group.pods[record.uid] = record
        if record.leaving:
            if before is None or not before.leaving:
                self._lessened(group, record.uid, record.gang)
        elif record.node:
            group.offered.pop(record.uid, None)
            if record.bystander and before is not None and not before.node:
                # The others may have waited for it.
                self.retry_wanted([uid for uid in waiting_of(group) if not group.pods[uid].bystander])
        elif new and (there := there_of(group, record.gang)) < record.gang.least:
            if early:
                self.retry_wanted([record.uid])  # what it was told is not why it waits
        elif new:
            # kube-scheduler may have asked about it before we knew it, and about the others while it was missing.
            self.retry_wanted(waiting_of(group) if there == record.gang.least else [record.uid])

    def remove(self, uid: str) -> None:
        """A pod ended or is gone. What is kept for the rest of its gang is not enough any more: it is given up."""
        key = self._group_of.pop(uid, None)
        if key is None:
            return
        group = self._groups[key]
        gang = group.done.pop(uid, None) or group.pods.pop(uid).gang
        assert gang is not None
        self._lessened(group, uid, gang)
        if not group.pods and not group.done:
            del self._groups[key]

    def _lessened(self, group: Group, uid: str, gang: Gang) -> None:
        """A pod does not stay, or needs nothing any more. Where the plan was for it, or is for too few without it, it is given up."""
        group.offered.pop(uid, None)
        group.placed.discard(uid)
        together = len(group.planned.keys() | self._running(group, "", gang))
        if uid in group.planned or (group.planned and together < gang.least):
            if not group.placed and self.monotonic() > group.since_s + _FLEETING_S:
                self._rest(group, gang)
            self._give_up(group)
            self._view.reservation_released()

    def reservation_expired(self, uid: str) -> None:
        """The reservation of a waiting pod has ended: so does what is kept for the rest of its gang."""
        group = self._groups.get(self._group_of.get(uid, ""))
        if group is None:
            return
        group.placed.discard(uid)  # its Binding never came: it needs room again, and is one more that does
        if uid in group.planned:
            gang = group.pods[uid].gang
            assert gang is not None
            self._give_up(group)
            self._rest(group, gang)

    def _rest(self, group: Group, gang: Gang) -> None:
        """Room was kept for it in vain: others may have it for some time."""
        group.rests_until_s = self._rests.in_vain(gang.namespace, self.monotonic())

    def give_up_all(self) -> None:
        """Keep no room for any gang until it is asked about again."""
        for group in self._groups.values():
            self._give_up(group)

    def planned_node(self, uid: str) -> str:
        """The node that the plan for its gang has for a pod; empty where there is none."""
        group = self._groups.get(self._group_of.get(uid, ""))
        return "" if group is None else group.planned.get(uid, "")

    def narrowed_to_none(self, uid: str) -> None:
        """The pod may not have the node that was planned for it now: what is kept for its gang is in vain, unless some of it run."""
        group = self._groups.get(self._group_of.get(uid, ""))
        gang = None if group is None or uid not in group.planned else group.pods[uid].gang
        if group is not None and gang is not None and not self._running(group, uid, gang):
            self._give_up(group)

    def wake(self) -> None:
        """Have gangs tried again that gave way to others for long enough."""
        now_s = self.monotonic()
        self._rests.forget(now_s)
        for group in self._groups.values():
            if 0 < group.rests_until_s <= now_s:
                group.rests_until_s = 0.0
                self.retry_wanted(waiting_of(group))

    # --- filter ---------------------------------------------------------------------------------

    def find_room(self, state: CycleState, nodes: list[str]) -> Verdict | None:
        """Where a pod may go for its gang's sake; ``None``: wherever it fits."""
        if state.gang is None or state.request is None:
            return None
        pod = state.pod
        return self.verdict(pod.metadata.uid, pod.key, state.gang, state.request, nodes)

    def explain_room(self, request: Request, verdict: Verdict) -> Verdict:
        """``verdict`` with the gangs named that keep room on nodes which would take the request otherwise."""
        return self.room.named(request, verdict)

    def not_admitted(self, state: CycleState, nodes: list[str]) -> None:
        """A pod that may have no room now, whatever there is, was asked about: ``nodes`` are what others say of it."""
        if state.gang is not None:
            self.asked_about(state.pod.metadata.uid, state.gang, nodes)

    def verdict(self, uid: str, pod: str, gang: Gang, request: Request, nodes: list[str]) -> Verdict | None:
        """Where the pod may go for its gang's sake; ``None``: wherever it fits, enough of its gang run already."""
        group = self._groups.get(gang.key) or Group()
        if uid not in group.pods:
            # kube-scheduler's watch is ahead of ours, or behind: what nobody tells the end of is not kept.
            self._early[uid] = True
            if len(self._early) > _EARLY_ONES:
                self._early.popitem(last=False)
            return _refused(nodes, f"gang {gang.key}: this pod is not known yet")
        if group.pods[uid].leaving:
            return _refused(nodes, f"gang {gang.key}: this pod is being deleted")
        group.placed.discard(uid)
        running = self._running(group, uid, gang)
        need = gang.least - len(running)
        if need <= 0:
            return None
        there = there_of(group, gang)
        if uid not in group.offered:
            group.news_s = self.monotonic()
        remember(group, uid, nodes)
        if there < gang.least:
            self._give_up(group)
            return _refused(
                nodes, f"gang {gang.key} needs {pods(gang.least)} together: there {are(there)} {there}"
            )
        if group.planned and self._is_kept(group):
            node = group.planned.get(uid)
            if node is None and len(group.planned.keys() | running) >= gang.least:
                return _refused(
                    nodes,
                    f"gang {gang.key}: its first {pods(gang.least)} {are(gang.least)} bound before others",
                )
            if node in nodes:
                self._keep(group)
                self.satisfied(uid)
                return _there_alone(node)
        self._give_up(group)
        if why := self._gives_way(group, gang, need, running):
            return _refused(nodes, f"gang {gang.key}: {why}")
        return self._plan(group, uid, pod, gang, request, need, running)

    def _gives_way(self, group: Group, gang: Gang, need: int, running: set[str]) -> str:
        """Why no room is kept for it now, whatever there is; empty where it is."""
        if self.monotonic() < group.rests_until_s:
            return "its pods have not come together in time, it gives way to others"
        namespace = gang.namespace
        if self.monotonic() < self._rests.until_s(namespace):
            group.rests_until_s = self._rests.until_s(namespace)
            return f"room was kept in vain for gangs of namespace {namespace}, it gives way to others"
        asked = sum(other not in running for other in group.offered)
        if self._rests.is_wary(namespace) and asked < need:
            return (
                f"room was kept in vain for gangs of namespace {namespace}, so it is kept once kube-scheduler has asked "
                f"about all {pods(need)} that need it: it has about {asked}"
            )
        return ""

    def _plan(
        self, group: Group, uid: str, pod: str, gang: Gang, request: Request, need: int, running: set[str]
    ) -> Verdict:
        nodes = group.offered[uid]
        candidates = candidates_of(group, (uid, pod, request), running)
        if len(candidates) < need:
            wrong = [one for one in group.pods.values() if one.problem]
            why = f"pod {wrong[0].pod}: {wrong[0].problem}" if wrong else _WITHOUT_GPU
            return _refused(nodes, f"gang {gang.key} needs {pods(gang.least)} together: {why}")
        # Room that others make by their end is its own.
        lifted = self._ledger.nominations.suspend(group.pods)
        barren = self._reserve_all(group, uid, largest_first(candidates[:need]), need)
        if barren is not None:
            found = len(group.planned)
            self._give_up(group)
            if self._others_may_do(group, candidates, need, nodes):
                # As many as possible find room if the smallest have theirs first.
                others = [*candidates[:1], *sorted(candidates[1:], key=size_of)]
                if self._reserve_all(group, uid, others, need) is None:
                    barren = None
                else:
                    self._give_up(group)
        if barren is not None:
            asked, offered, refusal = barren
            head = f"gang {gang.key} needs room for {pods(need)} at once and there is room for {found}"
            refused = self.room.named(asked, self._ledger.filter(asked, offered))
            self._ledger.nominations.restore(lifted)
            if refusal:
                return _refused(nodes, f"{head}: {refusal}")
            reasons = refused.refused | refused.hopeless
            # Who finds room here for itself has it from the others, who would have none.
            return Verdict([], {name: f"{head}: {reasons.get(name, _THE_OTHERS)}" for name in nodes}, {})
        group.since_s = group.news_s = self.monotonic()
        self._keep(group)
        self.retry_wanted([other for other in group.planned if other != uid])
        return _there_alone(group.planned[uid])

    def _reserve_all(
        self, group: Group, first: str, wanted: list[Candidate], need: int
    ) -> tuple[Request, list[str], str] | None:
        """Give room to ``need`` of ``wanted``, ``first`` among them; else who had none first: its request, its nodes, and what refused it."""
        nodes = group.offered[first]
        none_for: set[tuple[Request, int]] = set()
        barren: tuple[Request, list[str], str] | None = None
        spare = len(wanted) - need
        for other, key, asked in wanted:
            if len(group.planned) == need:
                break
            offered = group.offered.get(other, nodes)
            alike = (asked, id(offered))
            # What comes to be taken only grows: who asks for the same on the same nodes has none either.
            vain = alike in none_for and self._ledger.held(other) is None
            refusal = "" if vain else self._quotas.refusal(other)
            node = None if vain or refusal else self._reserve(other, key, asked, offered)
            if node is not None and (refusal := self._quotas.passed(other)):
                self.reservation_cancelled(other)
                node = None
            if node is not None:
                group.planned[other] = node
                continue
            if not refusal:
                none_for.add(alike)
            barren = barren or (asked, offered, refusal)
            spare -= 1
            if other == first or spare < 0:
                return barren
        return None

    @staticmethod
    def _others_may_do(group: Group, candidates: list[Candidate], need: int, nodes: list[str]) -> bool:
        """Whether there are more than are needed, and not all of them want the same."""
        kinds = {(asked, id(group.offered.get(uid, nodes))) for uid, _, asked in candidates}
        return len(candidates) > need and len(kinds) > 1

    def asked_about(self, uid: str, gang: Gang, nodes: list[str]) -> None:
        """A pod that may have no room now, for whatever there is, was asked about: ``nodes`` are what others say of it."""
        group = self._groups.get(gang.key)
        if group is not None and uid in group.pods and not group.pods[uid].leaving:
            remember(group, uid, nodes)

    def standing(self, uid: str) -> Standing | None:
        """How its gang stands for a pod that waits; ``None`` for one without a gang, or that asks for no GPU."""
        group = self._groups.get(self._group_of.get(uid, ""))
        record = None if group is None else group.pods.get(uid)
        if group is None or record is None or record.gang is None:
            return None
        resting = self.monotonic() < group.rests_until_s
        return standing_of(group, record, self._running(group, uid, record.gang), resting=resting)

    def together_with(self, uid: str) -> list[str]:
        """UIDs of all pods of a pod's gang; of one without a gang its own."""
        group = self._groups.get(self._group_of.get(uid, ""))
        return [uid] if group is None else list(group.pods)

    def wanting(self, uid: str, nodes: list[str]) -> list[Wanting]:
        """Who of a pod's gang needs room at once with it, the largest first, for which pods of others may have to end.

        ``nodes`` may take the pod itself. Empty where the gang waits for something else, or room is being made for it
        already; and before each of them was asked about: nobody ends on a node that the pod may never have.
        """
        group = self._groups.get(self._group_of.get(uid, ""))
        record = None if group is None else group.pods.get(uid)
        if group is None or record is None or record.leaving:
            return []
        gang = record.gang
        assert gang is not None
        running = self._running(group, uid, gang)
        need = max(gang.least - len(running), 1)
        waits = there_of(group, gang) < gang.least or bool(group.planned)
        if waits or record.request is None or any(map(self._ledger.nominations.node_of, group.pods)):
            return []
        if self.monotonic() < group.rests_until_s:
            return []
        chosen = candidates_of(group, (uid, record.pod, record.request), running)[:need]
        if len(chosen) < need or any(other != uid and other not in group.offered for other, _, _ in chosen):
            return []
        return [
            Wanting(group.pods[other], asked, group.offered.get(other, nodes))
            for other, _, asked in largest_first(chosen)
        ]

    def keepers(self, request: Request, nodes: Collection[str]) -> dict[str, str]:
        """Those of ``nodes`` that would take the request if gangs kept no room there, and these gangs, in words."""
        return self.room.keepers(request, nodes)

    def kept_rooms(self) -> Iterator[GangRoom]:
        """What is kept now."""
        now_s = self.monotonic()
        for key, group, held in self.room.kept():
            gang = group.pods[held[0].uid].gang
            assert gang is not None
            yield GangRoom(key, self.come(group, gang), gang.least, until_s(group) - now_s, held)

    def _reserve(self, uid: str, pod: str, request: Request, nodes: list[str]) -> str | None:
        held = self._ledger.held(uid)
        if held is not None:  # an earlier Binding may still arrive there
            return held.node if held.node in nodes else None
        node = self._ledger.best(request, nodes)
        if node is not None:
            self._ledger.reserve(uid, pod, request, node)
        return node

    def _is_kept(self, group: Group) -> bool:
        held = self._ledger.held
        return all((one := held(uid)) and one.node == node for uid, node in group.planned.items())

    def _keep(self, group: Group) -> None:
        """Keep its room for another while, unless it has had it for long enough."""
        self.room.note(group)
        if self.monotonic() >= until_s(group):
            return
        for uid in group.planned.keys() - group.placed:
            self.reserved(uid, group.pods[uid].pod)

    def _give_up(self, group: Group) -> None:
        planned = [uid for uid in group.planned if uid not in group.placed]
        group.planned.clear()
        group.here.clear()
        group.come.clear()
        for uid in planned:
            self.reservation_cancelled(uid)

    # --- bind -----------------------------------------------------------------------------------

    async def permit(self, pod: PodToBind) -> None:
        """Return once enough of the gang have come to be bound; raises ``NotPermitted`` when they do not."""
        uid, gang = pod.uid, pod.gang
        if gang is None:
            return
        group = self._groups.get(gang.key) or Group()
        if (known := group.pods.get(uid)) is not None and known.leaving:
            raise NotPermitted(f"gang {gang.key}: this pod is being deleted")
        if len(self._running(group, uid, gang)) < gang.least:
            if uid not in group.planned:
                raise NotPermitted(f"gang {gang.key}: room for all of its pods has to be found first")
            self._keep(group)
            group.here.add(uid)
            group.come.add(uid)
            group.came_s = asyncio.get_running_loop().time()
            if self.come(group, gang) >= gang.least:
                self._open(group)
            else:
                await self._wait(group, uid, gang)
        group.placed.add(uid)

    def _open(self, group: Group) -> None:
        """Let all go that have come: who is here now, and who gave up meanwhile as soon as it comes again."""
        gave_up = group.come - group.here
        group.placed |= group.come
        group.here, group.come = set(), set()
        group.opened.set()
        group.opened = asyncio.Event()
        if gave_up:
            self.retry_wanted(sorted(gave_up))

    async def _wait(self, group: Group, uid: str, gang: Gang) -> None:
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
            come = self.come(group, gang)
            raise NotPermitted(
                f"gang {gang.key}: {come} of {pods(gang.least)} {have(come)} come to be bound, room is kept for the others"
            ) from None
        finally:
            group.here.discard(uid)
        if uid not in group.placed:
            raise NotPermitted(f"gang {gang.key}: the room that was kept for it was given up")


def _there_alone(node: str) -> Verdict:
    # Why not on the others nobody hears of a pod that has a node, and to write thousands of reasons takes longer than to decide.
    return Verdict([node], {}, {})


def _refused(nodes: list[str], reason: str) -> Verdict:
    return Verdict([], dict.fromkeys(nodes, reason), {})
