"""The scheduler and kube-scheduler in this process: pods arrive in order, and are bound or stay pending.

Decisions are made by the scheduler's own code: its cache and ledger, its verbs filter, prioritize and bind, its gangs,
ResourcePolicies, elastic quotas and preemption. The API server is a dictionary here, and its watch events are delivered
immediately. No pod ends by itself.
"""

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.crd.elastic_quota_tree import decode_quota_tree
from gpushare.api.crd.resource_policy import decode_policy, policy_pod_of
from gpushare.api.errors import InvalidRequest
from gpushare.api.json_objects import Json, key_of, name_of, namespace_of, spec_of, uid_of
from gpushare.api.node.device import Placement
from gpushare.api.objects import ObjectReference, Pod, decode_node, decode_pod
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.pod_group import gang_of
from gpushare.api.request.request import request_of
from gpushare.kube.client.errors import ApiError
from gpushare.kubescheduler.fit_error import fit_error
from gpushare.kubescheduler.node_usage import Occupancy, priority_of
from gpushare.kubescheduler.scores import MAX_NODE_SCORE, best, weighed
from gpushare.ledger import Ledger
from gpushare.reasons.kube_scheduler import unserved_text
from gpushare.reasons.unscheduled import Unplaced
from gpushare.scheduler.cache.cache import ClusterCache, NodeReader
from gpushare.scheduler.cache.pod_records import PodRecord, counted_record_of, record_of
from gpushare.scheduler.framework.binder import RESERVATION_TTL_S, Binder, BindRefused, Reservations
from gpushare.scheduler.framework.cycle import filter_nodes, prioritize_nodes
from gpushare.scheduler.framework.cycle_state import CycleState
from gpushare.scheduler.framework.runtime import Enabled, Framework
from gpushare.scheduler.plugins.elastic_quota.counted_pods import quota_record_of
from gpushare.scheduler.plugins.elastic_quota.quotas import Quotas
from gpushare.scheduler.plugins.gangs.plugin import Gangs
from gpushare.scheduler.plugins.resource_policy.plugin import Policies
from gpushare.scheduler.plugins.resource_policy.prebind import PolicyBinding
from gpushare.scheduler.server import protocol
from gpushare.simulate.engine.claims import CANNOT_ALLOCATE, Claims
from gpushare.simulate.engine.eviction import Evicting, Eviction
from gpushare.simulate.engine.filter_cache import Columns
from gpushare.simulate.engine.virtual_clock import JumpingClock
from gpushare.simulate.errors import SimulateError
from gpushare.simulate.peers.ledger import RULES, PeerLedger
from gpushare.simulate.snapshot import ClusterState

#: The weight of the extender's points in the charts, on the scale of kube-scheduler's own.
EXTENDER_WEIGHT: Final = 5
_SCALE: Final = EXTENDER_WEIGHT * MAX_NODE_SCORE // 10
#: Turns of the loop that a bind gets before the next pod is tried: it only needs more if it waits for other pods.
_TURNS: Final = 4
_LEFT_TO_EXTENDER: Final = frozenset((names.GPU_MEM, names.GPU_CORE, names.GPU_WHOLE))
#: Schedulers that run here; the API server writes the default scheduler's name if there is none.
_RUNNING: Final = frozenset((None, "", "default-scheduler", names.SCHEDULER_NAME))


class Settings(msgspec.Struct, frozen=True):
    """Settings of scheduler and kube-scheduler. ``seed`` decides between nodes with equal score.

    ``ignored_by_scheduler``: kube-scheduler leaves our resources to the extender (``extender.ignoredByScheduler``). ``unit`` applies to nodes
    whose agent does not report one. ``preemption``: lower-priority pods are evicted for others. ``peer``: the name of a peer's policy
    (``peers.names``), which then chooses nodes and GPUs instead of ``policy``; empty: none.
    """

    policy: Placement = Placement.BINPACK
    isolated_cap: int = 16
    unit: MemoryUnit = MemoryUnit.GIB
    ignored_by_scheduler: bool = True
    seed: int = 0
    preemption: bool = True
    peer: str = ""

    @property
    def policy_name(self) -> str:
        """The value of ``--policy``."""
        return self.peer or self.policy.value


class Refused(Exception):
    """Why a pod stays pending, as in its condition."""


class _NoEvents:
    """Discards events."""

    def record(
        self,
        regarding: ObjectReference,
        *,
        kind: str,
        reason: str,
        action: str,
        note: str,
        cause: str = "",
        occurrence: str = "each",
    ) -> None:
        """Discard the event."""


class _Answer(msgspec.Struct, rename="pascal"):
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None


class _Priority(msgspec.Struct, rename="pascal"):
    host: str
    score: int


_ANSWER: Final = msgspec.json.Decoder(_Answer)
_PRIORITIES: Final = msgspec.json.Decoder(list[_Priority])


class Scheduling:
    """A cluster that takes pods, for one event loop: a ``JumpingLoop``, if waiting for gangs should take no real time."""

    def __init__(self, state: ClusterState, settings: Settings, clock: JumpingClock) -> None:
        self.pods: dict[str, Json] = {}
        """Every pod by ``NAMESPACE/NAME``, in its current state at the API server."""
        self._chance = random.Random(settings.seed).random  # noqa: S311 - the same seed must repeat the same result
        self._by_peer = bool(settings.peer)
        self.ledger = (
            PeerLedger(RULES[settings.peer], self._chance)
            if settings.peer
            else Ledger(node_policy=settings.policy)
        )
        self._reservations = Reservations(RESERVATION_TTL_S)
        self._policies = Policies(clock, kept_on=self.ledger.nominations.node_of)
        self._view = ClusterCache(
            self.ledger,
            _NoEvents(),
            self._reservations.end,
        )
        self._quotas = Quotas(self._view, _NoEvents())
        gangs = Gangs(self._view, clock, quotas=self._quotas, governs=self._policies.governs)
        self._framework = Framework(
            [
                Enabled("gangs", gangs),
                Enabled("elastic-quota", self._quotas),
                Enabled("resource-policy", self._policies),
                Enabled("unit labels", PolicyBinding(self, self._policies, clock)),
                Enabled("evictions", self),
            ]
        )
        self._binder = Binder(self._view, self, self._reservations, clock, self._framework)
        self._read_record = counted_record_of if settings.policy is Placement.FRAGMENTATION else record_of
        self._reader = NodeReader(
            unit=settings.unit, isolated_cap=settings.isolated_cap, node_policy=settings.policy
        )
        self._nodes = Occupancy()
        ignored = _LEFT_TO_EXTENDER if settings.ignored_by_scheduler else frozenset()
        self._columns = Columns(self._nodes, ignored)
        for node in state.nodes:
            self._add_node(node)
        self.claims = Claims(state, self.ledger, settings.isolated_cap)
        self._take_rules(state)
        self._evicting: Evicting | None = None
        for pod in state.pods:
            self.see(pod)
        if settings.preemption:
            self._evicting = Evicting(
                self, self._view, self._nodes, self._policies, state.budgets, clock, gangs, self._quotas
            )

    def _take_rules(self, state: ClusterState) -> None:
        for policy in state.policies:
            try:
                read = decode_policy(msgspec.json.encode(policy))
            except ValueError as error:
                raise SimulateError("", str(error)) from None
            self._policies.upsert_policy(read)
        self._policies.unread.clear()
        for tree in state.quota_trees:
            record = decode_quota_tree(msgspec.json.encode(tree))
            if record.problem:
                raise SimulateError(f"{names.QUOTA_KIND} {record.name}", record.problem)
            self._quotas.upsert(record)

    def _add_node(self, node: Json) -> None:
        self._nodes.set_node(node)
        self._columns.changed(name_of(node))
        read = decode_node(node)
        self._view.upsert_node(self._reader.read(read))
        self._policies.census.set_node(read.metadata.name, read.metadata.labels or {})

    # --- the API server and its watch events -------------------------------------------------------

    def arrive(self, pod: Json) -> None:
        """Create a pod without a node. Raises ``SimulateError`` if its name is taken."""
        if key_of(pod) in self.pods:
            raise SimulateError(f"pod {key_of(pod)}", "exists already; rename the new one")
        self.see(pod)

    @property
    def evictions(self) -> Sequence[Eviction]:
        """All evictions so far."""
        return () if self._evicting is None else self._evicting.evictions

    def see(self, pod: Json) -> None:
        """Deliver an added or changed pod to the informers of extender and kube-scheduler."""
        self.pods[key_of(pod)] = pod
        if self._evicting is not None:
            self._evicting.budgets.upsert(pod)
        read = decode_pod(pod)
        record = self._record_of(read)
        if record is not None:
            self._view.upsert_pod(record)
        if namespace_of(pod) in self._policies.census.namespaces:
            self._policies.upsert_pod(policy_pod_of(read))
        if read.spec.node_name:
            self.claims.upsert_pod(read)
            self._nodes.place(pod)
            self._columns.changed(read.spec.node_name)

    def remove_pod(self, pod: Json) -> None:
        """Deliver the deletion of a bound pod to them."""
        del self.pods[key_of(pod)]
        if self._evicting is not None:
            self._evicting.budgets.remove(pod)
        read = decode_pod(pod)
        record = self._record_of(read)
        if record is not None:
            self._view.remove_pod(record)
        if namespace_of(pod) in self._policies.census.namespaces:
            self._policies.remove_pod(policy_pod_of(read))
        self.claims.remove_pod(read)
        self._nodes.remove(read.metadata.uid)
        self._columns.changed(read.spec.node_name)

    def _record_of(self, pod: Pod) -> PodRecord | None:
        return quota_record_of(pod, self._quotas.followed, self._read_record)

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """The current pod; raises ``ApiError``."""
        try:
            return decode_pod(self.pods[f"{namespace}/{name}"])
        except KeyError:
            raise ApiError(404, "NotFound", "", "") from None

    async def bind(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        """Apply a Binding, and deliver the change."""
        pod = self.pods[f"{namespace}/{name}"]
        meta = {
            **pod["metadata"],
            "annotations": {**(pod["metadata"].get("annotations") or {}), **annotations},
        }
        self.see({**pod, "metadata": meta, "spec": {**pod["spec"], "nodeName": node}})

    async def annotate_pod(
        self,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        uid: str,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        """Set annotations and labels (``None``: remove them), and deliver the change."""
        pod = self.pods[f"{namespace}/{name}"]
        meta = dict(pod["metadata"])
        for place, changes in (("annotations", annotations), ("labels", labels or {})):
            merged = {**(meta.get(place) or {}), **changes}
            meta[place] = {key: text for key, text in merged.items() if text is not None}
        self.see({**pod, "metadata": meta})

    # --- kube-scheduler -------------------------------------------------------------------------------

    async def schedule(
        self, keys: Sequence[str], on_attempt: Callable[[str, str], None] = lambda key, why: None
    ) -> dict[str, str]:
        """Schedule pods that have arrived, and retry pending ones as long as others are placed.

        Returns the reason for each pod that stays pending, and for each that was evicted and has no place. ``on_attempt`` is called
        with the reason after each attempt (empty: the pod has a node).
        """
        queue = sorted(keys, key=self._rank)
        while True:
            evictions_before = len(self.evictions)
            reasons = await self._pass(queue, on_attempt)
            if len(self.evictions) == evictions_before and (not reasons or len(reasons) == len(queue)):
                if self._evicting is None:
                    return reasons
                explained = {key: self._evicting.why(key, reason) for key, reason in reasons.items()}
                return explained | self._evicting.gone
            queue = [key for key in queue if key in reasons]
            if self._evicting is not None:
                again, self._evicting.again = self._evicting.again, []
                queue = sorted(dict.fromkeys([*queue, *again]), key=self._rank)

    def _rank(self, key: str) -> tuple[int, str]:
        pod = self.pods[key]
        # Pods of the simulation are younger than all existing ones.
        return -priority_of(pod), str(pod["metadata"].get("creationTimestamp") or "~")

    async def _pass(self, queue: Sequence[str], on_attempt: Callable[[str, str], None]) -> dict[str, str]:
        reasons: dict[str, str] = {}
        under_way: dict[str, asyncio.Task[None]] = {}
        for key in queue:
            if self._evicting is not None and self._evicting.is_due:
                await self._evicting.settle()
            try:
                task = asyncio.create_task(self._bind(key, self._choose(self.pods[key])))
                for _ in range(_TURNS):
                    if task.done():
                        break
                    await asyncio.sleep(0)
                if not task.done():
                    under_way[key] = task
                    continue
                await task
            except Refused as refused:
                reasons[key] = str(refused)
            on_attempt(key, reasons.get(key, ""))
        # Pods of a gang wait for each other.
        for key, task in under_way.items():
            try:
                await task
            except Refused as refused:
                reasons[key] = str(refused)
            on_attempt(key, reasons.get(key, ""))
        if self._evicting is not None:
            await self._evicting.settle()
        return {key: reason for key, reason in reasons.items() if key in self.pods}

    def _choose(self, pod: Json) -> str:
        """The node for the pod, possibly after evictions; raises ``Refused``."""
        try:
            return self._choose_of(pod)
        except Refused:
            if self._evicting is not None and self._evicting.remove_terminating():
                return self._choose(pod)
            node = self._by_sums(pod)
            if not node:
                raise
        with suppress(Refused):
            return self._choose_of(pod, node)
        return self._choose_of(pod)

    def _by_sums(self, pod: Json) -> str:
        if self._evicting is None or spec_of(pod).get("schedulingGates"):
            return ""
        ours = spec_of(pod).get("schedulerName") == names.SCHEDULER_NAME
        column = self._columns.of(pod, by_extender=ours)
        if _unserved(pod, column.wanted.requests):
            return ""
        feasible = column.feasible()
        refusing = (state for state in self._nodes if state.name not in feasible)
        return self._evicting.by_sums(pod, column.wanted, refusing, by_extender=ours)

    def _choose_of(self, pod: Json, nominated: str = "") -> str:
        """The node for the pod: any, or only ``nominated``; raises ``Refused``."""
        if spec_of(pod).get("schedulingGates"):
            raise Refused("it has scheduling gates: it is not scheduled until they are removed")
        if not len(self._nodes):
            raise Refused("no nodes available to schedule pods")
        ours = spec_of(pod).get("schedulerName") == names.SCHEDULER_NAME
        column = self._columns.of(pod, by_extender=ours)
        if unserved := _unserved(pod, column.wanted.requests):
            raise Refused(unserved)
        feasible = column.feasible()
        candidates = [name for name in feasible if nominated in ("", name)]
        refusals = column.refusals()
        if spec_of(pod).get("resourceClaims"):
            read = decode_pod(pod)
            candidates = [name for name in candidates if self.claims.fits(read, name)]
            refusals += [[CANNOT_ALLOCATE]] * (len(feasible) - len(candidates))
        if not candidates:
            raise Refused(fit_error(len(self._nodes), refusals))
        extender_points: dict[str, int] = {}
        if ours:
            state = _cycle_state(pod, candidates)
            answer = _ANSWER.decode(filter_nodes(self._view, state, self._framework))
            filtered = answer.node_names or []
            if not filtered:
                failed = (answer.failed_nodes or {}) | (answer.failed_and_unresolvable_nodes or {})
                reasons = [*refusals, *([reason] for reason in failed.values())]
                raise Refused(fit_error(len(self._nodes), reasons))
            if len(filtered) > 1:
                if self._by_peer and state.request is not None:
                    # A peer's scheduler leaves kube-scheduler's scores no say.
                    chosen = self.ledger.best(state.request, filtered)
                    if chosen is not None:
                        return chosen
                listed = _PRIORITIES.decode(prioritize_nodes(self._view, state._replace(names=filtered)))
                extender_points = {priority.host: priority.score * _SCALE for priority in listed}
            candidates = filtered
        if len(candidates) == 1:
            return candidates[0]
        points = weighed([feasible[name] for name in candidates])
        total = [point + extender_points.get(name, 0) for name, point in zip(candidates, points, strict=True)]
        return best(candidates, total, self._chance)

    def post_filter(self, uid: str, nodes: Collection[str]) -> None:
        """No node took the pod; ``nodes`` would if other pods were not there."""
        if self._evicting is not None:
            self._evicting.refused(uid, nodes)

    async def _bind(self, key: str, node: str) -> None:
        """Bind the pod; raises ``Refused``."""
        pod = self.pods[key]
        uid = uid_of(pod)
        self._nodes.place(pod, node, assumed=True)
        if spec_of(pod).get("resourceClaims"):
            self.claims.allocate(decode_pod(pod), node)
        self._columns.changed(node)
        args = protocol.BindingArgs(namespace_of(pod), name_of(pod), uid, node)
        try:
            if spec_of(pod).get("schedulerName") == names.SCHEDULER_NAME:
                await self._binder.bind(args)
            else:
                await self.bind(namespace=args.namespace, name=args.name, uid=uid, node=node, annotations={})
        except BindRefused as refused:
            self._nodes.forget(uid)
            self.claims.remove_pod(decode_pod(pod))
            self._columns.changed(node)
            raise Refused(str(refused)) from None


def _unserved(pod: Json, resources: Collection[str]) -> str:
    """Why a pod with GPUs for another scheduler is pending; empty if its scheduler runs here. Pods without GPUs may have any scheduler."""
    scheduler = spec_of(pod).get("schedulerName")
    if scheduler in _RUNNING or _LEFT_TO_EXTENDER.isdisjoint(resources):
        return ""
    return unserved_text(Unplaced(scheduler=str(scheduler)))


def _cycle_state(pod: Json, nodes: list[str]) -> CycleState:
    """The extender's state for ``pod``, as from a request body."""
    read = decode_pod(pod)
    args = protocol.ExtenderArgs(read, None, nodes)
    try:
        request = request_of(read)
        return CycleState(args, nodes, request, "", None if request is None else gang_of(read))
    except InvalidRequest as error:
        return CycleState(args, nodes, None, error.problem)
