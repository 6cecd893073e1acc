"""Gangs: room for all of a gang's pods is reserved at once, and they are bound together or not at all.

kube-scheduler filters pod by pod. The first filter request decides for the whole gang: the ledger reserves shares for as many
pods as must run together, or for none. From then on each of them is offered only its planned node, and no other
pod gets that room, so two gangs never each hold half of what the other needs. In ``Permit`` the pods wait for each other,
for a few seconds, or longer while more of them arrive. kube-scheduler retries a pod whose wait times out. Such a pod
keeps its room and counts as arrived: with a gang of hundreds the first pods time out long before the last arrive.
If not all have arrived after a minute, or a pod is deleted, the room of the whole gang is released, never
only a part, and for some seconds it is left to other pods.

The results of kube-scheduler's own filters for a pod (CPU, taints, affinity) are known from the nodes that it offered in
its last filter request for the pod. Before the first such request, the nodes of the requesting pod are used.
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
from gpushare.reasons.phrases import are, pods
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
    existing_count,
    pending_of,
    remember,
    succeeded_of,
)
from gpushare.scheduler.plugins.gangs.reservations import GangReservations, until_s

#: Seconds that ``Permit`` waits after the last arrival of its gang, and in total; less than kube-scheduler's timeout.
#: kube-scheduler handles 20 to 100 pods a second: of a gang of hundreds, the first are retried after the last have arrived.
PATIENCE_S: Final = 3.0
MOST_PATIENCE_S: Final = 8.0
#: Seconds between checks of gangs that give way to others.
_WAKE_S: Final = 1.0
#: Reservations released within this time do not count as unused room.
_FLEETING_S: Final = 5.0
#: Maximum number of remembered pods that kube-scheduler filtered before our watch showed them; the oldest are dropped.
_MOST_FILTERED_TOO_EARLY: Final = 4096
_THE_OTHERS: Final = "the capacity here is needed by other pods of the gang"
_WITHOUT_GPU: Final = "its pods without a GPU must be bound first"


class Gangs:
    """Plans whole gangs. Not thread-safe.

    ``quotas``: decide whether a pod is admitted. ``governs``: whether a ResourcePolicy restricts the pods of a namespace, pods without a
    GPU included.
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
        self._filtered_too_early: OrderedDict[str, bool] = OrderedDict()
        """Pods that kube-scheduler filtered before our watch showed them."""
        self.reserved: Event[str, str] = Event()
        """Called for each pod (UID, ``namespace/name``) whose reservation starts or is prolonged."""
        self.reservation_cancelled: Event[str] = Event()
        """Called for each UID whose reservation is cancelled: the core releases the share unless a Binding is in flight."""
        self.retry_wanted: Event[Iterable[str]] = Event()
        """Called with the UIDs of pods that kube-scheduler should retry soon; it may have parked them as unschedulable."""
        self.satisfied: Event[str] = Event()
        """Called for each filtered pod that has its room: a retry is no longer needed."""
        self.room = GangReservations(view.ledger)
        """Which gangs have reservations on which nodes."""
        self._failures = Rests()
        self.retry_wanted.subscribe(retry)
        self.satisfied.subscribe(placed)
        view.pod_changing.subscribe(self.upsert)
        view.pod_ended.subscribe(self._ended)

    def tasks(self) -> list[Task]:
        """The tasks that run as long as the process."""
        return [("gangs", self.run())]

    async def run(self) -> None:
        """Retry gangs that gave way to others, until cancelled."""
        while True:
            await self._clock.sleep(_WAKE_S)
            self.wake()

    def __len__(self) -> int:
        return len(self._groups)

    def _running(self, group: Group, but: str, gang: Gang) -> set[str]:
        """Pods other than ``but`` that need no room: bound, admitted by ``Permit``, succeeded, or without a GPU and unrestricted.

        A pod that is being deleted is not among them: its replacement needs room together with other replacements.
        """
        bound = {
            uid
            for uid, record in group.pods.items()
            if not record.leaving
            and (
                record.node
                or (record.bystander and not self._restricts_non_gpu_pods(record.pod.partition("/")[0]))
            )
        }
        return (bound | group.placed | succeeded_of(group, gang)) - {but}

    def arrived(self, group: Group, gang: Gang) -> int:
        """How many of its pods run, or have reached ``Permit``."""
        return len(self._running(group, "", gang) | group.arrived)

    def _restricts_non_gpu_pods(self, namespace: str) -> bool:
        return self._governs(namespace) or namespace in self._quotas.followed

    # --- informer events -------------------------------------------------------------------------

    def _ended(self, record: PodRecord, gone: bool) -> None:  # noqa: FBT001 - listeners are called by position
        if record.succeeded and not gone:
            self.upsert(record)
        else:
            self.remove(record.uid)

    def upsert(self, record: PodRecord) -> None:
        """A pod was added or changed. It may have left its gang, or moved to another one."""
        known = self._group_of.get(record.uid)
        if record.gang is None or known not in (None, record.gang.key):
            self.remove(record.uid)
        if record.gang is None:
            return
        self._group_of[record.uid] = record.gang.key
        group = self._groups.setdefault(record.gang.key, Group())
        if record.succeeded:
            group.succeeded[record.uid] = record.gang
            group.pods.pop(record.uid, None)
            group.planned.pop(record.uid, None)  # its share is released, while the others' reservations stay
            self._pod_left_plan(group, record.uid, record.gang)
            return
        previous = group.pods.get(record.uid)
        new, early = previous is None, self._filtered_too_early.pop(record.uid, False)
        group.pods[record.uid] = record
        if record.leaving:
            if previous is None or not previous.leaving:
                self._pod_left_plan(group, record.uid, record.gang)
        elif record.node:
            group.offered.pop(record.uid, None)
            if record.bystander and previous is not None and not previous.node:
                # Others may have been refused until it was bound.
                self.retry_wanted([uid for uid in pending_of(group) if not group.pods[uid].bystander])
        elif new and (existing := existing_count(group, record.gang)) < record.gang.least:
            if early:
                self.retry_wanted([record.uid])  # the reason of its refusal was not the right one
        elif new:
            # kube-scheduler may have filtered it before we knew it, and the others while it was missing.
            self.retry_wanted(pending_of(group) if existing == record.gang.least else [record.uid])

    def remove(self, uid: str) -> None:
        """A pod ended or was deleted. The reservations of its gang are released if they are no longer sufficient."""
        key = self._group_of.pop(uid, None)
        if key is None:
            return
        group = self._groups[key]
        gang = group.succeeded.pop(uid, None) or group.pods.pop(uid).gang
        assert gang is not None
        self._pod_left_plan(group, uid, gang)
        if not group.pods and not group.succeeded:
            del self._groups[key]

    def _pod_left_plan(self, group: Group, uid: str, gang: Gang) -> None:
        """A pod ends, or needs no room any more. Release the plan if it includes the pod, or is too small without it."""
        group.offered.pop(uid, None)
        group.placed.discard(uid)
        together = len(group.planned.keys() | self._running(group, "", gang))
        if uid in group.planned or (group.planned and together < gang.least):
            if not group.placed and self.monotonic() > group.planned_at_s + _FLEETING_S:
                self._back_off(group, gang)
            self._give_up(group)
            self._view.reservation_released()

    def reservation_expired(self, uid: str) -> None:
        """The reservation of a pending pod expired: release those of the rest of its gang."""
        group = self._groups.get(self._group_of.get(uid, ""))
        if group is None:
            return
        group.placed.discard(uid)  # it was never bound, so it needs room again
        if uid in group.planned:
            gang = group.pods[uid].gang
            assert gang is not None
            self._give_up(group)
            self._back_off(group, gang)

    def _back_off(self, group: Group, gang: Gang) -> None:
        """The gang did not use its room: give way to others for some time."""
        group.rests_until_s = self._failures.record_failure(gang.namespace, self.monotonic())

    def give_up_all(self) -> None:
        """Release the reservations of all gangs."""
        for group in self._groups.values():
            self._give_up(group)

    def planned_node(self, uid: str) -> str:
        """The node that its gang's plan has for the pod; empty if there is none."""
        group = self._groups.get(self._group_of.get(uid, ""))
        return "" if group is None else group.planned.get(uid, "")

    def narrowed_to_none(self, uid: str) -> None:
        """The pod may not have its planned node: release its gang's reservations, unless other pods of it run."""
        group = self._groups.get(self._group_of.get(uid, ""))
        gang = None if group is None or uid not in group.planned else group.pods[uid].gang
        if group is not None and gang is not None and not self._running(group, uid, gang):
            self._give_up(group)

    def wake(self) -> None:
        """Retry gangs that gave way to others for long enough."""
        now_s = self.monotonic()
        self._failures.forget(now_s)
        for group in self._groups.values():
            if 0 < group.rests_until_s <= now_s:
                group.rests_until_s = 0.0
                self.retry_wanted(pending_of(group))

    # --- filter ---------------------------------------------------------------------------------

    def find_room(self, state: CycleState, nodes: list[str]) -> Verdict | None:
        """Which nodes its gang's plan leaves to the pod; ``None`` if the ledger decides."""
        if state.gang is None or state.request is None:
            return None
        pod = state.pod
        return self.verdict(pod.metadata.uid, pod.key, state.gang, state.request, nodes)

    def explain_room(self, request: Request, verdict: Verdict) -> Verdict:
        """``verdict``, with the gangs named in the reasons of nodes that would take the request without their reservations."""
        return self.room.with_gangs_named(request, verdict)

    def not_admitted(self, state: CycleState, nodes: list[str]) -> None:
        """A pod was refused before the search for room: remember the nodes that kube-scheduler's own filters passed."""
        if state.gang is not None:
            self.remember_offer(state.pod.metadata.uid, state.gang, nodes)

    def verdict(self, uid: str, pod: str, gang: Gang, request: Request, nodes: list[str]) -> Verdict | None:
        """Which nodes its gang's plan leaves to the pod; ``None`` if enough of the gang run already, so that the ledger decides."""
        group = self._groups.get(gang.key) or Group()
        if uid not in group.pods:
            # kube-scheduler's watch is ahead of ours, or behind. The pod is not added to the gang, as its deletion might never be reported.
            self._filtered_too_early[uid] = True
            if len(self._filtered_too_early) > _MOST_FILTERED_TOO_EARLY:
                self._filtered_too_early.popitem(last=False)
            return _refused(nodes, f"gang {gang.key}: this pod is not known yet")
        if group.pods[uid].leaving:
            return _refused(nodes, f"gang {gang.key}: this pod is being deleted")
        group.placed.discard(uid)
        running = self._running(group, uid, gang)
        need = gang.least - len(running)
        if need <= 0:
            return None
        existing = existing_count(group, gang)
        if uid not in group.offered:
            group.last_new_request_s = self.monotonic()
        remember(group, uid, nodes)
        if existing < gang.least:
            self._give_up(group)
            return _refused(
                nodes, f"gang {gang.key} needs {pods(gang.least)} together: there {are(existing)} {existing}"
            )
        if group.planned and self._is_kept(group):
            node = group.planned.get(uid)
            if node is None and len(group.planned.keys() | running) >= gang.least:
                return _refused(
                    nodes,
                    f"gang {gang.key}: its first {pods(gang.least)} {are(gang.least)} bound before the others",
                )
            if node in nodes:
                self._prolong(group)
                self.satisfied(uid)
                return _only(node)
        self._give_up(group)
        if reason := self._backoff_reason(group, gang, need, running):
            return _refused(nodes, f"gang {gang.key}: {reason}")
        return self._plan(group, uid, pod, gang, request, need, running)

    def _backoff_reason(self, group: Group, gang: Gang, need: int, running: set[str]) -> str:
        """Why the gang gets no reservations now; empty if it may."""
        if self.monotonic() < group.rests_until_s:
            return "it did not complete in time and is backing off to let others run"
        namespace = gang.namespace
        if self.monotonic() < self._failures.until_s(namespace):
            group.rests_until_s = self._failures.until_s(namespace)
            return f"earlier gangs of namespace {namespace} let their reservations expire, so this one is backing off"
        requested = sum(other not in running for other in group.offered)
        if self._failures.requires_every_request(namespace) and requested < need:
            return (
                f"earlier gangs of namespace {namespace} let their reservations expire, so this one gets a reservation only once "
                f"kube-scheduler has tried all {pods(need)} that it needs ({requested} so far)"
            )
        return ""

    def _plan(
        self, group: Group, uid: str, pod: str, gang: Gang, request: Request, need: int, running: set[str]
    ) -> Verdict:
        nodes = group.offered[uid]
        candidates = candidates_of(group, (uid, pod, request), running)
        if len(candidates) < need:
            invalid = [record for record in group.pods.values() if record.problem]
            reason = f"pod {invalid[0].pod}: {invalid[0].problem}" if invalid else _WITHOUT_GPU
            return _refused(nodes, f"gang {gang.key} needs {pods(gang.least)} together: {reason}")
        # Room that evictions make for this gang counts as free for it.
        suspended = self._ledger.nominations.suspend(group.pods)
        with_room = self._most_with_room(group, candidates, need, nodes)
        failure: tuple[Request, list[str], str] | None = (request, nodes, "")
        if with_room >= need:
            failure = self._reserve_all(group, uid, largest_first(candidates[:need]), need)
        if failure is not None and with_room >= need:
            with_room = len(group.planned)
            self._give_up(group)
            if self._other_choice_may_fit(group, candidates, need, nodes):
                # Smallest first lets as many pods as possible find room.
                others = [*candidates[:1], *sorted(candidates[1:], key=size_of)]
                if self._reserve_all(group, uid, others, need) is None:
                    failure = None
                else:
                    self._give_up(group)
        if failure is not None:
            failed_request, offered, refusal = failure
            head = f"gang {gang.key} needs capacity for {pods(need)} at once, and there is capacity for {with_room}"
            refused = self.room.with_gangs_named(failed_request, self._ledger.filter(failed_request, offered))
            self._ledger.nominations.restore(suspended)
            if refusal:
                return _refused(nodes, f"{head}: {refusal}")
            reasons = refused.refused | refused.hopeless
            # A node may have room for this pod alone, but then the other pods would lack room.
            return Verdict([], {name: f"{head}: {reasons.get(name, _THE_OTHERS)}" for name in nodes}, {})
        group.planned_at_s = group.last_new_request_s = self.monotonic()
        self._prolong(group)
        self.retry_wanted([other for other in group.planned if other != uid])
        return _only(group.planned[uid])

    def _reserve_all(
        self, group: Group, first: str, wanted: list[Candidate], need: int
    ) -> tuple[Request, list[str], str] | None:
        """Reserve room for ``need`` pods of ``wanted``, including ``first``.

        Returns ``None`` on success; otherwise request, nodes and quota refusal (or empty) of the first pod without room.
        """
        nodes = group.offered[first]
        failed_kinds: set[tuple[Request, int]] = set()
        failure: tuple[Request, list[str], str] | None = None
        spare = len(wanted) - need
        for other, key, request in wanted:
            if len(group.planned) == need:
                break
            offered = group.offered.get(other, nodes)
            kind = (request, id(offered))
            # Free room only shrinks here, so another pod with the same request and nodes fails as well.
            known_to_fail = kind in failed_kinds and self._ledger.held(other) is None
            refusal = "" if known_to_fail else self._quotas.refusal(other)
            node = None if known_to_fail or refusal else self._reserve(other, key, request, offered)
            if node is not None and (refusal := self._quotas.passed(other)):
                self.reservation_cancelled(other)
                node = None
            if node is not None:
                group.planned[other] = node
                continue
            if not refusal:
                failed_kinds.add(kind)
            failure = failure or (request, offered, refusal)
            spare -= 1
            if other == first or spare < 0:
                return failure
        return None

    def _most_with_room(self, group: Group, candidates: list[Candidate], need: int, nodes: list[str]) -> int:
        """For how many of the pods there may be room, ``need`` at most: an upper bound without a trial, which takes long for large gangs."""
        request = candidates[0][2]
        if not request.is_ordinary or len(_kinds(group, candidates, nodes)) > 1:
            return need
        holding = sum(self._ledger.held(uid) is not None for uid, _, _ in candidates)
        return min(holding + self._ledger.most_pods(request, nodes), need)

    @staticmethod
    def _other_choice_may_fit(group: Group, candidates: list[Candidate], need: int, nodes: list[str]) -> bool:
        """Whether another choice of pods may succeed: there are more candidates than needed, with different requests or nodes."""
        return len(candidates) > need and len(_kinds(group, candidates, nodes)) > 1

    def remember_offer(self, uid: str, gang: Gang, nodes: list[str]) -> None:
        """Remember ``nodes`` as offered for a pod that was refused before the search for room."""
        group = self._groups.get(gang.key)
        if group is not None and uid in group.pods and not group.pods[uid].leaving:
            remember(group, uid, nodes)

    def standing(self, uid: str) -> Standing | None:
        """The state of a pending pod's gang; ``None`` for a pod without a gang or without a GPU request."""
        group = self._groups.get(self._group_of.get(uid, ""))
        record = None if group is None else group.pods.get(uid)
        if group is None or record is None or record.gang is None or record.request is None:
            return None
        running = self._running(group, uid, record.gang)
        return Standing(
            there=existing_count(group, record.gang),
            running=len(running),
            need=record.gang.least - len(running),
            candidates=candidates_of(group, (uid, record.pod, record.request), running),
            members=group.pods.keys(),
            offered=group.offered,
            wrong=next((one for one in group.pods.values() if one.problem), None),
            planned=group.planned.get(uid, ""),
            is_planned=bool(group.planned),
            resting=self.monotonic() < group.rests_until_s,
        )

    def together_with(self, uid: str) -> list[str]:
        """UIDs of all pods of a pod's gang; only its own for a pod without a gang."""
        group = self._groups.get(self._group_of.get(uid, ""))
        return [uid] if group is None else list(group.pods)

    def wanting(self, uid: str, nodes: list[str]) -> list[Wanting]:
        """The pods of a pod's gang that need room together with it, the largest first, for preemption.

        ``nodes`` are those that may take the pod itself. Empty if the gang is pending for another reason, or if room is being made for it
        already. Also empty until kube-scheduler has filtered each of these pods, so that no pod is evicted on a node that is unsuitable.
        """
        group = self._groups.get(self._group_of.get(uid, ""))
        record = None if group is None else group.pods.get(uid)
        if group is None or record is None or record.leaving:
            return []
        gang = record.gang
        assert gang is not None
        running = self._running(group, uid, gang)
        need = max(gang.least - len(running), 1)
        not_ready = existing_count(group, gang) < gang.least or bool(group.planned)
        if not_ready or record.request is None or any(map(self._ledger.nominations.node_of, group.pods)):
            return []
        if self.monotonic() < group.rests_until_s:
            return []
        chosen = candidates_of(group, (uid, record.pod, record.request), running)[:need]
        if len(chosen) < need or any(other != uid and other not in group.offered for other, _, _ in chosen):
            return []
        return [
            Wanting(group.pods[other], request, group.offered.get(other, nodes))
            for other, _, request in largest_first(chosen)
        ]

    def keepers(self, request: Request, nodes: Collection[str]) -> dict[str, str]:
        """By node, the gangs (in words) whose reservations alone keep the node from taking the request."""
        return self.room.keepers(request, nodes)

    def kept_rooms(self) -> Iterator[GangRoom]:
        """The current reservations of gangs."""
        now_s = self.monotonic()
        for key, group, held in self.room.kept():
            gang = group.pods[held[0].uid].gang
            assert gang is not None
            yield GangRoom(key, self.arrived(group, gang), gang.least, until_s(group) - now_s, held)

    def _reserve(self, uid: str, pod: str, request: Request, nodes: list[str]) -> str | None:
        held = self._ledger.held(uid)
        if held is not None:  # an earlier Binding may still be written
            return held.node if held.node in nodes else None
        node = self._ledger.best(request, nodes)
        if node is not None:
            self._ledger.reserve(uid, pod, request, node)
        return node

    def _is_kept(self, group: Group) -> bool:
        held = self._ledger.held
        return all((one := held(uid)) and one.node == node for uid, node in group.planned.items())

    def _prolong(self, group: Group) -> None:
        """Prolong the gang's reservations, unless they have reached their maximum time."""
        self.room.note(group)
        if self.monotonic() >= until_s(group):
            return
        for uid in group.planned.keys() - group.placed:
            self.reserved(uid, group.pods[uid].pod)

    def _give_up(self, group: Group) -> None:
        planned = [uid for uid in group.planned if uid not in group.placed]
        group.planned.clear()
        group.in_permit.clear()
        group.arrived.clear()
        for uid in planned:
            self.reservation_cancelled(uid)

    # --- bind -----------------------------------------------------------------------------------

    async def permit(self, pod: PodToBind) -> None:
        """Return when enough of the gang have arrived; raises ``NotPermitted`` if they do not in time."""
        uid, gang = pod.uid, pod.gang
        if gang is None:
            return
        group = self._groups.get(gang.key) or Group()
        if (known := group.pods.get(uid)) is not None and known.leaving:
            raise NotPermitted(f"gang {gang.key}: this pod is being deleted")
        if len(self._running(group, uid, gang)) < gang.least:
            if uid not in group.planned:
                raise NotPermitted(f"gang {gang.key}: capacity for all of its pods must be reserved first")
            self._prolong(group)
            group.in_permit.add(uid)
            group.arrived.add(uid)
            group.last_arrival_s = asyncio.get_running_loop().time()
            if self.arrived(group, gang) >= gang.least:
                self._admit(group)
            else:
                await self._wait(group, uid, gang)
        group.placed.add(uid)

    def _admit(self, group: Group) -> None:
        """Admit all pods that have arrived: those that wait now, and those that timed out, at their next attempt."""
        timed_out = group.arrived - group.in_permit
        group.placed |= group.arrived
        group.in_permit, group.arrived = set(), set()
        group.opened.set()
        group.opened = asyncio.Event()
        if timed_out:
            self.retry_wanted(sorted(timed_out))

    async def _wait(self, group: Group, uid: str, gang: Gang) -> None:
        opened, loop = group.opened, asyncio.get_running_loop()
        until_s = loop.time() + self._most_patience_s
        try:
            while not opened.is_set():
                timeout_s = min(group.last_arrival_s + self._patience_s, until_s) - loop.time()
                if timeout_s <= 0:
                    raise TimeoutError
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_s):
                        await opened.wait()
        except TimeoutError:
            arrived = self.arrived(group, gang)
            raise NotPermitted(
                f"gang {gang.key}: {arrived} of {pods(gang.least)} {are(arrived)} ready to be bound, and capacity is reserved for the others"
            ) from None
        finally:
            group.in_permit.discard(uid)
        if uid not in group.placed:
            raise NotPermitted(f"gang {gang.key}: its reservation was released")


def _kinds(group: Group, candidates: list[Candidate], nodes: list[str]) -> set[tuple[Request, int]]:
    """The different requests, with the identity of the list of offered nodes (``nodes`` before the first filter request)."""
    return {(request, id(group.offered.get(uid, nodes))) for uid, _, request in candidates}


def _only(node: str) -> Verdict:
    # Reasons of other nodes are not shown for a pod that has a node, and encoding thousands of them takes longer than the decision.
    return Verdict([node], {}, {})


def _refused(nodes: list[str], reason: str) -> Verdict:
    return Verdict([], dict.fromkeys(nodes, reason), {})
