"""The complete scheduler: the view of pods and nodes that the profiles share, and the profiles."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from gpushare.kube.clock import SYSTEM_CLOCK, Clock
from gpushare.kube.event_recorder import Recorder
from gpushare.kubescheduler.node_usage import Occupancy
from gpushare_playground.cache import Cache
from gpushare_playground.kubescheduler.extender import Extender
from gpushare_playground.kubescheduler.profile import Profile
from gpushare_playground.kubescheduler.queue import FIRST_BACKOFF_S, Event
from gpushare_playground.kubescheduler.report import Reporter
from gpushare_playground.objects import (
    Json,
    Objects,
    annotations_of,
    is_deleting,
    labels_of,
    spec_of,
    status_of,
    uid_of,
)
from gpushare_playground.supervised import run_together

DEFAULT_SCHEDULER: Final = "default-scheduler"


class KubeScheduler:
    """Schedules the pods in ``pods`` onto the nodes in ``nodes``; the caller keeps both caches in sync.

    ``profiles`` maps scheduler names to their extender, if any; ``recorder`` returns the recorder of
    events for a profile's name. Those with an extender leave ``ignored`` resources to it.
    """

    def __init__(
        self,
        objects: Objects,
        pods: Cache,
        nodes: Cache,
        profiles: Mapping[str, Extender | None],
        recorder: Callable[[str], Recorder],
        *,
        clock: Clock = SYSTEM_CLOCK,
        monotonic: Callable[[], float] = time.monotonic,
        first_backoff_s: float = FIRST_BACKOFF_S,
        ignored: Collection[str] = (),
    ) -> None:
        self._pods = pods
        self._nodes = nodes
        self.occupancy = Occupancy()
        self.profiles = {
            name: Profile(
                name,
                objects=objects,
                pods=pods,
                nodes=self.occupancy,
                reporter=Reporter(objects, recorder(name), clock),
                extender=extender,
                ignored=() if extender is None else ignored,
                happened=self._happened,
                monotonic=monotonic,
                first_backoff_s=first_backoff_s,
            )
            for name, extender in profiles.items()
        }
        pods.listen(self._pod_seen)
        nodes.listen(self._node_seen)

    async def run(self) -> None:
        """Schedule until cancelled, starting when pods and nodes are known."""
        for cache in (self._pods, self._nodes):
            done = asyncio.Event()
            cache.when_synced(done.set)
            await done.wait()
        await run_together(profile.run() for profile in self.profiles.values())

    def _happened(self, event: Event) -> None:
        for profile in self.profiles.values():
            profile.queue.happened(event)

    def _node_seen(self, old: Json | None, new: Json | None) -> None:
        if new is None:
            if old is not None:
                self.occupancy.remove_node(str(old["metadata"]["name"]))
            return
        self.occupancy.set_node(new)
        if old is None:
            self._happened(Event.NODE_ADDED)
        elif _node_properties(old) != _node_properties(new):
            self._happened(Event.NODE_CHANGED)

    def _pod_seen(self, old: Json | None, new: Json | None) -> None:
        if new is None or status_of(new).get("phase") in ("Succeeded", "Failed"):
            self._pod_gone(old, new)
            return
        if spec_of(new).get("nodeName"):
            was_bound = old is not None and spec_of(old).get("nodeName")
            self.occupancy.place(new)
            self._remove_from_queues(uid_of(new))
            self._happened(Event.POD_CHANGED if was_bound else Event.POD_PLACED)
            return
        profile = self.profiles.get(str(spec_of(new).get("schedulerName") or DEFAULT_SCHEDULER))
        if profile is None:
            return
        if is_deleting(new):
            profile.queue.remove(uid_of(new))
        elif old is None or profile.queue.place_of(uid_of(new)) is not None:
            worth = old is None or _pod_properties(old) != _pod_properties(new)
            profile.queue.update(new, gated=bool(spec_of(new).get("schedulingGates")), worth=worth)

    def _pod_gone(self, old: Json | None, new: Json | None) -> None:
        item = new if new is not None else old
        if item is None:
            return
        self._remove_from_queues(uid_of(item))
        if self.occupancy.remove(uid_of(item)):
            self._happened(Event.POD_GONE)

    def _remove_from_queues(self, uid: str) -> None:
        for profile in self.profiles.values():
            profile.queue.remove(uid)


def _node_properties(node: Json) -> tuple[object, ...]:
    """The properties of a node that matter for scheduling: not its heartbeats."""
    conditions = {
        condition.get("type"): condition.get("status")
        for condition in status_of(node).get("conditions") or ()
    }
    return (
        status_of(node).get("allocatable"),
        dict(labels_of(node)),
        dict(annotations_of(node)),
        spec_of(node).get("taints"),
        spec_of(node).get("unschedulable"),
        conditions,
    )


def _pod_properties(pod: Json) -> tuple[object, ...]:
    """The properties of a pending pod that matter for scheduling: not its status."""
    return (dict(labels_of(pod)), dict(annotations_of(pod)), spec_of(pod))
