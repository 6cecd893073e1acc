"""What is read of the scheduler over HTTP, beside probes and metrics: its decisions. Nothing here changes anything.

``GET /gpushare/decisions``: every pod that waits. ``GET /gpushare/decisions/NAMESPACE/NAME``: the record of one pod, and with
``/nodes`` after it what was said of each node. ``GET /gpushare/decisions/kept``: the room that gangs keep. Behind the API server's
proxy (``services/proxy``) these are read by people who show a token (``gpushare.httpserver.authorization``); the verbs are not there. Times are
seconds since 1970.
"""

import asyncio
import socket
import time
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
from gpushare.ledger.fit.reasons import unhealthy_text
from gpushare.ledger.placement.policies import POLICIES
from gpushare.reasons.summary import Example, Summary
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.framework.preemption_results import Preemption, Victim
from gpushare.scheduler.plugins.explain.decision_log import DECISIONS, Decision, DecisionLog, Placed, Waiting
from gpushare.scheduler.plugins.explain.kept_room_api import (
    GangReservation,
    Reservation,
    all_reservations,
    gang_reservations,
)
from gpushare.scheduler.plugins.explain.pending_pods import (
    each_non_gpu_pod,
    each_waiting,
    longest_first,
    waiting,
)


class Scheduler(msgspec.Struct, frozen=True, rename="camel"):
    """Who answers. ``first_asked``: since when kube-scheduler asks it; ``None``: it never did. ``leads``: ``None`` where it is not known."""

    name: str
    started: float
    first_asked: float | None
    last_asked: float | None
    leads: bool | None = None


class Line(msgspec.Struct, frozen=True, rename="camel"):
    """All pods that wait. ``besides``: those that ask for no GPU of ours, and that a ResourcePolicy or an elastic quota keeps.

    ``kept``: room on GPUs that is given to nobody else, and for whom it is.
    """

    scheduler: Scheduler
    waiting: list[Waiting]
    besides: list[Waiting]
    kept: list[Reservation]


class Keeping(msgspec.Struct, frozen=True, rename="camel"):
    """What gangs keep."""

    scheduler: Scheduler
    kept: list[GangReservation]


class Gpu(msgspec.Struct, frozen=True, rename="camel"):
    """A GPU that could have been given: MiB free before, and left over after, pods on it; ``grown``: by how much fragments grow.

    Of one that is given whole to a pod that asked for memory, what it has beyond that counts as left over: by that it is chosen.
    """

    index: int
    free_mib: int = msgspec.field(name="freeMiB")
    left_mib: int = msgspec.field(name="leftMiB")
    pods: int
    grown: int
    chosen: bool


class Choice(msgspec.Struct, frozen=True, rename="camel"):
    """Which GPUs of the node were chosen, by which placement, among which."""

    node: str
    at: float
    placement: str
    why: str
    gpus: list[Gpu]


class Share(msgspec.Struct, frozen=True, rename="camel"):
    """What the pod holds of a GPU. ``out_of_service`` says why the GPU takes nothing new; empty where it does.

    ``containers``: those that have a part of it, where not all containers of the pod have the same GPUs; left out otherwise.
    """

    index: int
    uuid: str
    units: int
    mib: int = msgspec.field(name="MiB")
    core_percent: int
    out_of_service: str = ""
    containers: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class Holding(msgspec.Struct, frozen=True, rename="camel"):
    """What the ledger holds for the pod; ``confirmed``: the API server has said so.

    ``not_held`` says why the node does not hold containers to what it gives now; empty where it does, or nobody says.
    """

    node: str
    confirmed: bool
    gpus: list[Share]
    not_held: str = ""


class Scored(msgspec.Struct, frozen=True, rename="camel"):
    """Of ``nodes`` the best, by how much each stands above the least, and how many have as much as the best."""

    nodes: int
    equals: int
    best: list[tuple[str, int]]


class Bound(msgspec.Struct, frozen=True, rename="camel"):
    """How a call of bind ended."""

    node: str
    at: float
    error: str


class EndsFor(msgspec.Struct, frozen=True, rename="camel"):
    """A pod that waits for the end of this one, or would: see ``Preemption``."""

    pod: str
    by: str
    node: str


class Record(msgspec.Struct, frozen=True, rename="camel"):
    """What is known of one pod. ``state``: ``waiting``, ``bound`` or ``unknown``.

    ``asked`` to ``bind`` are of this scheduler's last decision, and ``None`` where it made none, which ``said`` tells in words.
    ``not_offered``: nodes with GPUs that kube-scheduler did not ask about. ``kept``: the node on which room is made for it.
    ``preemption``: whose end would make room for it, as it was found last; of these ``awaited`` are there still. ``ends_for``: who waits
    for the end of this one. ``nodes``: what was said of each node, where that was asked for and is kept still.
    """

    scheduler: Scheduler
    key: str
    uid: str
    state: str
    said: str
    waiting: Waiting | None
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
    ends_for: list[EndsFor]
    nodes: list[Example] | None


class Teller:
    """Writes decisions for those who ask."""

    def __init__(self, decisions: DecisionLog, view: ClusterCache) -> None:
        self._decisions = decisions
        self._view = view
        self._name = socket.gethostname()

    async def line(self) -> Line:
        """All that wait; where these are thousands, others have their turn meanwhile."""
        waits = await _in_turns(each_waiting(self._decisions))
        besides = await _in_turns(each_non_gpu_pod(self._decisions))
        return Line(
            self._scheduler(),
            longest_first(waits),
            longest_first(besides),
            all_reservations(self._view, self._decisions.gangs),
        )

    def keeping(self) -> Keeping:
        """What gangs keep now."""
        return Keeping(self._scheduler(), gang_reservations(self._decisions.gangs, self._decisions.now_s))

    def record(self, key: str, *, each: bool = False) -> Record:
        """All that is known of the pod ``namespace/name``; ``each``: node by node too."""
        decisions, view = self._decisions, self._view
        uid = decisions.uid_of(key)
        one = decisions.of(uid)
        waits = waiting(decisions, uid)
        held = view.ledger.held(uid)
        state = "waiting" if waits is not None else "bound" if uid in view.bound or held else "unknown"
        if state == "unknown" and one is not None and one.request is None:
            one = None  # without a GPU, and bound since, or gone
        nodes = None
        if each and one is not None and one.each is not None:
            nodes = list(one.each.answers(one.left_out))
        asking = one or view.waiting.get(uid)
        summary = None if one is None else one.summary
        return Record(
            scheduler=self._scheduler(),
            key=key,
            uid=uid,
            state=state,
            said=self._said(state, one),
            waiting=waits,
            asks="" if asking is None else asks_text(asking.request),
            asked=None if one is None or summary is None else one.asked_s,
            answer=summary,
            left_out="" if one is None or not summary or not summary.left_out else one.left_out,
            not_offered=0 if summary is None else max(view.ledger.totals().nodes - summary.nodes, 0),
            scores=None
            if one is None or one.scores is None
            else Scored(one.scores.nodes, one.scores.equals, list(one.scores.best)),
            choice=None if one is None or one.placed is None else self._choice(one, one.placed),
            bind=None
            if one is None or one.bind is None
            else Bound(one.bind.node, one.bind.at_s, one.bind.error),
            holds=None
            if held is None
            else Holding(
                held.node,
                held.confirmed,
                self._shares(held.node, held.allocation),
                self._not_held(held.node, held.allocation),
            ),
            kept=view.ledger.nominations.node_of(uid),
            preemption=None if one is None else one.preemption,
            awaited=self._awaited(one),
            ends_for=self._ends_for(uid),
            nodes=nodes,
        )

    def _shares(self, node: str, allocation: Allocation) -> list[Share]:
        containers = allocation.containers_by_gpu()
        return [
            Share(
                one.index,
                one.uuid,
                one.units,
                one.mib,
                one.core_percent,
                self._out_of(node, one),
                containers[number] if containers else msgspec.UNSET,
            )
            for number, one in enumerate(allocation.gpus)
        ]

    def _not_held(self, name: str, allocation: Allocation) -> str:
        node = self._view.ledger.node(name)
        return "" if node is None else not_held(node, allocation.gpus)

    def _out_of(self, name: str, share: GpuShare) -> str:
        """What ails the GPU on which a pod holds a share; nothing is said of one that the node no longer describes."""
        node = self._decisions.view.ledger.node(name)
        device = None if node is None else node.device_of(share.uuid, share.index)
        # One that waits for the pods that hold it is no news to them.
        return "" if device is None or device.kept_back else unhealthy_text((device,))

    def _scheduler(self) -> Scheduler:
        one = self._decisions
        return Scheduler(self._name, one.started_s, one.first_asked_s, one.last_asked_s, one.leads())

    def _said(self, state: str, one: Decision | None) -> str:
        if state == "unknown":
            return "no pod of that name asks for a GPU here or holds a part of one"
        leads = self._decisions.leads()
        if self._decisions.first_asked_s is None and not leads:
            told = "no kube-scheduler has asked this scheduler anything since it started"
            return (
                f"{told}: another one leads" if leads is False else f"{told}; whether it leads is not known"
            )
        if one is not None:
            return ""
        if state == "bound":
            return "the pod was bound before this scheduler led: of that decision there is the pod's own record alone"
        if self._decisions.first_asked_s is None:
            return "this scheduler leads, and kube-scheduler has asked it about no pod yet"
        return "kube-scheduler has not asked about the pod since this scheduler leads"

    def _awaited(self, one: Decision | None) -> list[Victim]:
        """Who has to end still, on the node on which we keep room for it, or to which kube-scheduler has nominated it."""
        waits = None if one is None else self._view.waiting.get(one.uid)
        if one is None or one.preemption is None or waits is None:
            return []
        node = self._view.ledger.nominations.node_of(one.uid) or waits.unplaced.nominated
        return [
            victim
            for room in one.preemption.room
            if room.node == node
            for victim in room.victims
            if self._view.with_node(victim.uid) is not None
        ]

    def _ends_for(self, uid: str) -> list[EndsFor]:
        ends = self._view.with_node(uid)
        if ends is None:
            return []
        node = ends.node
        found = self._decisions.ends_for(uid)
        return [EndsFor(one.key, one.preemption.by, node) for one in found[:_MOST_ENDS_FOR] if one.preemption]

    def _choice(self, one: Decision, placed: Placed) -> Choice:
        held = self._view.ledger.held(one.uid)
        devices = self._view.ledger.node(placed.node)
        chosen = (
            set() if held is None or held.node != placed.node else {gpu.index for gpu in held.allocation.gpus}
        )
        index_of = (
            {} if devices is None else {row: device.index for row, device in enumerate(devices.devices)}
        )
        gpus = [
            Gpu(index, gpu.free_mib, gpu.left_mib, gpu.pods, gpu.grown, index in chosen)
            for index, gpu in ((index_of.get(gpu.row, gpu.row), gpu) for gpu in placed.candidates)
        ]
        few = devices is None or len(devices.devices) <= MOST_GPUS
        why = _preference(placed.placement, one.request, by_nearness=few)
        return Choice(placed.node, placed.at_s, placed.placement.value, why, gpus)


def _preference(placement: Placement, request: Request | None, *, by_nearness: bool) -> str:
    """What ``ledger.placement.policies`` goes by; ``by_nearness``: the node has not too many GPUs for all sets of them to be compared."""
    if request is not None and request.by_gpu:
        return _WHOLE if by_nearness else _LOWEST
    several = by_nearness and request is not None and request.gpu_count > 1
    return POLICIES[placement].said + (_TOGETHER if several else "")


_MOST_ENDS_FOR: Final = 8
#: How long others wait at most while waiting pods are listed.
_TURN_S: Final = 0.001
_WHOLE: Final = "the free GPUs that are nearest to each other, then those that leave the nearest to others, then the lower index"
_LOWEST: Final = "the free GPUs with the lowest indices"
_TOGETHER: Final = "; of several GPUs those that are nearest to each other come first"


async def _in_turns(each: Iterator[Waiting]) -> list[Waiting]:
    found: list[Waiting] = []
    until_s = time.perf_counter() + _TURN_S
    for one in each:
        found.append(one)
        if time.perf_counter() > until_s:
            await asyncio.sleep(0)
            until_s = time.perf_counter() + _TURN_S
    return found


async def told(decisions: DecisionLog, path: str) -> bytes:
    """The answer to a GET of ``path``, which begins with ``DECISIONS``, as JSON; raises ``Refusal``."""
    if path.removeprefix(DECISIONS) in ("", "/"):
        return msgspec.json.encode(await Teller(decisions, decisions.view).line())
    return told_of_pod(decisions, path)


def told_of_pod(decisions: DecisionLog, path: str) -> bytes:
    """The same of one pod, and of what is kept."""
    teller = Teller(decisions, decisions.view)
    match path.removeprefix(DECISIONS).split("/"):
        case ["", "kept"]:
            return msgspec.json.encode(teller.keeping())
        case ["", namespace, name] if namespace and name:
            return msgspec.json.encode(teller.record(f"{namespace}/{name}"))
        case ["", namespace, name, "nodes"] if namespace and name:
            return msgspec.json.encode(teller.record(f"{namespace}/{name}", each=True))
    raise Refusal(404, f"nothing at {path}; there is {DECISIONS}/NAMESPACE/NAME, and /nodes after it")
