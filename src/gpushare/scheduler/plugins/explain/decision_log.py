"""The scheduler's last decision for each pod, and why. Held in memory, within bounds.

Recording a decision takes a few microseconds: it only stores references to objects that exist anyway. Soon after, when no verb is being
answered, the reasons of the nodes are summarized, so that thousands of texts are not held for each of thousands of pods. Nothing is
persisted: a new leader knows only its own decisions, and its responses say so.

Bounds: ``MOST_PODS`` pods with a ``Summary`` each; the latest per-node answers, up to ``EACH_BYTES``; and ``MOST_RAW`` answers that are
not summarized yet. If decisions come faster than they can be summarized, the reasons of a few nodes stand for all, and the summary says so.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpushare.api.node.device import Placement
from gpushare.api.request.request import Request
from gpushare.kube.clock import Clock
from gpushare.ledger import Verdict
from gpushare.ledger.placement.policies import Candidate, placement_for
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
"""URL path of the decisions."""
MOST_PODS: Final = 4096
MOST_RAW: Final = 4
EACH_BYTES: Final = 8 * 1024 * 1024
#: Seconds without a verb after which answers about many nodes are summarized. Answers about few nodes are summarized after ``SOON_S``.
IDLE_S: Final = 0.02
SOON_S: Final = 0.002
_FEW_NODES: Final = 512
#: Nodes of each kind of answer (fits, refused, hopeless) in a sample.
_SAMPLE: Final = 32
#: Scores recorded per pod: those of the best nodes.
_TOP: Final = 5
#: Most scheduler names that are remembered.
_MOST_SCHEDULERS: Final = 16
#: Why nodes are neither among those that take a pod nor refused: a reason for each of thousands takes too long to write.
_LEFT_OUT_BY_GANG: Final = "the plan for its gang assigns it to another node"
_LEFT_OUT_BY_POLICY: Final = "an earlier unit of its ResourcePolicy has capacity"
#: Most characters of an error that are recorded.
_LONGEST_ERROR: Final = 400


class PendingPod(msgspec.Struct, frozen=True):
    """A pending pod. ``since``: its creation time, in seconds since 1970. ``asks``: its request as text.

    ``category`` is one of ``Category``; ``reason`` is one line; ``suggestion`` says what would make the pod fit.
    """

    key: str
    uid: str
    since: float
    asks: str
    category: str
    reason: str
    suggestion: str


class Placed(NamedTuple):
    """The node on which GPUs were chosen for a pod, by which placement policy and among which candidates."""

    node: str
    placement: Placement
    candidates: Sequence[Candidate]
    at_s: float


class Bind(NamedTuple):
    """Outcome of the verb ``bind``; ``error`` is empty if the pod was bound."""

    node: str
    error: str
    at_s: float


class Scores(NamedTuple):
    """Answer of ``prioritize``: the best nodes with their scores above the lowest, the number of nodes, and how many share the top score.

    Until it is summarized, ``best`` may hold all nodes above the lowest score.
    """

    best: Sequence[tuple[str, int]]
    nodes: int
    equals: int = 0


class RawAnswer(NamedTuple):
    """A complete answer of ``filter``."""

    names: Sequence[str]
    verdict: Verdict


class SampledAnswer(NamedTuple):
    """An answer of ``filter`` reduced to a sample: the numbers of nodes asked about, fitting and refusing, and some of the verdicts."""

    nodes: int
    fits: int
    refusing: int
    some: Verdict


@dataclass(slots=True, eq=False)
class Decision:
    """The last decision for one pod. Times are seconds since 1970."""

    uid: str
    key: str
    request: Request | None = None
    asked_s: float = 0.0
    left_out: str = ""
    """Why nodes were left out of the answer without a reason; empty if none were."""
    raw: RawAnswer | SampledAnswer | None = None
    summary: "Summary | None" = None
    each: "Each | None" = None
    scores: Scores | None = None
    placed: Placed | None = None
    bind: Bind | None = None
    preemption: "Preemption | None" = None


class DecisionLog:
    """The last decision for each pod by UID, in order of recording. Not thread-safe."""

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
        self._each_sizes: OrderedDict[str, int] = OrderedDict()
        self._each_bytes = 0
        self._names: Sequence[str] = ()
        self._woken = asyncio.Event()
        self._last_s = 0.0
        self.started_s = clock.time_ns() / 1e9
        self.first_asked_s: float | None = None
        """When kube-scheduler first asked this scheduler; ``None``: never. From then on it leads, or has led."""
        self.last_asked_s: float | None = None
        self.asked_by: set[str] = set()
        """Names of the schedulers (``schedulerName``) whose pods this scheduler was asked about."""
        self.leads: Final = leads
        """Whether this scheduler leads (``LeaderWatch.known``)."""
        self.by_ledger: dict[Request, tuple[float, Summary]] = {}
        """Cache of the ledger's answers for requests that kube-scheduler has not asked about, with their times (``pending_pods``)."""
        self.in_turn: Final = in_turn
        """Returns the nodes of a list that the ResourcePolicy of a pod (UID) allows now, unit by unit (``Policies.by_unit``)."""
        self.without_gpu: Final = without_gpu or view.waiting_non_gpu.get
        """Returns the pending pod (UID) if it requests no GPU of ours and a policy or quota counts such pods; otherwise ``None``."""
        self.gangs: Final = gangs
        self.quotas: Final = quotas
        view.ledger.gpus_chosen.subscribe(self._on_gpus_chosen)

    def __len__(self) -> int:
        return len(self._of)

    # --- called by the verbs ----------------------------------------------------------------------

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
        """``filter`` answered for the pod ``key`` (``namespace/name``) about the nodes ``names``. No argument may be modified later."""
        decision = self._note(uid, key)
        decision.asked_s = self.last_asked_s = self._clock.time_ns() / 1e9
        if self.first_asked_s is None:
            self.first_asked_s = decision.asked_s
        decision.request = request
        decision.left_out = left_out
        decision.summary = decision.each = decision.scores = decision.bind = None
        # The choice of GPUs still holds if the pod's room was reserved before (for its gang).
        if decision.placed is not None and self._view.ledger.held(uid) is None:
            decision.placed = None
        if not isinstance(decision.raw, RawAnswer):
            self._raw.append(decision)
        decision.raw = RawAnswer(names, verdict)
        if len(self._raw) > MOST_RAW:
            _shrink_raw(self._raw.popleft())
        self._woken.set()

    def note_scheduler(self, scheduler: str) -> None:
        """Remember ``scheduler`` as one whose pods this scheduler is asked about."""
        if len(self.asked_by) < _MOST_SCHEDULERS:
            self.asked_by.add(scheduler)

    def scored(self, uid: str, above: Sequence[tuple[str, int]], nodes: int) -> None:
        """``prioritize`` answered about ``nodes`` nodes. ``above``: the nodes above the lowest score, and by how much."""
        self._last_s = self._clock.monotonic()
        decision = self._of.get(uid)
        if decision is not None:
            decision.scores = Scores(above, nodes)
            if decision.raw is None:
                decision.scores = _top_scores(decision.scores)

    def bind_ended(self, uid: str, key: str, node: str, error: str = "") -> None:
        """``bind`` answered with ``error``, which is empty if the pod was bound."""
        decision = self._note(uid, key)
        decision.bind = Bind(node, error[:_LONGEST_ERROR], self._clock.time_ns() / 1e9)

    def preempted(self, uid: str, key: str, request: Request | None, preemption: "Preemption") -> None:
        """Record which victims would make room for the pod."""
        decision = self._note(uid, key)
        decision.preemption = preemption
        decision.request = decision.request or request

    def preemptors_of(self, uid: str) -> list[Decision]:
        """Decisions for pending pods for which this pod is, or would be, evicted; the latest first."""
        return [
            decision
            for decision in reversed(self._of.values())
            if decision.preemption is not None
            and decision.uid in self._view.waiting
            and any(victim.uid == uid for room in decision.preemption.room for victim in room.victims)
        ]

    def pod_updated(self, record: PodRecord) -> None:
        """A pod was added or changed. A finished pod's decision is dropped."""
        if record.finished:
            self.forget(record.uid)

    def pod_removed(self, last: PodRecord) -> None:
        """A pod is gone."""
        self.forget(last.uid)

    def forget(self, uid: str) -> None:
        """Drop the decision of a pod that has finished or was deleted."""
        decision = self._of.pop(uid, None)
        if decision is not None:
            self._drop(decision)

    def _on_gpus_chosen(self, uid: str, node: str, candidates: Sequence[Candidate]) -> None:
        decision = self._of.get(uid)
        devices = self._view.ledger.node(node)
        if devices is None:
            return
        if decision is None:
            # A pod of a gang for which room is reserved together with another pod's, before kube-scheduler asks about it.
            pending = self._view.waiting.get(uid)
            if pending is None:
                return
            decision = self._of[uid] = Decision(uid, pending.pod)
            self._uid_of[pending.pod] = uid
            decision.request = pending.request
        decision.placed = Placed(
            node, placement_for(decision.request, devices), candidates, self._clock.time_ns() / 1e9
        )

    def _note(self, uid: str, key: str) -> Decision:
        decision = self._of.get(uid)
        if decision is None:
            decision = self._of[uid] = Decision(uid, key)
            self._uid_of[key] = uid
            if len(self._of) > MOST_PODS:
                self._drop(self._of.popitem(last=False)[1])
        else:
            self._of.move_to_end(uid)
        self._last_s = self._clock.monotonic()
        return decision

    def _drop(self, decision: Decision) -> None:
        if self._uid_of.get(decision.key) == decision.uid:
            del self._uid_of[decision.key]
        if isinstance(decision.raw, RawAnswer):
            self._raw.remove(decision)
        self._each_bytes -= self._each_sizes.pop(decision.uid, 0)

    # --- summaries --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Summarize answers while no verb is being answered, until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            await self._clock.sleep(SOON_S)
            while self._raw:
                raw = self._raw[0].raw
                assert isinstance(raw, RawAnswer)
                rest_s = self._last_s + IDLE_S - self._clock.monotonic()
                if len(raw.names) > _FEW_NODES and rest_s > 0:
                    await self._clock.sleep(rest_s)
                    continue
                self._sum_up(self._raw.popleft())
                await self._clock.sleep(0)

    def _sum_up(self, decision: Decision) -> None:
        # Imported late, to keep startup short.
        from gpushare.reasons.summary import sampled, summarized

        raw, decision.raw = decision.raw, None
        assert raw is not None
        if decision.scores is not None:
            decision.scores = _top_scores(decision.scores)
        self._each_bytes -= self._each_sizes.pop(decision.uid, 0)
        if isinstance(raw, SampledAnswer):
            decision.summary = sampled(*raw)
            return
        # Consecutive pods are usually offered the same nodes, so one list is shared.
        if raw.names != self._names:
            self._names = raw.names
        decision.summary, decision.each = summarized(self._names, raw.verdict)
        self._each_sizes[decision.uid] = decision.each.bytes
        self._each_bytes += decision.each.bytes
        while self._each_bytes > EACH_BYTES:
            uid, size = self._each_sizes.popitem(last=False)
            self._each_bytes -= size
            self._of[uid].each = None

    # --- queries -----------------------------------------------------------------------------------

    def of(self, uid: str) -> Decision | None:
        """The decision for the pod with that UID, summarized; ``None`` if there is none."""
        decision = self._of.get(uid)
        if decision is not None and decision.raw is not None:
            if isinstance(decision.raw, RawAnswer):
                self._raw.remove(decision)
            self._sum_up(decision)
        return decision

    async def page(self, path: str) -> bytes:
        """The JSON response for ``path``; raises ``Refusal``."""
        # Imported late, to keep startup short.
        from gpushare.scheduler.plugins.explain.decisions_api import decisions_response

        return await decisions_response(self, path)

    def uid_of(self, key: str) -> str:
        """UID of the pod ``namespace/name`` if it is pending, bound or was asked about; otherwise empty."""
        for pods in (self._view.waiting, self._view.bound):
            for uid, record in pods.items():
                if record.pod == key:
                    return uid
        return self._uid_of.get(key, "")

    def waiting(self) -> list[PendingPod]:
        """Every pending pod, the longest pending first."""
        from gpushare.scheduler.plugins.explain.pending_pods import each_pending_pod, longest_first

        return longest_first(each_pending_pod(self))

    def pending_non_gpu_pod(self, uid: str) -> "PodRecord | None":
        """The pod, if it is pending, requests no GPU of ours, and is counted by a policy or quota."""
        decision = self._of.get(uid)
        if decision is None or decision.request is not None or uid in self._view.waiting:
            return None
        if decision.bind is not None and not decision.bind.error:
            # The watch may be behind, and no longer covers the pod if its policy was deleted.
            return None
        return self.without_gpu(uid)

    def uids(self) -> list[str]:
        """UIDs of the pods that have a decision."""
        return list(self._of)

    def get(self, uid: str) -> Decision | None:
        """The decision for the pod with that UID, perhaps not summarized yet; ``None`` if there is none."""
        return self._of.get(uid)

    @property
    def now_s(self) -> float:
        """Seconds since 1970."""
        return self._clock.time_ns() / 1e9


def sample(raw: RawAnswer) -> SampledAnswer:
    """Reduce an answer to a sample; takes a few microseconds."""
    verdict = raw.verdict
    sampled = Verdict(
        verdict.fits[:_SAMPLE],
        dict(islice(verdict.refused.items(), _SAMPLE)),
        dict(islice(verdict.hopeless.items(), _SAMPLE)),
    )
    return SampledAnswer(
        len(raw.names), len(verdict.fits), len(verdict.refused) + len(verdict.hopeless), sampled
    )


def _shrink_raw(decision: Decision) -> None:
    """Reduce the raw answer to a sample, and the scores likewise."""
    assert isinstance(decision.raw, RawAnswer)
    decision.raw = sample(decision.raw)
    if decision.scores is not None:
        decision.scores = decision.scores._replace(best=decision.scores.best[:_SAMPLE])


def _top_scores(scores: Scores) -> Scores:
    best = sorted(scores.best, key=lambda node_score: -node_score[1])
    equals = sum(score == best[0][1] for _, score in best) if best else scores.nodes
    return Scores(best[:_TOP], scores.nodes, scores.equals or equals)
