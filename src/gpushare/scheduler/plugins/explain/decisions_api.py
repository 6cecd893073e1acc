"""The scheduler's decisions over HTTP. Read-only.

``GET /gpushare/decisions``: every pending pod; with ``/oldest`` appended, the ``MOST_LISTED`` that are pending longest. ``GET /gpushare/decisions/NAMESPACE/NAME``: the record of one pod; with ``/nodes``
appended, also the answer for each node. ``GET /gpushare/decisions/kept``: room reserved for gangs. Users read these through the API
server's proxy (``services/proxy``) with a token (``gpushare.httpserver.authorization``); the verbs are not served there. Times are seconds
since 1970.
"""

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from gpushare.api.allocation.allocation import Allocation, GpuShare
from gpushare.api.node.device import Placement
from gpushare.api.node.enforcement_text import not_held
from gpushare.api.node.topology import MOST_GPUS
from gpushare.api.request.describe import asks_text
from gpushare.api.request.request import Request
from gpushare.httpserver.exchange import Refusal
from gpushare.ledger.fit.reasons import gone_text, unhealthy_text
from gpushare.ledger.placement.policies import POLICIES
from gpushare.reasons.summary import Example, Summary
from gpushare.scheduler.framework.preemption_results import Preemption, Victim
from gpushare.scheduler.plugins.explain.decision_log import (
    DECISIONS,
    Decision,
    DecisionLog,
    PendingPod,
    Placed,
)
from gpushare.scheduler.plugins.explain.kept_room_api import (
    GangReservation,
    Reservation,
    all_reservations,
    gang_reservations,
)
from gpushare.scheduler.plugins.explain.pending_pods import (
    each_non_gpu_pod,
    each_pending_pod,
    longest_first,
    pending_pod,
)

#: Pending pods that the dashboard shows.
MOST_LISTED: Final = 1000


class Scheduler(msgspec.Struct, frozen=True, rename="camel"):
    """The responding scheduler. ``first_asked``: when kube-scheduler first asked it; ``None``: never. ``leads``: ``None`` if unknown."""

    name: str
    started: float
    first_asked: float | None
    last_asked: float | None
    leads: bool | None = None


class PendingPods(msgspec.Struct, frozen=True, rename="camel"):
    """All pending pods. ``besides``: those that request no GPU of ours, held back by a ResourcePolicy or an elastic quota.

    ``kept``: reserved room on GPUs, and for which gang or pod it is reserved. ``count`` and ``by_category``: numbers of all pending pods
    with GPUs, also where only some are listed.
    """

    scheduler: Scheduler
    waiting: list[PendingPod]
    besides: list[PendingPod]
    kept: list[Reservation]
    count: int
    by_category: dict[str, int]


class GangReservations(msgspec.Struct, frozen=True, rename="camel"):
    """Room reserved for gangs."""

    scheduler: Scheduler
    kept: list[GangReservation]


class Gpu(msgspec.Struct, frozen=True, rename="camel"):
    """A candidate GPU: free MiB before and after the allocation, pods on it, and MiB that it takes from the expected pods (``grown``).

    If the whole GPU is allocated to a pod that requested memory, the memory beyond the request counts as left over: the choice goes by it.
    """

    index: int
    free_mib: int = msgspec.field(name="freeMiB")
    left_mib: int = msgspec.field(name="leftMiB")
    pods: int
    grown: int
    chosen: bool
    uuid: str = ""


class Choice(msgspec.Struct, frozen=True, rename="camel"):
    """The GPUs that were chosen on the node, by which placement policy, and the candidates."""

    node: str
    at: float
    placement: str
    why: str
    gpus: list[Gpu]


class Share(msgspec.Struct, frozen=True, rename="camel"):
    """The pod's share of a GPU. ``out_of_service``: why the GPU takes no new pods; empty if it does.

    ``containers``: the containers that have a part of the share. Left out if all containers of the pod have the same GPUs.
    """

    index: int
    uuid: str
    units: int
    mib: int = msgspec.field(name="MiB")
    core_percent: int
    out_of_service: str = ""
    containers: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class Holding(msgspec.Struct, frozen=True, rename="camel"):
    """The pod's allocation in the ledger. ``confirmed``: the API server has reported it.

    ``not_held``: why the node does not enforce the allocation on containers now; empty if it does or that is not known.
    """

    node: str
    confirmed: bool
    gpus: list[Share]
    not_held: str = ""


class Scored(msgspec.Struct, frozen=True, rename="camel"):
    """The best of ``nodes`` nodes, by how much each scores above the lowest, and how many share the top score."""

    nodes: int
    equals: int
    best: list[tuple[str, int]]


class Bound(msgspec.Struct, frozen=True, rename="camel"):
    """Outcome of the verb ``bind``."""

    node: str
    at: float
    error: str


class EvictedFor(msgspec.Struct, frozen=True, rename="camel"):
    """A pending pod for which this pod is, or would be, evicted; see ``Preemption``."""

    pod: str
    by: str
    node: str


class Record(msgspec.Struct, frozen=True, rename="camel"):
    """All that is known about one pod. ``state``: ``waiting``, ``bound`` or ``unknown``.

    ``asked`` to ``bind`` describe this scheduler's last decision. They are ``None`` if it made none; ``said`` explains that in words.
    ``not_offered``: number of nodes with GPUs that kube-scheduler did not ask about. ``kept``: the node on which room is being made for
    the pod. ``preemption``: the victims found last that would make room for it; ``awaited``: those of them that are still there.
    ``ends_for``: pending pods for which this pod is evicted. ``nodes``: the answer for each node, if requested and still recorded.
    """

    scheduler: Scheduler
    key: str
    uid: str
    state: str
    said: str
    waiting: PendingPod | None
    asks: str
    asked: float | None
    answer: Summary | None
    left_out: str
    not_offered: int
    scores: Scored | None
    choice: Choice | None
    bind: Bound | None
    holds: Holding | None
    kept: str
    preemption: Preemption | None
    awaited: list[Victim]
    ends_for: list[EvictedFor]
    nodes: list[Example] | None


class DecisionPages:
    """Builds the responses from the decision log."""

    def __init__(self, decisions: DecisionLog) -> None:
        self._decisions = decisions
        self._view = decisions.view
        self._name = socket.gethostname()

    async def pending_pods(self, most: int | None = None) -> PendingPods:
        """All pending pods, or the ``most`` that are pending longest. Yields to other tasks, as there may be thousands."""
        pending = await _collected(each_pending_pod(self._decisions))
        non_gpu_pods = await _collected(each_non_gpu_pod(self._decisions))
        return PendingPods(
            self._scheduler(),
            longest_first(pending)[:most],
            longest_first(non_gpu_pods)[:most],
            all_reservations(self._view, self._decisions.gangs)[:most],
            len(pending),
            Counter(pod.category for pod in pending),
        )

    def gang_reservations(self) -> GangReservations:
        """Room currently reserved for gangs."""
        return GangReservations(
            self._scheduler(), gang_reservations(self._decisions.gangs, self._decisions.now_s)
        )

    def record(self, key: str, *, each: bool = False) -> Record:
        """All that is known about the pod ``namespace/name``; ``each``: also the answer for each node."""
        decisions, view = self._decisions, self._view
        uid = decisions.uid_of(key)
        decision = decisions.of(uid)
        pending = pending_pod(decisions, uid)
        held = view.ledger.held(uid)
        state = "waiting" if pending is not None else "bound" if uid in view.bound or held else "unknown"
        if state == "unknown" and decision is not None and decision.request is None:
            decision = None  # a pod without a GPU that is bound by now, or deleted
        requester = decision or view.waiting.get(uid)
        said = self._missing_decision_text(state, decision)
        decision = decision or Decision(uid, key)
        summary, scores, bind = decision.summary, decision.scores, decision.bind
        return Record(
            scheduler=self._scheduler(),
            key=key,
            uid=uid,
            state=state,
            said=said,
            waiting=pending,
            asks="" if requester is None else asks_text(requester.request),
            asked=None if summary is None else decision.asked_s,
            answer=summary,
            left_out=decision.left_out if summary is not None and summary.left_out else "",
            not_offered=0 if summary is None else max(view.ledger.totals().nodes - summary.nodes, 0),
            scores=None if scores is None else Scored(scores.nodes, scores.equals, list(scores.best)),
            choice=None if decision.placed is None else self._choice(decision, decision.placed),
            bind=None if bind is None else Bound(bind.node, bind.at_s, bind.error),
            holds=None
            if held is None
            else Holding(
                held.node,
                held.confirmed,
                self._shares(held.node, held.allocation),
                self._not_held(held.node, held.allocation),
            ),
            kept=view.ledger.nominations.node_of(uid),
            preemption=decision.preemption,
            awaited=self._awaited(decision),
            ends_for=self._evicted_for(uid),
            nodes=list(decision.each.answers(decision.left_out))
            if each and decision.each is not None
            else None,
        )

    def _shares(self, node: str, allocation: Allocation) -> list[Share]:
        containers = allocation.containers_by_gpu()
        return [
            Share(
                share.index,
                share.uuid,
                share.units,
                share.mib,
                share.core_percent,
                self._out_of_service_text(node, share),
                containers[number] if containers else msgspec.UNSET,
            )
            for number, share in enumerate(allocation.gpus)
        ]

    def _not_held(self, name: str, allocation: Allocation) -> str:
        node = self._view.ledger.node(name)
        return "" if node is None else not_held(node, allocation.gpus)

    def _out_of_service_text(self, name: str, share: GpuShare) -> str:
        """Why the GPU of ``share`` is out of service; empty if it is not, or if the node is not known."""
        node = self._view.ledger.node(name)
        if node is None:
            return ""
        device = node.device_of(share.uuid, share.index)
        if device is None:
            return gone_text(share.uuid) if node.devices else node.refusal
        # A GPU that is only held back until its pods have left is no problem for these pods.
        return "" if device.kept_back else unhealthy_text((device,))

    def _scheduler(self) -> Scheduler:
        decisions = self._decisions
        return Scheduler(
            self._name,
            decisions.started_s,
            decisions.first_asked_s,
            decisions.last_asked_s,
            decisions.leads(),
        )

    def _missing_decision_text(self, state: str, decision: Decision | None) -> str:
        if state == "unknown":
            return "no pod of that name requests or holds GPU capacity"
        leads = self._decisions.leads()
        if self._decisions.first_asked_s is None and not leads:
            text = "kube-scheduler has not called this replica since it started"
            return (
                f"{text}: another one leads" if leads is False else f"{text}; it is unknown whether it leads"
            )
        if decision is not None:
            return ""
        if state == "bound":
            return "the pod was bound before this replica became the leader; only the pod's own allocation record is available"
        if self._decisions.first_asked_s is None:
            return "this replica leads, but kube-scheduler has not called it for any pod yet"
        return "kube-scheduler has not called the extender for this pod since this replica became the leader"

    def _awaited(self, decision: Decision) -> list[Victim]:
        """Victims that are still there, on the node where we reserve room for the pod or to which kube-scheduler nominated it."""
        pending = self._view.waiting.get(decision.uid)
        if decision.preemption is None or pending is None:
            return []
        node = self._view.ledger.nominations.node_of(decision.uid) or pending.unplaced.nominated
        return [
            victim
            for room in decision.preemption.room
            if room.node == node
            for victim in room.victims
            if self._view.with_node(victim.uid) is not None
        ]

    def _evicted_for(self, uid: str) -> list[EvictedFor]:
        victim = self._view.with_node(uid)
        if victim is None:
            return []
        node = victim.node
        preemptors = self._decisions.preemptors_of(uid)
        return [
            EvictedFor(preemptor.key, preemptor.preemption.by, node)
            for preemptor in preemptors[:_MOST_EVICTED_FOR]
            if preemptor.preemption
        ]

    def _choice(self, decision: Decision, placed: Placed) -> Choice:
        held = self._view.ledger.held(decision.uid)
        devices = self._view.ledger.node(placed.node)
        chosen = (
            set() if held is None or held.node != placed.node else {gpu.index for gpu in held.allocation.gpus}
        )
        known = {} if devices is None else dict(enumerate(devices.devices))
        gpus = []
        for gpu in placed.candidates:
            device = known.get(gpu.row)
            index, uuid = (gpu.row, "") if device is None else (device.index, device.uuid)
            gpus.append(Gpu(index, gpu.free_mib, gpu.left_mib, gpu.pods, gpu.grown, index in chosen, uuid))
        few = devices is None or len(devices.devices) <= MOST_GPUS
        why = _preference(placed.placement, decision.request, by_nearness=few)
        return Choice(placed.node, placed.at_s, placed.placement.value, why, gpus)


def _preference(placement: Placement, request: Request | None, *, by_nearness: bool) -> str:
    """The preference of ``ledger.placement.policies`` in words. ``by_nearness``: the node has few enough GPUs to compare all their sets."""
    if request is not None and request.by_gpu:
        return _WHOLE if by_nearness else _LOWEST
    several = by_nearness and request is not None and request.gpu_count > 1
    return POLICIES[placement].description + (_TOGETHER if several else "")


_MOST_EVICTED_FOR: Final = 8
#: Longest time, in seconds, before other tasks run while pending pods are listed.
_TURN_S: Final = 0.001
_WHOLE: Final = "the free GPUs with the best interconnect, then those that leave the best-connected GPUs for other pods, then the lowest indices"
_LOWEST: Final = "the free GPUs with the lowest indices"
_TOGETHER: Final = "; for several GPUs, the best-connected set comes first"


async def _collected(pending: Iterator[PendingPod]) -> list[PendingPod]:
    pods: list[PendingPod] = []
    until_s = time.perf_counter() + _TURN_S
    for pod in pending:
        pods.append(pod)
        if time.perf_counter() > until_s:
            await asyncio.sleep(0)
            until_s = time.perf_counter() + _TURN_S
    return pods


async def decisions_response(decisions: DecisionLog, path: str) -> bytes:
    """The JSON response to a GET of ``path``, which begins with ``DECISIONS``; raises ``Refusal``."""
    if path.removeprefix(DECISIONS) in ("", "/"):
        return msgspec.json.encode(await DecisionPages(decisions).pending_pods())
    if path == f"{DECISIONS}/oldest":
        return msgspec.json.encode(await DecisionPages(decisions).pending_pods(MOST_LISTED))
    return pod_response(decisions, path)


def pod_response(decisions: DecisionLog, path: str) -> bytes:
    """The JSON response about one pod or about gang reservations; raises ``Refusal``."""
    pages = DecisionPages(decisions)
    match path.removeprefix(DECISIONS).split("/"):
        case ["", "kept"]:
            return msgspec.json.encode(pages.gang_reservations())
        case ["", namespace, name] if namespace and name:
            return msgspec.json.encode(pages.record(f"{namespace}/{name}"))
        case ["", namespace, name, "nodes"] if namespace and name:
            return msgspec.json.encode(pages.record(f"{namespace}/{name}", each=True))
    raise Refusal(404, f"nothing at {path}; there is {DECISIONS}/NAMESPACE/NAME, and /nodes after it")
