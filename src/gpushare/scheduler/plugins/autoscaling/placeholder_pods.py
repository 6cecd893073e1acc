"""Creates placeholder pods for pods that fit a node's GPUs in sum but no single GPU. cluster-autoscaler only sees sums and adds no node.

A placeholder pod has the same request. It excludes the nodes that refused the pod, and requires a kind of node of which an empty one
would hold the pod, by the ledger's calculation. So cluster-autoscaler adds a node for it. One node is enough, as the placeholder pod fits
the new node. The placeholder pod is deleted when its pod is bound, deleted, or gets room in another way.

Nothing is persisted: placeholder pods are read from the API server, their names are derived from their pods' names, and a new leader
carries on. Every write is idempotent, so a process that is killed leaves at most one placeholder pod that the next process deletes.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Literal, Protocol

import msgspec

from gpushare.api.crd.placeholder_pod import (
    MOST_NAMED,
    UNSCHEDULABLE,
    Likeness,
    PlaceholderPod,
    obstacle,
    placeholder_for,
)
from gpushare.api.node.hosting import Guest
from gpushare.api.request.pluralize import counted
from gpushare.api.request.request import Request
from gpushare.kube.backoff import Backoff
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare.ledger.fit.empty_node import would_hold
from gpushare.process.log_setup import about
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.services import PodQuotas
from gpushare.scheduler.leader.lease import Leading
from gpushare.scheduler.plugins.autoscaling.settings import PlaceholderLimits
from gpushare.scheduler.requeue.last_refusals import RefusingNodes

logger = logging.getLogger(__name__)

#: Seconds between two looks.
LOOK_S: Final = 1.0
#: Seconds for which a new refusal may pass by itself (a node that was just added, say) before the pod is evaluated again.
SETTLE_S: Final = 5.0
#: Longest time, in seconds, between two placeholder pods for one pod.
_MAX_WAIT_S: Final = 600.0
#: Seconds for which a refused pod is remembered that the watch has not reported.
_UNSEEN_S: Final = 10.0
#: Seconds for which a created placeholder pod counts that the watch has not shown.
_UNSHOWN_S: Final = 150.0
#: Most pods evaluated in one look, and nodes examined per kind as to whether an empty one would hold the pod.
_MAX_EVALUATIONS: Final = 16
_EXAMPLES: Final = 3
#: Most nodes of the right kinds, not asked about by kube-scheduler, that are examined one by one.
_MAX_OTHERS: Final = 64

REASON_MADE: Final = "ScaleUpRequested"
REASON_NONE: Final = "ScaleUpNotPossible"


class Pods(Protocol):
    """Calls of the API server for pods (``gpushare.kube.client.client.Client``); all methods raise ``KubeError``."""

    async def get_guest(self, namespace: str, name: str) -> Guest:
        """The current pod."""

    async def create_pod(self, manifest: Mapping[str, Any]) -> None:
        """Create a pod."""

    async def delete_pod(self, namespace: str, name: str, *, uid: str) -> None:
        """Delete a pod without a grace period."""

    async def set_condition(
        self, namespace: str, name: str, condition: Mapping[str, str], *, uid: str
    ) -> None:
        """Set the pod's first condition."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Values of a node's labels: its ``hostname`` and its ``kind`` (empty: no such label)."""

    hostname: str
    kind: str


@dataclass(slots=True)
class _Refused:
    """When the pod was first and last refused, the result of its evaluation, and the attempts so far.

    ``wrong_since_s``: since when its placeholder pod no longer matches what is needed.
    """

    since_s: float
    last_refused_s: float
    hosts: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    evaluated_s: float = float("-inf")
    helps: bool = False
    wrong_since_s: float = float("inf")
    reported_reason: str = ""
    attempts: int = 0
    next_attempt_s: float = float("-inf")


class PlaceholderPods:
    """Creates and deletes placeholder pods. ``marks``: those of known nodes by name. ``ready``: whether all watches have listed."""

    def __init__(
        self,
        view: ClusterCache,
        pods: Pods,
        events: Recorder,
        clock: Clock,
        limits: PlaceholderLimits,
        leading: Leading,
        quotas: PodQuotas,
        *,
        marks: Mapping[str, Marks],
        ready: Callable[[], bool],
    ) -> None:
        self._view = view
        self._ledger = view.ledger
        self._pods = pods
        self._events = events
        self._clock = clock
        self._limits = limits
        self._leading = leading
        self._quotas = quotas
        self._marks = marks
        self._ready = ready
        self._refused: dict[str, _Refused] = {}
        self._nodes = RefusingNodes()
        self._existing: dict[str, PlaceholderPod] = {}
        self._unshown: dict[str, float] = {}
        """When placeholder pods were created that the watch has not shown, by the UID of the pod that they stand for."""
        self._woken = asyncio.Event()
        self._backoff = Backoff(first_s=LOOK_S)

    @property
    def count(self) -> int:
        """Number of placeholder pods."""
        return len(self._existing)

    # --- called by filter and the informers -----------------------------------------------------

    def refused(self, uid: str, nodes: Collection[str]) -> None:
        """No node took the pod; ``nodes`` would without other pods. The watch need not have reported the pod yet."""
        if not nodes:
            return
        now_s = self._clock.monotonic()
        self._nodes.note(uid, nodes)
        known = self._refused.get(uid)
        if known is None:
            self._refused[uid] = _Refused(now_s, now_s)
            self._woken.set()
        else:
            known.last_refused_s = now_s

    def synced(self) -> None:
        """The first list of placeholder pods is complete."""

    def upsert(self, item: PlaceholderPod) -> None:
        """A placeholder pod was listed, added or changed."""
        self._existing[item.stands_for] = item
        self._unshown.pop(item.stands_for, None)
        self._woken.set()

    def remove(self, key: str, last: PlaceholderPod) -> None:
        """A placeholder pod was deleted."""
        known = self._existing.get(last.stands_for)
        if known is not None and known.uid == last.uid:
            del self._existing[last.stands_for]

    # --- the loop -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Maintain the placeholder pods until cancelled, with exponential backoff after failures."""
        wait_s = LOOK_S
        while True:
            if not self._refused and not self._existing:
                await self._woken.wait()
            self._woken.clear()
            await self._clock.sleep(wait_s)
            try:
                await self.look()
            except KubeError as error:
                wait_s = self._backoff.next_s()
                logger.warning("placeholder pods: %s; looking again in %.1f s", error, wait_s)
            else:
                self._backoff.reset()
                wait_s = LOOK_S

    async def look(self) -> None:
        """Delete, mark and create placeholder pods once. Raises ``KubeError`` at the first temporary failure."""
        if not self._ready():
            return
        now_s = self._clock.monotonic()
        self._forget(now_s)
        wanted = self._wanted(now_s)
        existing = [placeholder for placeholder in self._existing.values() if not placeholder.leaving]
        needless = [placeholder for placeholder in existing if self._is_needless(placeholder, now_s)]
        unmarked = [
            placeholder
            for placeholder in existing
            if not placeholder.unschedulable and placeholder not in needless
        ]
        made = self._existing.keys() | self._unshown.keys()
        missing = [uid for uid in wanted if uid not in made and now_s >= self._refused[uid].next_attempt_s]
        missing = missing[: max(self._limits.most - len(made), 0)]
        if not (needless or unmarked or missing) or not await self._leading.leads():
            return
        for placeholder in needless:
            await self._write(
                self._pods.delete_pod(self._limits.namespace, placeholder.name, uid=placeholder.uid)
            )
        for placeholder in unmarked:
            await self._mark_unschedulable(placeholder.name, placeholder.uid)
        for uid in missing:
            await self._make(uid, now_s)

    def _forget(self, now_s: float) -> None:
        self._unshown = {
            uid: made_s
            for uid, made_s in self._unshown.items()
            if uid not in self._existing and now_s <= made_s + _UNSHOWN_S
        }
        for uid, refused in list(self._refused.items()):
            if uid not in self._view.waiting and now_s > refused.since_s + _UNSEEN_S:
                del self._refused[uid]
                self._nodes.forget(uid)

    def _wanted(self, now_s: float) -> list[str]:
        """UIDs of the pods for which a placeholder pod helps: highest priority first, then the longest refused."""
        due = sorted(
            (-record.priority, refused.since_s, uid)
            for uid, refused in self._refused.items()
            if now_s >= refused.since_s + self._limits.wait_s
            and (refused.helps or self._nodes.of(uid))
            and (record := self._view.waiting.get(uid)) is not None
            and self._is_eligible(record)
        )
        evaluations_left = _MAX_EVALUATIONS
        wanted: list[str] = []
        for _, _, uid in due:
            refused, request = self._refused[uid], self._view.waiting[uid].request
            refused_again = refused.evaluated_s <= refused.last_refused_s and bool(self._nodes.of(uid))
            if refused_again and now_s >= refused.evaluated_s + SETTLE_S and evaluations_left:
                evaluations_left -= 1
                assert request is not None
                self._evaluate(uid, refused, request)
                refused.evaluated_s = now_s
            if refused.helps:
                wanted.append(uid)
        return wanted

    def _is_eligible(self, record: PodRecord) -> bool:
        """Whether the pod may have a placeholder pod.

        Not if quotas refuse it or room is being made for it. Gangs have their own rules. For whole GPUs sums are accurate.
        """
        request = record.request
        return (
            request is not None
            and not request.by_gpu
            and record.gang is None
            and not self._ledger.nominations.node_of(record.uid)
            and self._ledger.held(record.uid) is None
            and not self._quotas.refusal(record.uid)
        )

    def _evaluate(self, uid: str, refused: _Refused, request: Request) -> None:
        """Determine whether a node would help that cluster-autoscaler would not add itself, of which kinds, and which nodes to exclude."""
        refused.helps = False
        known = [name for name in self._nodes.of(uid) if name in self._marks and self._has_gpus(name)]
        if not self._sum_suffices(request, known) or self._ledger.best(request, known) is not None:
            # Either the sums do not suffice, which cluster-autoscaler sees, or the pod is pending for a reason other than its GPU.
            return
        if (
            existing := self._existing.get(uid)
        ) is not None and existing.likeness.key == self._limits.kind_label:
            refused.hosts |= existing.likeness.hosts
            refused.kinds |= existing.likeness.kinds
        refused.kinds |= self._kinds_that_hold(request, known)
        refused.hosts &= {marks.hostname for marks in self._marks.values()}
        refused.hosts |= {
            self._marks[name].hostname for name in (*known, *self._others(request, refused, known))
        }
        if not refused.kinds:
            kind = self._limits.kind_label
            self._report_obstacle(uid, f"it would not fit any node with the label {kind}, even an empty one")
        elif len(refused.hosts) > MOST_NAMED:
            self._report_obstacle(
                uid,
                f"more than {MOST_NAMED} nodes have enough free in total, which is more than a placeholder pod can exclude",
            )
        else:
            refused.helps = True

    def _has_gpus(self, name: str) -> bool:
        """Whether the node has reported its GPUs; a new node may not have yet."""
        node = self._ledger.node(name)
        return node is not None and bool(node.devices)

    def _sum_suffices(self, request: Request, nodes: list[str]) -> bool:
        """Whether the GPUs of one of the nodes together have enough, which is what cluster-autoscaler checks: it knows no GPU's model."""
        total_request = msgspec.structs.replace(
            request, memory_units=request.memory_units * request.gpu_count, selection=None
        )
        with_enough_memory = self._ledger.evictions.scattered(total_request, nodes)
        core_percent = request.core_percent * request.gpu_count
        return any(self._free_core(name) >= core_percent for name in with_enough_memory)

    def _free_core(self, name: str) -> int:
        gpus = self._ledger.usage(name).gpus
        return sum(100 - gpu.used_core for gpu in gpus)

    def _kinds_that_hold(self, request: Request, nodes: Collection[str]) -> set[str]:
        examples: dict[str, list[str]] = {}
        for name in nodes:
            kind = self._marks[name].kind
            if kind:
                examples.setdefault(kind, []).append(name)
        return {
            kind
            for kind, node_names in examples.items()
            if any(
                (node := self._ledger.node(name)) is not None and would_hold(node, request)
                for name in node_names[:_EXAMPLES]
            )
        }

    def _others(self, request: Request, refused: _Refused, known: Collection[str]) -> list[str]:
        """Other nodes of the same kinds that cannot take the pod now, though their sums may suffice (a GPU is cordoned, say)."""
        asked = set(known)
        unasked = (
            name for name, marks in self._marks.items() if marks.kind in refused.kinds and name not in asked
        )
        return [
            name
            for name in islice(unasked, _MAX_OTHERS)
            if self._has_gpus(name) and self._ledger.best(request, [name]) is None
        ]

    def _is_needless(self, placeholder: PlaceholderPod, now_s: float) -> bool:
        """Whether its pod does not need it, or needs a different one.

        It stays while its pod is pending and kube-scheduler has not called the extender for the pod since this replica leads.
        """
        record = self._view.waiting.get(placeholder.stands_for)
        if record is None or not self._is_eligible(record):
            return True
        refused = self._refused.get(placeholder.stands_for)
        if refused is None or refused.evaluated_s == float("-inf"):
            return False
        likeness = placeholder.likeness
        fits = refused.hosts <= likeness.hosts and refused.kinds <= likeness.kinds
        if refused.helps and fits and likeness.key == self._limits.kind_label:
            refused.wrong_since_s = float("inf")
            return False
        refused.wrong_since_s = min(refused.wrong_since_s, now_s)
        return now_s >= refused.wrong_since_s + SETTLE_S

    # --- writes ---------------------------------------------------------------------------------

    async def _make(self, uid: str, now_s: float) -> None:
        refused, record = self._refused.get(uid), self._view.waiting.get(uid)
        if refused is None or record is None:
            return  # bound or deleted while other pods were processed
        namespace, _, name = record.pod.partition("/")
        try:
            guest = await self._pods.get_guest(namespace, name)
        except ApiError as error:
            if error.not_found:
                return
            raise
        if guest.metadata.uid != uid or guest.spec.node_name or guest.metadata.deletion_timestamp is not None:
            return
        refused.next_attempt_s = now_s + min(SETTLE_S * 2**refused.attempts, _MAX_WAIT_S)
        refused.attempts += 1
        if reason := obstacle(guest):
            self._report_obstacle(uid, reason)
            return
        likeness = Likeness(frozenset(refused.hosts), self._limits.kind_label, frozenset(refused.kinds))
        manifest = placeholder_for(guest, likeness, self._limits.namespace)
        try:
            await self._pods.create_pod(manifest)
        except ApiError as error:
            if error.conflict:
                self._unshown[uid] = now_s
                return  # it exists: the watch will report it
            if error.passing:
                raise
            self._report_obstacle(uid, f"its placeholder pod was refused: {error.problem}")
            return
        self._unshown[uid] = now_s
        kinds = ", ".join(sorted(likeness.kinds))
        note = f"no single GPU of {counted(len(likeness.hosts), 'node')} has enough free, only all GPUs of a node together: placeholder pod {manifest['metadata']['name']} requests a node of kind {kinds} from cluster-autoscaler"
        logger.info("pod %s: %s", record.pod, note, extra=about(pod=record.pod, uid=uid))
        self._record_event(record, REASON_MADE, note, kind="Normal")

    async def _mark_unschedulable(self, name: str, uid: str) -> None:
        """Set the condition Unschedulable, which kube-scheduler sets only for pods that it schedules itself."""
        note = "no single GPU of the existing nodes fits the pod that this placeholder represents"
        condition = {**UNSCHEDULABLE, "message": note}
        await self._write(self._pods.set_condition(self._limits.namespace, name, condition, uid=uid))

    async def _write(self, writing: Any) -> None:
        try:
            await writing
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise  # otherwise it was deleted, or replaced by a pod of the same name

    def _report_obstacle(self, uid: str, obstacle_text: str) -> None:
        """Record an event about why no node is requested, once per reason."""
        refused, record = self._refused[uid], self._view.waiting.get(uid)
        if record is not None and refused.reported_reason != obstacle_text:
            refused.reported_reason = obstacle_text
            note = f"no single GPU has enough free, which cluster-autoscaler cannot see, and no scale-up was requested: {obstacle_text}"
            self._record_event(record, REASON_NONE, note, kind="Warning")

    def _record_event(
        self, record: PodRecord, reason: str, note: str, *, kind: Literal["Normal", "Warning"]
    ) -> None:
        self._events.record(
            record.reference(),
            kind=kind,
            reason=reason,
            action="Autoscaling",
            note=note,
            occurrence="lasting" if reason == REASON_NONE else "each",
        )
