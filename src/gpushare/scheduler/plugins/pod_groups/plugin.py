"""PodGroups: the gangs of kube-scheduler itself (``spec.schedulingGroup``, Kubernetes 1.37 with the feature GenericWorkload).

kube-scheduler decides about all pods of a PodGroup in one cycle. It filters them one after the other, and assumes in memory each on its node.
At the end it binds them, or forgets what it assumed. An extender learns of binds only. So the filter request of such a pod is answered with
one node, where its share is reserved at once: the next pod of the group finds what its predecessors leave. The reservation ends

* with the pod's Binding;
* when the pod is filtered again, because the earlier cycle bound nothing;
* when so many pods were refused that the group cannot reach its ``minCount``. kube-scheduler ends the cycle at the same pod;
* when the group has too few shares and no pod of it is filtered for some seconds: kube-scheduler's own filters refused one;
* like all reservations, when it expires.

kube-scheduler alone decides whether a group runs. No pods are evicted for such groups: each of their pods would be judged alone.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpushare.kube.clock import Clock
from gpushare.kube.watch.informer import Informer
from gpushare.ledger import Verdict
from gpushare.process.event import Event
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.cycle_state import CycleState
from gpushare.scheduler.framework.interface import Handle, PodToBind, Task, Watch
from gpushare.scheduler.leader.resync import read_or_go_on
from gpushare.scheduler.plugins.pod_groups.least import PATH, LeastPods, decode_pod_group

#: Seconds without a filter request for a group after which its cycle is over. One takes milliseconds, on a busy machine tenths of a second.
IDLE_S: Final = 3.0
_WAKE_S: Final = 1.0
#: Maximum number of remembered pods that were refused while a group had reservations; further ones wait for kube-scheduler to retry them.
_MOST_REFUSED: Final = 4096


@dataclass(slots=True, eq=False)
class _Group:
    """The pods of one PodGroup.

    ``assumed``: by UID, ``namespace/name`` of pods that were filtered and have a reservation, until they come to be bound.
    ``refused``: UIDs of pods whose last filter request no node passed.
    ``filtered_s``: time of the last filter request.
    """

    pods: dict[str, PodRecord] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    filtered_s: float = 0.0


class Assumed:
    """Reserves the shares of filtered pods of PodGroups. ``least``: by group, how many of its pods must run together."""

    def __init__(
        self,
        view: ClusterCache,
        clock: Clock,
        least: Mapping[str, int],
        retry: Callable[[Iterable[str]], None],
    ) -> None:
        self._ledger = view.ledger
        self._clock = clock
        self._least = least
        self._retry = retry
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[str, str] = {}
        self._with_assumed: dict[str, _Group] = {}
        """The groups that have reservations of pods that have not come to be bound."""
        self._refused_meanwhile: dict[str, None] = {}
        self.reserved: Event[str, str] = Event()
        self.reservation_cancelled: Event[str] = Event()
        view.pod_changing.subscribe(self._upsert)
        view.pod_ended.subscribe(self._remove)

    # --- pods -----------------------------------------------------------------------------------

    def _upsert(self, record: PodRecord) -> None:
        key = record.pod_group
        if key:
            self._group_of[record.uid] = key
            self._groups.setdefault(key, _Group()).pods[record.uid] = record

    def _remove(self, record: PodRecord, gone: bool) -> None:  # noqa: FBT001 - listeners are called by position
        key = self._group_of.pop(record.uid, None)
        if key is None:
            return
        group = self._groups[key]
        group.pods.pop(record.uid, None)
        group.refused.discard(record.uid)
        self._settled(key, group, record.uid)

    # --- filter ---------------------------------------------------------------------------------

    def filter_begins(self, state: CycleState) -> None:
        """A pod is filtered again: its reservation belongs to a cycle that bound nothing."""
        group = self._groups.get(state.pod.pod_group)
        uid = state.pod.metadata.uid
        if group is not None and uid in group.assumed:
            self._settled(state.pod.pod_group, group, uid)
            self.reservation_cancelled(uid)

    def assume(self, state: CycleState, verdict: Verdict) -> Verdict:
        """Reserve the pod's share on the best node of ``verdict``, and leave only that node."""
        key, uid = state.pod.pod_group, state.pod.metadata.uid
        if not key or state.request is None or self._ledger.held(uid) is not None:
            return verdict
        node = self._ledger.best(state.request, verdict.fits) or verdict.fits[0]
        self._ledger.nominations.remove(uid)
        self._ledger.reserve(uid, state.pod.key, state.request, node)
        group = self._groups.setdefault(key, _Group())
        self._group_of[uid] = key
        group.assumed[uid] = state.pod.key
        group.refused.discard(uid)
        group.filtered_s = self._clock.monotonic()
        self._with_assumed[key] = group
        self.reserved(uid, state.pod.key)
        return Verdict([node], {}, {})

    def post_filter(self, uid: str, nodes: Collection[str]) -> None:
        """No node takes the pod: its group may have become impossible."""
        key = self._group_of.get(uid, "")
        if self._with_assumed.keys() - {key} and len(self._refused_meanwhile) < _MOST_REFUSED:
            self._refused_meanwhile[uid] = None
        group = self._groups.get(key)
        if group is None:
            return
        group.filtered_s = self._clock.monotonic()
        group.refused.add(uid)
        members = group.pods.keys() | group.assumed.keys() | group.refused
        if len(members) - len(group.refused) < self._least.get(key, 0):
            self._give_up(key, group)
            group.refused.clear()  # the next cycle begins with the first pod

    # --- bind -----------------------------------------------------------------------------------

    async def permit(self, pod: PodToBind) -> None:
        """kube-scheduler binds the pod, so its group's cycle has succeeded. From here on the core owns the reservation."""
        key = self._group_of.get(pod.uid, "")
        if group := self._groups.get(key):
            self._settled(key, group, pod.uid)

    def reservation_expired(self, uid: str) -> None:
        """No Binding came in time."""
        key = self._group_of.get(uid, "")
        if group := self._groups.get(key):
            self._settled(key, group, uid)

    # --- time -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Prolong the reservations of groups whose cycle runs, and end those of cycles that failed, until cancelled."""
        while True:
            await self._clock.sleep(_WAKE_S)
            self.wake()

    def wake(self) -> None:
        """As ``run``, once."""
        over_s = self._clock.monotonic() - IDLE_S
        for key, group in list(self._with_assumed.items()):
            if group.filtered_s > over_s:
                for uid, pod in group.assumed.items():
                    self.reserved(uid, pod)
            elif not self._is_complete(key, group):
                self._give_up(key, group)

    def give_up_all(self) -> None:
        """Release the reservations of all groups."""
        for key, group in list(self._with_assumed.items()):
            self._give_up(key, group)

    def _is_complete(self, key: str, group: _Group) -> bool:
        """Whether enough pods run or have a share, so that kube-scheduler binds them. Pods without a GPU are not asked about: they count."""
        members = group.pods.keys() | group.assumed.keys()
        without = sum(
            not (record.node or record.bystander or self._ledger.held(uid))
            for uid, record in group.pods.items()
        )
        return len(members) - without >= self._least.get(key, len(members))

    def _give_up(self, key: str, group: _Group) -> None:
        """kube-scheduler has forgotten what it assumed: release it, and have others retried that were refused because of it."""
        refused = [uid for uid in self._refused_meanwhile if uid not in group.pods]
        for uid in list(group.assumed):
            self._settled(key, group, uid)
            self.reservation_cancelled(uid)
        self._retry(refused)

    def _settled(self, key: str, group: _Group, uid: str) -> None:
        """The pod has no reservation that is ours to end."""
        if group.assumed.pop(uid, None) is not None and not group.assumed:
            del self._with_assumed[key]
        if not self._with_assumed:
            self._refused_meanwhile.clear()
        if uid not in group.pods:
            self._group_of.pop(uid, None)
        if not group.pods and not group.assumed:
            self._groups.pop(key, None)


class PodGroups(Assumed):
    """The plugin, with the watch of PodGroups."""

    def __init__(self, handle: Handle) -> None:
        least = LeastPods()
        super().__init__(handle.cache, handle.clock, least.by_key, handle.retry)
        handle.resynced.subscribe(self.give_up_all)
        self._watch = Informer(
            handle.session, PATH, decode_pod_group, least, clock=handle.clock, may_be_absent=True
        )

    def tasks(self) -> list[Task]:
        """The tasks that run as long as the process."""
        return [("pod groups", self.run()), ("podgroups", self._watch.run())]

    def watched(self) -> Mapping[str, Watch]:
        """The watch by its kind."""
        return {"podgroups": self._watch}

    def not_listed(self) -> str:
        """Nothing: a group that is not known needs all of its pods."""
        return ""

    async def relist(self) -> None:
        """List the PodGroups again."""
        await read_or_go_on("pod groups", self._watch)
