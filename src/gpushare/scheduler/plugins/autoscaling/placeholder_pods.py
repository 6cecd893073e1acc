"""Makes placeholder pods for pods that a node's sum would hold and no single GPU does: cluster-autoscaler sees sums, and would make no node.

A placeholder pod asks for the same, on none of the nodes that refused the pod, and on a kind of node of which an empty one would hold it, by
the ledger's own word. So a node is made for it, and one is enough: when that is there the placeholder pod fits it. It goes when its pod has a
node, is gone, or gets room in another way.

Nothing is kept: placeholder pods are read from the API server, their names follow from their pods', and whoever leads next goes on. Each write is
one that may be repeated, so a process that is killed at any moment leaves at most a placeholder pod that the next one takes away.
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

#: Seconds: between two looks; how long a new refusal is given to pass (of a node that has just come, say) before a placeholder pod is made
#: anew for it; the longest wait between two that are made for one pod; how long a pod is remembered of which no watch tells.
LOOK_S: Final = 1.0
SETTLE_S: Final = 5.0
_MOST_WAIT_S: Final = 600.0
_UNSEEN_S: Final = 10.0
#: Pods worked on in one look, and nodes of one kind that are asked whether an empty one would do.
_LOOKED_AT: Final = 16
_EXAMPLES: Final = 3
#: Nodes of the right kinds that were not asked about and are looked at one by one.
_OTHERS: Final = 64

REASON_MADE: Final = "ScaleUpRequested"
REASON_NONE: Final = "ScaleUpNotPossible"


class Pods(Protocol):
    """What is asked of the API server (``gpushare.kube.client.client.Client``); all methods raise ``KubeError``."""

    async def get_guest(self, namespace: str, name: str) -> Guest:
        """The pod as it is."""

    async def create_pod(self, manifest: Mapping[str, Any]) -> None:
        """Make a pod."""

    async def delete_pod(self, namespace: str, name: str, *, uid: str) -> None:
        """Delete a pod at once."""

    async def set_condition(
        self, namespace: str, name: str, condition: Mapping[str, str], *, uid: str
    ) -> None:
        """Give a pod its first condition."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What a node is called in its labels: its ``hostname``, and its ``kind`` (empty: none)."""

    hostname: str
    kind: str


@dataclass(slots=True)
class _Refused:
    """Since when the pod is refused, and when it was last; what follows from that, and what was done.

    ``wrong_s``: since when its placeholder pod is not what it should be.
    """

    since_s: float
    heard_s: float
    hosts: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    thought_s: float = float("-inf")
    helps: bool = False
    wrong_s: float = float("inf")
    said: str = ""
    made: int = 0
    next_s: float = float("-inf")


class PlaceholderPods:
    """``marks`` are of known nodes, by name; ``ready`` tells whether pods, nodes and placeholder pods were read."""

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
        self._there: dict[str, PlaceholderPod] = {}
        self._woken = asyncio.Event()
        self._backoff = Backoff(first_s=LOOK_S)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._there)

    # --- what filter and the informers tell -----------------------------------------------------

    def refused(self, uid: str, nodes: Collection[str]) -> None:
        """No node took the pod; ``nodes`` would if others were not there. It need not be known yet."""
        if not nodes:
            return
        now_s = self._clock.monotonic()
        self._nodes.note(uid, nodes)
        known = self._refused.get(uid)
        if known is None:
            self._refused[uid] = _Refused(now_s, now_s)
            self._woken.set()
        else:
            known.heard_s = now_s

    def synced(self) -> None:
        """The first list of placeholder pods is complete."""

    def upsert(self, item: PlaceholderPod) -> None:
        """A placeholder pod is there."""
        self._there[item.stands_for] = item
        self._woken.set()

    def remove(self, key: str, last: PlaceholderPod) -> None:
        """A placeholder pod is gone."""
        known = self._there.get(last.stands_for)
        if known is not None and known.uid == last.uid:
            del self._there[last.stands_for]

    # --- the loop -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the placeholder pods that are needed, for ever; after a failure with longer and longer waits."""
        wait_s = LOOK_S
        while True:
            if not self._refused and not self._there:
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
        """Take away, mend and make what is due once; raises ``KubeError`` at the first failure that may pass."""
        if not self._ready():
            return
        now_s = self._clock.monotonic()
        self._forget(now_s)
        wanted = self._wanted(now_s)
        there = [one for one in self._there.values() if not one.leaving]
        needless = [one for one in there if self._needless(one, now_s)]
        untold = [one for one in there if not one.told and one not in needless]
        missing = [uid for uid in wanted if uid not in self._there and now_s >= self._refused[uid].next_s]
        missing = missing[: max(self._limits.most - len(self._there), 0)]
        if not (needless or untold or missing) or not await self._leading.leads():
            return
        for one in needless:
            await self._write(self._pods.delete_pod(self._limits.namespace, one.name, uid=one.uid))
        for one in untold:
            await self._tell_autoscaler(one.name, one.uid)
        for uid in missing:
            await self._make(uid, now_s)

    def _forget(self, now_s: float) -> None:
        for uid, refused in list(self._refused.items()):
            if uid not in self._view.waiting and now_s > refused.since_s + _UNSEEN_S:
                del self._refused[uid]
                self._nodes.forget(uid)

    def _wanted(self, now_s: float) -> list[str]:
        """Pods for which a placeholder pod helps, the most important first, then who waits for longest."""
        due = sorted(
            (-record.priority, refused.since_s, uid)
            for uid, refused in self._refused.items()
            if now_s >= refused.since_s + self._limits.wait_s
            and (refused.helps or self._nodes.of(uid))
            and (record := self._view.waiting.get(uid)) is not None
            and self._may_have_one(record)
        )
        looks = _LOOKED_AT
        found: list[str] = []
        for _, _, uid in due:
            refused, request = self._refused[uid], self._view.waiting[uid].request
            news = refused.thought_s <= refused.heard_s and bool(self._nodes.of(uid))
            if news and now_s >= refused.thought_s + SETTLE_S and looks:
                looks -= 1
                assert request is not None
                self._think(uid, refused, request)
                refused.thought_s = now_s
            if refused.helps:
                found.append(uid)
        return found

    def _may_have_one(self, record: PodRecord) -> bool:
        """Not where quotas keep it back, or room is made for it; gangs have rules of their own, and whole GPUs are counted by sums rightly."""
        request = record.request
        return (
            request is not None
            and not request.by_gpu
            and record.gang is None
            and not self._ledger.nominations.node_of(record.uid)
            and self._ledger.held(record.uid) is None
            and not self._quotas.refusal(record.uid)
        )

    def _think(self, uid: str, refused: _Refused, request: Request) -> None:
        """Whether a new node would help that cluster-autoscaler does not see to be needed, of which kind, and where it may not be."""
        refused.helps = False
        known = [name for name in self._nodes.of(uid) if name in self._marks and self._has_gpus(name)]
        if not self._sum_would_do(request, known) or self._ledger.best(request, known) is not None:
            # Sums say the same as GPUs, so it sees by itself; or it is for another reason than its GPU that the pod waits.
            return
        if (there := self._there.get(uid)) is not None and there.likeness.key == self._limits.kind_label:
            refused.hosts |= there.likeness.hosts
            refused.kinds |= there.likeness.kinds
        refused.kinds |= self._kinds_that_hold(request, known)
        refused.hosts &= {marks.hostname for marks in self._marks.values()}
        refused.hosts |= {
            self._marks[name].hostname for name in (*known, *self._others(request, refused, known))
        }
        if not refused.kinds:
            kind = self._limits.kind_label
            self._say_none(uid, f"no node with a label {kind} would hold it even if it were empty")
        elif len(refused.hosts) > MOST_NAMED:
            self._say_none(uid, f"more than {MOST_NAMED} nodes have room for it on their GPUs together")
        else:
            refused.helps = True

    def _has_gpus(self, name: str) -> bool:
        """Of a node that has just come nothing can be said yet."""
        node = self._ledger.node(name)
        return node is not None and bool(node.devices)

    def _sum_would_do(self, request: Request, nodes: list[str]) -> bool:
        """Whether all GPUs of one of the nodes together have enough, which is what cluster-autoscaler asks."""
        in_all = msgspec.structs.replace(request, memory_units=request.memory_units * request.gpu_count)
        found = self._ledger.evictions.scattered(in_all, nodes)
        core_percent = request.core_percent * request.gpu_count
        return any(self._free_core(name) >= core_percent for name in found)

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
            for kind, some in examples.items()
            if any(
                (node := self._ledger.node(name)) is not None and would_hold(node, request)
                for name in some[:_EXAMPLES]
            )
        }

    def _others(self, request: Request, refused: _Refused, known: Collection[str]) -> list[str]:
        """Nodes of the same kinds that were not asked about, or never will do (a GPU is cordoned, say): its sum may hold it all the same."""
        passed = set(known)
        some = (
            name for name, marks in self._marks.items() if marks.kind in refused.kinds and name not in passed
        )
        return [
            name
            for name in islice(some, _OTHERS)
            if self._has_gpus(name) and self._ledger.best(request, [name]) is None
        ]

    def _needless(self, one: PlaceholderPod, now_s: float) -> bool:
        """Whether its pod does not need it, or needs another. Of a pod that nobody has asked about since we lead only that it waits is known."""
        record = self._view.waiting.get(one.stands_for)
        if record is None or not self._may_have_one(record):
            return True
        refused = self._refused.get(one.stands_for)
        if refused is None or refused.thought_s == float("-inf"):
            return False
        likeness = one.likeness
        fits = refused.hosts <= likeness.hosts and refused.kinds <= likeness.kinds
        if refused.helps and fits and likeness.key == self._limits.kind_label:
            refused.wrong_s = float("inf")
            return False
        refused.wrong_s = min(refused.wrong_s, now_s)
        return now_s >= refused.wrong_s + SETTLE_S

    # --- writes ---------------------------------------------------------------------------------

    async def _make(self, uid: str, now_s: float) -> None:
        refused, record = self._refused.get(uid), self._view.waiting.get(uid)
        if refused is None or record is None:
            return  # bound or gone while others were seen to
        namespace, _, name = record.pod.partition("/")
        try:
            guest = await self._pods.get_guest(namespace, name)
        except ApiError as error:
            if error.not_found:
                return
            raise
        if guest.metadata.uid != uid or guest.spec.node_name or guest.metadata.deletion_timestamp is not None:
            return
        refused.next_s = now_s + min(SETTLE_S * 2**refused.made, _MOST_WAIT_S)
        refused.made += 1
        if why := obstacle(guest):
            self._say_none(uid, why)
            return
        likeness = Likeness(frozenset(refused.hosts), self._limits.kind_label, frozenset(refused.kinds))
        manifest = placeholder_for(guest, likeness, self._limits.namespace)
        try:
            await self._pods.create_pod(manifest)
        except ApiError as error:
            if error.conflict:
                return  # it is there: the watch tells of it in a moment
            if error.passing:
                raise
            self._say_none(uid, f"its placeholder pod was refused: {error.problem}")
            return
        kinds = ", ".join(sorted(likeness.kinds))
        note = f"its node's sum would do and no single GPU of {counted(len(likeness.hosts), 'node')} does: placeholder pod {manifest['metadata']['name']} asks cluster-autoscaler for a node of kind {kinds}"
        logger.info("pod %s: %s", record.pod, note, extra=about(pod=record.pod, uid=uid))
        self._tell(record, REASON_MADE, note, kind="Normal")

    async def _tell_autoscaler(self, name: str, uid: str) -> None:
        """kube-scheduler says of its own pods that they are unschedulable; of these nobody does."""
        note = "no single GPU of the nodes that are there holds the pod that it stands for"
        condition = {**UNSCHEDULABLE, "message": note}
        await self._write(self._pods.set_condition(self._limits.namespace, name, condition, uid=uid))

    async def _write(self, writing: Any) -> None:
        try:
            await writing
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise  # else it is gone, or another by now

    def _say_none(self, uid: str, why: str) -> None:
        """Once for each reason."""
        refused, record = self._refused[uid], self._view.waiting.get(uid)
        if record is not None and refused.said != why:
            refused.said = why
            note = f"no single GPU holds it and cluster-autoscaler does not see that; no node is asked for: {why}"
            self._tell(record, REASON_NONE, note, kind="Warning")

    def _tell(self, record: PodRecord, reason: str, note: str, *, kind: Literal["Normal", "Warning"]) -> None:
        self._events.record(
            record.reference(),
            kind=kind,
            reason=reason,
            action="Autoscaling",
            note=note,
            telling="standing" if reason == REASON_NONE else "each",
        )
