"""Evictions for higher-priority pods, and the fate of the victims.

If only the extender refuses, the scheduler's own ``Preemptor`` decides; if kube-scheduler's filters refuse, its own dry run does,
with the extender's verb preempt. Victims end immediately. A victim with a controller is recreated as another pod.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from gpushare.admission.rules.request_rules import RECORDS
from gpushare.api.disruption import DisruptionBudget, violating
from gpushare.api.json_objects import Json, annotations_of, key_of, spec_of, uid_of
from gpushare.api.objects import ObjectReference, Pod, decode_pod
from gpushare.api.request.pluralize import counted
from gpushare.kube.client.errors import ApiError
from gpushare.kubescheduler.filters import Wanted
from gpushare.kubescheduler.node_usage import NodeState, Occupancy, priority_of
from gpushare.kubescheduler.preemption import Candidate, Worth, candidates, cheapest
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.framework.services import Gangs, PodQuotas
from gpushare.scheduler.plugins.preemption.extender_preempt import ViolatingFn, preempt_pods
from gpushare.scheduler.plugins.preemption.plugin import REASON_NO_BUDGET, SETTLE_S, Preemptor
from gpushare.scheduler.plugins.resource_policy.plugin import Policies
from gpushare.scheduler.server import protocol
from gpushare.simulate.engine.budgets import Budgets
from gpushare.simulate.engine.virtual_clock import JumpingClock

#: A pod that was evicted this often is not tried again, so that every simulation ends.
MOST_TIMES: Final = 8
#: Refused pods after which room is made: the preemptor can remember twice as many.
MOST_REFUSED: Final = 512
#: Kinds of owners that do not recreate an evicted pod.
_NO_MAKERS: Final = ("Node",)
_LEFT_S: Final = "1970-01-01T00:00:00Z"


class Eviction(msgspec.Struct, frozen=True):
    """Pod ``victim`` (``NAMESPACE/NAME``) was evicted from ``node`` for pod ``by``; ``again``: its owner recreated it."""

    victim: str
    node: str
    by: str
    again: bool


class Cluster(Protocol):
    """What eviction needs of the simulated cluster (``engine.Scheduling``)."""

    pods: dict[str, Json]

    def see(self, pod: Json) -> None:
        """A pod was added or changed."""

    def remove_pod(self, pod: Json) -> None:
        """A pod was deleted."""


class _Answer(msgspec.Struct, rename="pascal"):
    class Victims(msgspec.Struct, rename="pascal"):
        pods: list[dict[str, str]]
        violations: int = msgspec.field(name="NumPDBViolations", default=0)

    victims: dict[str, Victims] = msgspec.field(name="NodeNameToMetaVictims")


_ANSWER: Final = msgspec.json.Decoder(_Answer)


class Evicting:
    """Makes room in ``cluster``, within the event loop of a simulation."""

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterCache,
        nodes: Occupancy,
        policies: Policies,
        budgets: Sequence[Json],
        clock: JumpingClock,
        gangs: Gangs,
        quotas: PodQuotas,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._nodes = nodes
        self._policies = policies
        self._quotas = quotas
        self.budgets = Budgets(budgets, cluster.pods.values())
        """Must be updated with every pod that changes."""
        self._notes = _Notes()
        self._preemptor = Preemptor(
            view, self, self._notes, clock, in_turn=policies.by_unit, gangs=gangs, quotas=quotas
        )
        self._for = ""
        self._leaving: dict[str, str] = {}
        """Pods to be evicted, by key, and the pod for which each is evicted."""
        self._terminating = [
            key
            for key, pod in cluster.pods.items()
            if spec_of(pod).get("nodeName") and pod["metadata"].get("deletionTimestamp")
        ]
        self._times: Counter[str] = Counter()
        self._refused: set[str] = set()
        self.evictions: list[Eviction] = []
        self.gone: dict[str, str] = {}
        """Evicted pods that are not recreated, or not once more, and why they have no place."""
        self.again: list[str] = []
        """Pods that were recreated and have not been tried since."""

    # --- refused by the extender alone ------------------------------------------------------------

    def refused(self, uid: str, nodes: Iterable[str]) -> None:
        """No node took the pod; room could be made on ``nodes``."""
        record = self._view.waiting.get(uid)
        if record is None or not (self._quotas.in_use or self._nodes.any_below(record.priority)):
            return
        self._refused.add(uid)
        self._preemptor.post_filter(uid, list(nodes))

    def why(self, key: str, reason: str) -> str:
        """``reason`` why the pod is pending, with what prevented evictions for it."""
        note = self._notes.refused.get(key)
        return f"{reason} {note[0].upper()}{note[1:]}." if note else reason

    @property
    def is_due(self) -> bool:
        """Whether so many pods were refused that room must be made before more are tried."""
        return len(self._refused) >= MOST_REFUSED

    def remove_terminating(self) -> bool:
        """Remove pods that were terminating when the cluster was read; returns whether there were any."""
        for key in self._terminating:
            self._cluster.remove_pod(self._cluster.pods[key])
        any_removed, self._terminating = bool(self._terminating), []
        return any_removed

    async def settle(self) -> None:
        """Run the preemptor on the refused pods, and end its victims."""
        if self._refused:
            self._refused.clear()
            running = asyncio.create_task(self._preemptor.run())
            try:
                await asyncio.sleep(2.5 * SETTLE_S)
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running
        self._end_victims()

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """The current pod; raises ``ApiError``."""
        try:
            return decode_pod(self._cluster.pods[f"{namespace}/{name}"])
        except KeyError:
            raise ApiError(404, "NotFound", "", "") from None

    async def nominate(self, namespace: str, name: str, node: str, *, uid: str) -> None:
        """The next evictions are for this pod."""
        self._for = f"{namespace}/{name}"

    async def evict_pod(self, namespace: str, name: str, *, uid: str) -> None:
        """Mark the pod for eviction; ``settle`` ends it."""
        key = f"{namespace}/{name}"
        pod = self._cluster.pods[key]
        self._leaving[key] = self._for
        self._cluster.see({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": _LEFT_S}})

    async def list_budgets(self) -> list[DisruptionBudget]:
        """Every PodDisruptionBudget in its current state."""
        return self.budgets.now()

    # --- refused by kube-scheduler's own filters --------------------------------------------------

    def by_sums(self, pod: Json, wanted: Wanted, refusing: Iterable[NodeState], *, by_extender: bool) -> str:
        """Evict the pods that kube-scheduler itself would evict for the pod; returns the node, empty if there is none."""
        if spec_of(pod).get("preemptionPolicy") == "Never" or not self._nodes.any_below(priority_of(pod)):
            return ""
        keys = _Keys(self._cluster.pods)

        def worth(uid: str) -> Worth:
            placed = self._cluster.pods[keys[uid]]
            # Pods placed by this simulation count as the youngest.
            return Worth(priority_of(placed), str(placed["metadata"].get("creationTimestamp") or "~"))

        budgets = self.budgets.now()

        def guarded(uids: Collection[str]) -> set[str]:
            return violating((decode_pod(self._cluster.pods[keys[uid]]) for uid in uids), budgets)

        proposals = candidates(wanted, refusing, self._nodes, worth, guarded)
        # Pods of a gang that waits for its other pods have a node, but cannot be evicted there yet.
        proposals = [
            proposal for proposal in proposals if all(self._is_bound(keys[uid]) for uid in proposal.victims)
        ]
        if proposals and by_extender:
            proposals = self._processed_by_extender(pod, proposals, guarded)
        if not proposals:
            return ""
        chosen = cheapest(proposals, worth)
        for uid in chosen.victims:
            self._leaving[keys[uid]] = key_of(pod)
        self._end_victims()
        return chosen.node

    def _is_bound(self, key: str) -> bool:
        return bool(spec_of(self._cluster.pods[key]).get("nodeName"))

    def _processed_by_extender(
        self, pod: Json, proposals: Sequence[Candidate], guarded: ViolatingFn
    ) -> list[Candidate]:
        body = {
            "Pod": pod,
            "NodeNameToMetaVictims": {
                proposal.node: {
                    "Pods": [{"UID": uid} for uid in proposal.victims],
                    "NumPDBViolations": proposal.violations,
                }
                for proposal in proposals
            },
        }
        args = protocol.read_preemption(msgspec.json.encode(body))
        left_to_scheduler = self._preemptor.left_to_scheduler
        answer = preempt_pods(
            self._view, args, left_to_scheduler, self._policies, quotas=self._quotas, protected=guarded
        )
        return [
            Candidate(node, tuple(each["UID"] for each in victims.pods), victims.violations)
            for node, victims in _ANSWER.decode(answer).victims.items()
        ]

    # --- the end of a pod -------------------------------------------------------------------------

    def _end_victims(self) -> None:
        leaving, self._leaving = self._leaving, {}
        for key, by in leaving.items():
            pod = self._cluster.pods[key]
            node = str(spec_of(pod)["nodeName"])
            self._cluster.remove_pod(pod)
            self._times[key] += 1
            has_maker = _has_maker(pod)
            again = has_maker and self._times[key] < MOST_TIMES
            self.evictions.append(Eviction(key, node, by, again))
            if again:
                self._cluster.see(_recreated(pod, self._times[key]))
                self.again.append(key)
            else:
                reason = (
                    f"evicted {counted(MOST_TIMES, 'time')}, not tried again"
                    if has_maker
                    else "evicted; no owner recreates it"
                )
                self.gone[key] = f"{reason} (the last time for {by})"


class _Notes:
    """Keeps the events that say why no pod was evicted; discards others."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}
        """Note by ``NAMESPACE/NAME`` of the pending pod."""

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
        """Process an event about ``regarding``."""
        if reason == REASON_NO_BUDGET:
            self.refused[f"{regarding.namespace}/{regarding.name}"] = note


class _Keys(dict[str, str]):
    """Keys of pods by UID, filled on the first lookup."""

    def __init__(self, pods: Mapping[str, Json]) -> None:
        super().__init__()
        self._pods = pods

    def __missing__(self, uid: str) -> str:
        self.update({uid_of(pod): key for key, pod in self._pods.items()})
        return self.get(uid, "")


def unscheduled(pod: Json) -> Json:
    """The pod as it was before it was scheduled."""
    annotations = {key: text for key, text in annotations_of(pod).items() if key not in RECORDS}
    spec: dict[str, Any] = {key: value for key, value in spec_of(pod).items() if key != "nodeName"}
    return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}, "spec": spec}


def _recreated(pod: Json, times: int) -> Json:
    """Another pod of the same owner; it keeps the name, so that users recognize it."""
    made = unscheduled(pod)
    meta = {
        key: value
        for key, value in made["metadata"].items()
        if key not in ("deletionTimestamp", "creationTimestamp")
    }
    first = uid_of(pod).partition("~")[0]
    return {**made, "metadata": {**meta, "uid": f"{first}~{times}"}, "status": {"phase": "Pending"}}


def _has_maker(pod: Mapping[str, Any]) -> bool:
    return any(
        owner.get("controller") and owner.get("kind") not in _NO_MAKERS
        for owner in pod["metadata"].get("ownerReferences") or ()
    )
