"""Room made for more important pods: who was ended for whom, and what becomes of them.

The scheduler's own ``Preemptor`` decides where only the extender refuses; where kube-scheduler's filters refuse, its own dry run does,
with the extender's verb preempt. Whom they end is gone at once; what has a controller comes again as another pod.
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

#: A pod that was ended so often is not tried again: whatever rules are there, a simulation ends.
MOST_TIMES: Final = 8
#: Refused pods after which room is made: the preemptor remembers twice as many.
MOST_REFUSED: Final = 512
#: Kinds of owners that do not recreate a pod where one has ended.
_NO_MAKERS: Final = ("Node",)
_LEFT_S: Final = "1970-01-01T00:00:00Z"


class Eviction(msgspec.Struct, frozen=True):
    """Pod ``victim`` (``NAMESPACE/NAME``) had to leave ``node`` for pod ``by``; ``again``: its owner made it anew."""

    victim: str
    node: str
    by: str
    again: bool


class Cluster(Protocol):
    """What is done to the simulated cluster (``scheduling.Scheduling``)."""

    pods: dict[str, Json]

    def see(self, pod: Json) -> None:
        """The pod is new or has changed."""

    def take_off(self, pod: Json) -> None:
        """The pod is gone."""


class _Answer(msgspec.Struct, rename="pascal"):
    class Victims(msgspec.Struct, rename="pascal"):
        pods: list[dict[str, str]]
        violations: int = msgspec.field(name="NumPDBViolations", default=0)

    victims: dict[str, Victims] = msgspec.field(name="NodeNameToMetaVictims")


_ANSWER: Final = msgspec.json.Decoder(_Answer)


class Evicting:
    """Makes room in ``cluster``; for the loop of a simulation."""

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
        """To be told of every pod that changes."""
        self._notes = _Notes()
        self._preemptor = Preemptor(
            view, self, self._notes, clock, in_turn=policies.by_unit, gangs=gangs, quotas=quotas
        )
        self._for = ""
        self._leaving: dict[str, str] = {}
        """Who leaves, by key of the pod, and for whom."""
        self._leave_anyway = [
            key
            for key, pod in cluster.pods.items()
            if spec_of(pod).get("nodeName") and pod["metadata"].get("deletionTimestamp")
        ]
        self._times: Counter[str] = Counter()
        self._refused: set[str] = set()
        self.evictions: list[Eviction] = []
        self.gone: dict[str, str] = {}
        """Pods that nobody recreates, or not once more, and why they have no place."""
        self.again: list[str] = []
        """Pods that were recreated and have not been looked at since."""

    # --- refused by the extender alone ------------------------------------------------------------

    def refused(self, uid: str, nodes: Iterable[str]) -> None:
        """No node took the pod; on ``nodes`` room could be made."""
        record = self._view.waiting.get(uid)
        if record is None or not (self._quotas.in_use or self._nodes.any_below(record.priority)):
            return
        self._refused.add(uid)
        self._preemptor.post_filter(uid, list(nodes))

    def why(self, key: str, why: str) -> str:
        """``why`` the pod waits, with what hindered that room was made for it."""
        note = self._notes.refused.get(key)
        return f"{why} {note[0].upper()}{note[1:]}." if note else why

    @property
    def is_due(self) -> bool:
        """Whether so many were refused that room has to be made before more are looked at."""
        return len(self._refused) >= MOST_REFUSED

    def let_leave(self) -> bool:
        """Those whose end was asked for before the cluster was read are gone; whether there were any."""
        for key in self._leave_anyway:
            self._cluster.take_off(self._cluster.pods[key])
        found, self._leave_anyway = bool(self._leave_anyway), []
        return found

    async def settle(self) -> None:
        """Let the preemptor look at those that were refused, and end whom it ends."""
        if self._refused:
            self._refused.clear()
            running = asyncio.create_task(self._preemptor.run())
            try:
                await asyncio.sleep(2.5 * SETTLE_S)
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running
        self._end()

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """The pod as it is; raises ``ApiError``."""
        try:
            return decode_pod(self._cluster.pods[f"{namespace}/{name}"])
        except KeyError:
            raise ApiError(404, "NotFound", "", "") from None

    async def nominate(self, namespace: str, name: str, node: str, *, uid: str) -> None:
        """Those that are evicted next are for this pod."""
        self._for = f"{namespace}/{name}"

    async def evict_pod(self, namespace: str, name: str, *, uid: str) -> None:
        """The pod is on its way out, which ``settle`` ends."""
        key = f"{namespace}/{name}"
        pod = self._cluster.pods[key]
        self._leaving[key] = self._for
        self._cluster.see({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": _LEFT_S}})

    async def list_budgets(self) -> list[DisruptionBudget]:
        """Every PodDisruptionBudget, as it is now."""
        return self.budgets.now()

    # --- refused by kube-scheduler's own filters --------------------------------------------------

    def by_sums(self, pod: Json, wanted: Wanted, refusing: Iterable[NodeState], *, by_extender: bool) -> str:
        """End those whom kube-scheduler itself would end for the pod; the node, empty where there is none."""
        if spec_of(pod).get("preemptionPolicy") == "Never" or not self._nodes.any_below(priority_of(pod)):
            return ""
        keys = _Keys(self._cluster.pods)

        def worth(uid: str) -> Worth:
            one = self._cluster.pods[keys[uid]]
            # What was placed by this simulation began last.
            return Worth(priority_of(one), str(one["metadata"].get("creationTimestamp") or "~"))

        budgets = self.budgets.now()

        def guarded(uids: Collection[str]) -> set[str]:
            return violating((decode_pod(self._cluster.pods[keys[uid]]) for uid in uids), budgets)

        found = candidates(wanted, refusing, self._nodes, worth, guarded)
        # Those of a gang that waits for the rest of it have a node, and cannot be ended there yet.
        found = [one for one in found if all(self._is_bound(keys[uid]) for uid in one.victims)]
        if found and by_extender:
            found = self._as_extender_has_it(pod, found, guarded)
        if not found:
            return ""
        chosen = cheapest(found, worth)
        for uid in chosen.victims:
            self._leaving[keys[uid]] = key_of(pod)
        self._end()
        return chosen.node

    def _is_bound(self, key: str) -> bool:
        return bool(spec_of(self._cluster.pods[key]).get("nodeName"))

    def _as_extender_has_it(
        self, pod: Json, found: Sequence[Candidate], guarded: ViolatingFn
    ) -> list[Candidate]:
        body = {
            "Pod": pod,
            "NodeNameToMetaVictims": {
                one.node: {"Pods": [{"UID": uid} for uid in one.victims], "NumPDBViolations": one.violations}
                for one in found
            },
        }
        args = protocol.read_preemption(msgspec.json.encode(body))
        told = self._preemptor.left_to_scheduler
        answer = preempt_pods(self._view, args, told, self._policies, quotas=self._quotas, protected=guarded)
        return [
            Candidate(node, tuple(each["UID"] for each in one.pods), one.violations)
            for node, one in _ANSWER.decode(answer).victims.items()
        ]

    # --- the end of a pod -------------------------------------------------------------------------

    def _end(self) -> None:
        leaving, self._leaving = self._leaving, {}
        for key, by in leaving.items():
            pod = self._cluster.pods[key]
            node = str(spec_of(pod)["nodeName"])
            self._cluster.take_off(pod)
            self._times[key] += 1
            made = _has_maker(pod)
            again = made and self._times[key] < MOST_TIMES
            self.evictions.append(Eviction(key, node, by, again))
            if again:
                self._cluster.see(_recreated(pod, self._times[key]))
                self.again.append(key)
            else:
                why = (
                    f"evicted {counted(MOST_TIMES, 'time')}, not tried again"
                    if made
                    else "evicted; no owner recreates it"
                )
                self.gone[key] = f"{why} (the last time for {by})"


class _Notes:
    """Takes events, and keeps those that say why nobody was ended."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}
        """Note by ``NAMESPACE/NAME`` of the pod that waits."""

    def record(
        self,
        regarding: ObjectReference,
        *,
        kind: str,
        reason: str,
        action: str,
        note: str,
        cause: str = "",
        telling: str = "each",
    ) -> None:
        """An event about ``regarding``."""
        if reason == REASON_NO_BUDGET:
            self.refused[f"{regarding.namespace}/{regarding.name}"] = note


class _Keys(dict[str, str]):
    """Keys of pods by UID; they are looked for only where they are asked about."""

    def __init__(self, pods: Mapping[str, Json]) -> None:
        super().__init__()
        self._pods = pods

    def __missing__(self, uid: str) -> str:
        self.update({uid_of(one): key for key, one in self._pods.items()})
        return self.get(uid, "")


def taken_off(pod: Json) -> Json:
    """The pod as it was before it was scheduled."""
    annotations = {key: text for key, text in annotations_of(pod).items() if key not in RECORDS}
    spec: dict[str, Any] = {key: value for key, value in spec_of(pod).items() if key != "nodeName"}
    return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}, "spec": spec}


def _recreated(pod: Json, times: int) -> Json:
    """Another pod of the same owner; it keeps the name, by which people know it."""
    made = taken_off(pod)
    meta = {
        key: value
        for key, value in made["metadata"].items()
        if key not in ("deletionTimestamp", "creationTimestamp")
    }
    first = uid_of(pod).partition("~")[0]
    return {**made, "metadata": {**meta, "uid": f"{first}~{times}"}, "status": {"phase": "Pending"}}


def _has_maker(pod: Mapping[str, Any]) -> bool:
    return any(
        one.get("controller") and one.get("kind") not in _NO_MAKERS
        for one in pod["metadata"].get("ownerReferences") or ()
    )
