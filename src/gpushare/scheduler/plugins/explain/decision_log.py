"""What the scheduler decided of each pod last, and why: kept in memory, in bounds, for those who ask.

A decision is noted in a few microseconds, with references to what it has computed anyway. Soon after, when nobody waits for an
answer, the reasons of its nodes are summed up, so that thousands of texts are not kept for each of thousands of pods. Nothing of
this is stored: a new leader knows what it has decided itself, and says so.

Bounds: ``MOST_PODS`` pods, of each a ``Summary``; what was said node by node for as many as ``EACH_BYTES`` hold, the latest; and
the ``MOST_RAW`` answers that are not summed up yet. Where decisions come faster than there is time for that, the reasons of a
few nodes stand for all, and the summary says so.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpushare.api.node.device import Placement
from gpushare.api.request.request import Request
from gpushare.kube.clock import Clock
from gpushare.ledger import Verdict
from gpushare.ledger.placement.policies import Candidate
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.cycle_state import CycleState
from gpushare.scheduler.framework.services import NO_GANGS, NO_QUOTAS, Gangs, PodQuotas
from gpushare.scheduler.server.protocol import BindingArgs
from gpushare.scheduler.server.read_only_app import PREFIX

if TYPE_CHECKING:
    from gpushare.reasons.summary import Each, Summary
    from gpushare.scheduler.framework.preemption_results import Preemption

DECISIONS: Final = f"{PREFIX}/decisions"
"""Where decisions are read."""
MOST_PODS: Final = 4096
MOST_RAW: Final = 4
EACH_BYTES: Final = 8 * 1024 * 1024
#: Seconds without a verb after which answers about many nodes are summed up; those about few are summed up at once.
IDLE_S: Final = 0.02
SOON_S: Final = 0.002
_FEW_NODES: Final = 512
#: Nodes of each kind of answer that stand for all of them where there is no time.
_SOME: Final = 32
#: Scores that are kept of one pod: of the best nodes.
_BEST: Final = 5
#: Names of schedulers that are remembered.
_MOST_SCHEDULERS: Final = 16
#: Why nodes are neither among those that take a pod nor refused: a reason for each of thousands takes too long to write.
_LEFT_OUT_BY_GANG: Final = "another node is its own, in the plan for its whole gang"
_LEFT_OUT_BY_POLICY: Final = "not in the unit of its ResourcePolicy that comes first and has room"
#: Characters of an error that are kept.
_LONGEST_ERROR: Final = 400


class Waiting(msgspec.Struct, frozen=True):
    """A pod that waits. ``since``: when it was made, in seconds since 1970. ``asks``: as people write it.

    ``category`` is one of ``Category``; ``reason`` is one line; ``suggestion`` says what would let it fit.
    """

    key: str
    uid: str
    since: float
    asks: str
    category: str
    reason: str
    suggestion: str


class Placed(NamedTuple):
    """Where GPUs were chosen for a pod, of which, and by what preference."""

    node: str
    placement: Placement
    candidates: Sequence[Candidate]
    at_s: float


class Bind(NamedTuple):
    """How a call of bind ended; ``error`` is empty where the pod was bound."""

    node: str
    error: str
    at_s: float


class Scores(NamedTuple):
    """What ``prioritize`` said: the best nodes and by how much each stands above the least, of how many nodes, how many have the most.

    ``best`` may hold all that stand out until it is summed up.
    """

    best: Sequence[tuple[str, int]]
    nodes: int
    equals: int = 0


class Raw(NamedTuple):
    """An answer as it was given."""

    names: Sequence[str]
    verdict: Verdict


class Cut(NamedTuple):
    """An answer of which only some refusals are kept: how many nodes were asked about, took the pod, refused it."""

    nodes: int
    fits: int
    refusing: int
    some: Verdict


class Decision:
    """What is kept of one pod. Times are seconds since 1970."""

    __slots__ = (
        "asked_s",
        "bind",
        "each",
        "key",
        "left_out",
        "placed",
        "preemption",
        "raw",
        "request",
        "scores",
        "summary",
        "uid",
    )

    def __init__(self, uid: str, key: str) -> None:
        self.uid = uid
        self.key = key
        self.request: Request | None = None
        self.asked_s = 0.0
        self.left_out = ""
        """Why nodes were left out in silence, where some were."""
        self.raw: Raw | Cut | None = None
        self.summary: Summary | None = None
        self.each: Each | None = None
        self.scores: Scores | None = None
        self.placed: Placed | None = None
        self.bind: Bind | None = None
        self.preemption: Preemption | None = None


class DecisionLog:
    """The record of each pod, by UID, the latest last. Not for several threads."""

    page_prefix: str = DECISIONS

    def __init__(
        self,
        view: ClusterCache,
        clock: Clock,
        *,
        leads: Callable[[], bool | None] = lambda: None,
        in_turn: Callable[[str, list[str]], list[list[str]]] = lambda uid, nodes: [nodes],
        without_gpu: Callable[[str], PodRecord | None] | None = None,
        gangs: Gangs = NO_GANGS,
        quotas: PodQuotas = NO_QUOTAS,
    ) -> None:
        self._view = self.view = view
        self._clock = clock
        self._of: OrderedDict[str, Decision] = OrderedDict()
        self._uid_of: dict[str, str] = {}
        self._raw: deque[Decision] = deque()
        self._each: OrderedDict[str, int] = OrderedDict()
        self._each_bytes = 0
        self._names: Sequence[str] = ()
        self._woken = asyncio.Event()
        self._last_s = 0.0
        self.started_s = clock.time_ns() / 1e9
        self.first_asked_s: float | None = None
        """When kube-scheduler first asked: since then this scheduler leads, or led."""
        self.last_asked_s: float | None = None
        self.asked_by: set[str] = set()
        """Names of the schedulers (``schedulerName``) whose pods this one was asked about."""
        self.leads: Final = leads
        """Whether this scheduler leads (``LeaderWatch.known``)."""
        self.by_ledger: dict[Request, tuple[float, Summary]] = {}
        """What the ledger said, and when, of requests about which nobody asked (``waiting``)."""
        self.in_turn: Final = in_turn
        """Those of some nodes that the policy of a pod (UID) lets it have now (``Policies.by_unit``)."""
        self.without_gpu: Final = without_gpu or view.waiting_non_gpu.get
        """The pod (UID) that waits and asks for no GPU of ours, where a policy or a quota counts such pods; ``None`` for all others."""
        self.gangs: Final = gangs
        self.quotas: Final = quotas
        view.ledger.gpus_chosen.subscribe(self._chosen)

    def __len__(self) -> int:
        return len(self._of)

    # --- what the verbs decided -------------------------------------------------------------------

    def after_filter(self, state: CycleState, verdict: Verdict) -> None:
        """``filter`` answered."""
        if state.request is None and not verdict.refused and not verdict.hopeless:
            return
        pod = state.pod
        self.note_scheduler(pod.spec.scheduler_name)
        left_out = _LEFT_OUT_BY_POLICY if state.gang is None else _LEFT_OUT_BY_GANG
        self.filtered(pod.metadata.uid, pod.key, state.request, state.names, verdict, left_out)

    def after_score(self, state: CycleState, above: Sequence[tuple[str, int]]) -> None:
        """``prioritize`` answered."""
        self.scored(state.pod.metadata.uid, above, len(state.names))

    def after_bind(self, args: BindingArgs, error: str) -> None:
        """``bind`` answered."""
        self.bind_ended(args.uid, args.key, args.node, error)

    def filtered(
        self,
        uid: str,
        key: str,
        request: Request | None,
        names: Sequence[str],
        verdict: Verdict,
        left_out: str = "",
    ) -> None:
        """``filter`` answered for the pod ``key`` (``namespace/name``) about the nodes ``names``; none of it changes any more."""
        one = self._note(uid, key)
        one.asked_s = self.last_asked_s = self._clock.time_ns() / 1e9
        if self.first_asked_s is None:
            self.first_asked_s = one.asked_s
        one.request = request
        one.left_out = left_out
        one.summary = one.each = one.scores = one.bind = None
        # Room that was set aside before (for a gang) is what it was chosen as.
        if one.placed is not None and self._view.ledger.held(uid) is None:
            one.placed = None
        if not isinstance(one.raw, Raw):
            self._raw.append(one)
        one.raw = Raw(names, verdict)
        if len(self._raw) > MOST_RAW:
            _cut_off(self._raw.popleft())
        self._woken.set()

    def note_scheduler(self, scheduler: str) -> None:
        """A pod that names this scheduler was asked about."""
        if len(self.asked_by) < _MOST_SCHEDULERS:
            self.asked_by.add(scheduler)

    def scored(self, uid: str, above: Sequence[tuple[str, int]], nodes: int) -> None:
        """``prioritize`` answered about so many nodes: those above the least of them, and by how much."""
        self._last_s = self._clock.monotonic()
        one = self._of.get(uid)
        if one is not None:
            one.scores = Scores(above, nodes)
            if one.raw is None:
                one.scores = _best(one.scores)

    def bind_ended(self, uid: str, key: str, node: str, error: str = "") -> None:
        """``bind`` answered; ``error`` as it was told, empty where the pod was bound."""
        one = self._note(uid, key)
        one.bind = Bind(node, error[:_LONGEST_ERROR], self._clock.time_ns() / 1e9)

    def preempted(self, uid: str, key: str, request: Request | None, found: "Preemption") -> None:
        """It was looked whose end would make room for the pod."""
        one = self._note(uid, key)
        one.preemption = found
        one.request = one.request or request

    def ends_for(self, uid: str) -> list[Decision]:
        """For whom this pod has to end, or would have to: pods that wait, the latest first."""
        return [
            one
            for one in reversed(self._of.values())
            if one.preemption is not None
            and one.uid in self._view.waiting
            and any(victim.uid == uid for room in one.preemption.room for victim in room.victims)
        ]

    def pod_updated(self, record: PodRecord) -> None:
        """A pod was added or changed; of one that has ended nothing is kept."""
        if record.finished:
            self.gone(record.uid)

    def pod_removed(self, last: PodRecord) -> None:
        """A pod is gone."""
        self.gone(last.uid)

    def gone(self, uid: str) -> None:
        """The pod has ended, or is no more."""
        one = self._of.pop(uid, None)
        if one is not None:
            self._drop(one)

    def _chosen(self, uid: str, node: str, candidates: Sequence[Candidate]) -> None:
        one = self._of.get(uid)
        devices = self._view.ledger.node(node)
        if devices is None:
            return
        if one is None:
            # A gang's pod that was not asked about yet: its room is found with another's.
            waits = self._view.waiting.get(uid)
            if waits is None:
                return
            one = self._of[uid] = Decision(uid, waits.pod)
            self._uid_of[waits.pod] = uid
            one.request = waits.request
        one.placed = Placed(node, devices.placement, candidates, self._clock.time_ns() / 1e9)

    def _note(self, uid: str, key: str) -> Decision:
        one = self._of.get(uid)
        if one is None:
            one = self._of[uid] = Decision(uid, key)
            self._uid_of[key] = uid
            if len(self._of) > MOST_PODS:
                self._drop(self._of.popitem(last=False)[1])
        else:
            self._of.move_to_end(uid)
        self._last_s = self._clock.monotonic()
        return one

    def _drop(self, one: Decision) -> None:
        if self._uid_of.get(one.key) == one.uid:
            del self._uid_of[one.key]
        if isinstance(one.raw, Raw):
            self._raw.remove(one)
        self._each_bytes -= self._each.pop(one.uid, 0)

    # --- summing up -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Sum up, when nobody waits for an answer, for ever."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            await self._clock.sleep(SOON_S)
            while self._raw:
                raw = self._raw[0].raw
                assert isinstance(raw, Raw)
                rest_s = self._last_s + IDLE_S - self._clock.monotonic()
                if len(raw.names) > _FEW_NODES and rest_s > 0:
                    await self._clock.sleep(rest_s)
                    continue
                self._sum_up(self._raw.popleft())
                await self._clock.sleep(0)

    def _sum_up(self, one: Decision) -> None:
        # Nobody waits for this at the start, nor for what it imports.
        from gpushare.reasons.summary import sampled, summarized

        raw, one.raw = one.raw, None
        assert raw is not None
        if one.scores is not None:
            one.scores = _best(one.scores)
        self._each_bytes -= self._each.pop(one.uid, 0)
        if isinstance(raw, Cut):
            one.summary = sampled(*raw)
            return
        # Pods after pods are offered the same nodes: one list stands for all of them.
        if raw.names != self._names:
            self._names = raw.names
        one.summary, one.each = summarized(self._names, raw.verdict)
        self._each[one.uid] = one.each.bytes
        self._each_bytes += one.each.bytes
        while self._each_bytes > EACH_BYTES:
            uid, size = self._each.popitem(last=False)
            self._each_bytes -= size
            self._of[uid].each = None

    # --- for those who ask --------------------------------------------------------------------------

    def of(self, uid: str) -> Decision | None:
        """What is kept of the pod with that UID, summed up; ``None`` where nothing is."""
        one = self._of.get(uid)
        if one is not None and one.raw is not None:
            if isinstance(one.raw, Raw):
                self._raw.remove(one)
            self._sum_up(one)
        return one

    async def page(self, path: str) -> bytes:
        """What is read at ``path``, as JSON; raises ``Refusal``."""
        from gpushare.scheduler.plugins.explain.decisions_api import told  # nobody waits for it at the start

        return await told(self, path)

    def uid_of(self, key: str) -> str:
        """UID of the pod ``namespace/name``, of those that wait, hold something, or were asked about; empty where there is none."""
        for pods in (self._view.waiting, self._view.bound):
            for uid, record in pods.items():
                if record.pod == key:
                    return uid
        return self._uid_of.get(key, "")

    def categories(self) -> dict[str, int]:
        """How many pods wait, by ``Category``: quick, for metrics. All categories are there."""
        from gpushare.scheduler.plugins.explain.pending_pods import categories

        return categories(self)

    def waiting(self) -> list[Waiting]:
        """Every pod that waits, the longest first."""
        from gpushare.scheduler.plugins.explain.pending_pods import each_waiting, longest_first

        return longest_first(each_waiting(self))

    def besides(self, uid: str) -> "PodRecord | None":
        """The pod where it is one of ``waiting_non_gpu``."""
        one = self._of.get(uid)
        if one is None or one.request is not None or uid in self._view.waiting:
            return None
        if one.bind is not None and not one.bind.error:
            return None  # the watch may be behind, and tells of it no more where its policy is gone
        return self.without_gpu(uid)

    def uids(self) -> list[str]:
        """Those of the pods of which something is kept."""
        return list(self._of)

    def get(self, uid: str) -> Decision | None:
        """What is kept of the pod with that UID, as it is."""
        return self._of.get(uid)

    @property
    def now_s(self) -> float:
        """Seconds since 1970."""
        return self._clock.time_ns() / 1e9


def cut(raw: Raw) -> Cut:
    """What stands for an answer, in a few microseconds."""
    said = raw.verdict
    some = Verdict(
        said.fits[:_SOME],
        dict(islice(said.refused.items(), _SOME)),
        dict(islice(said.hopeless.items(), _SOME)),
    )
    return Cut(len(raw.names), len(said.fits), len(said.refused) + len(said.hopeless), some)


def _cut_off(one: Decision) -> None:
    """Let go of most of an answer."""
    assert isinstance(one.raw, Raw)
    one.raw = cut(one.raw)
    if one.scores is not None:
        one.scores = one.scores._replace(best=one.scores.best[:_SOME])


def _best(scores: Scores) -> Scores:
    best = sorted(scores.best, key=lambda one: -one[1])
    equals = sum(score == best[0][1] for _, score in best) if best else scores.nodes
    return Scores(best[:_BEST], scores.nodes, scores.equals or equals)
