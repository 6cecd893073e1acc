"""What a plugin of the scheduler may implement, and what it works with.

A plugin is an object that implements one or more of the extension points below, named as in kube-scheduler's framework where that has
the same. The points take all nodes of a question at once: a call for each of 5,000 nodes would cost more than the answer. The
framework asks each plugin once, at start-up, which points it implements; a point that nobody implements costs one test of an empty
tuple. Everything runs in one event loop: a method that is no coroutine must return within microseconds and never block.

Order of one scheduling cycle: ``Filter`` → ``Score`` → (core: reserve and bind), or ``Filter`` → ``PostFilter`` where no node is left.
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from gpushare.kube.client.client import Client
from gpushare.kube.client.session import Session
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import EventRecorder
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.cycle_state import CycleState

#: A long-running part of a plugin and its name in logs. One that raises ends the process, as a failing part of the core does.
Task: TypeAlias = tuple[str, Coroutine[Any, Any, None]]
#: Turns a pod's JSON into its key and record; ``None`` where the scheduler need not know the pod.
DecodePodFn: TypeAlias = Callable[[bytes], tuple[str, PodRecord] | None]


@dataclass(frozen=True)
class Handle:
    """What the core offers a plugin at start-up."""

    session: Session
    """Connections to the API server, for watches of its own kinds."""
    client: Client
    cache: ClusterCache
    """Nodes, pods and the ledger, as the watches show them. To be read; shares are reserved by the core alone."""
    recorder: EventRecorder
    clock: Clock
    lease: tuple[str, str] | None
    """Namespace and name of the Lease by which the kube-scheduler beside us leads; ``None``: there is one alone."""
    must_lead: Callable[[], Awaitable[None]]
    """To be awaited right before a write that only the leader may do; raises ``NotLeading``."""
    retry: Callable[[Iterable[str]], None]
    """Have the pods with these UIDs tried again soon."""
    synced: Callable[[], bool]
    """Whether pods and nodes were read."""
    gauge: Callable[[str, str, Callable[[], float]], None]
    """Name, help and a function that is called at each scrape: a metric of the plugin's own."""


@runtime_checkable
class Filter(Protocol):
    """Refuses nodes for a pod that requests a GPU, before room is looked for. Called for each filter of kube-scheduler."""

    def filter(self, state: CycleState, nodes: Sequence[str]) -> Mapping[str, str]:
        """Those of ``nodes`` that must not take the pod, and why, in words for its event. Ending pods there would not help."""


@runtime_checkable
class Score(Protocol):
    """Prefers nodes for a pod that requests a GPU. Called once after ``Filter``, with the nodes that are left."""

    def score(self, state: CycleState, nodes: Sequence[str]) -> Mapping[str, float]:
        """0 (least) to 10 for nodes that stand out; those left out have 0. Weighed with GPU placement (see ``Framework.scores``)."""


@runtime_checkable
class PostFilter(Protocol):
    """Called when no node takes a pod."""

    def post_filter(self, uid: str, nodes: Collection[str]) -> None:
        """No node took the pod; ``nodes`` would if others were not there. The watch need not have shown the pod yet."""


@runtime_checkable
class PodDecoder(Protocol):
    """Adds to the record of each pod what the plugin needs of its manifest."""

    def pod_decoder(self, decode: DecodePodFn) -> DecodePodFn:
        """``decode`` with more in it. Called once; the result is called for every event of every pod, so it must be fast."""


@runtime_checkable
class RawPods(Protocol):
    """Looks at the JSON of every pod of the cluster, those without a GPU among them."""

    def pod_read(self, raw: bytes) -> None:
        """A pod was listed, added or changed; raw, for fields of which no record keeps a copy."""


@runtime_checkable
class RawNodes(Protocol):
    """Looks at the JSON of every node."""

    def node_read(self, name: str, raw: bytes) -> None:
        """A node was listed, added or changed."""

    def node_removed(self, name: str) -> None:
        """A node is gone, and none of that name has come in its place."""


@runtime_checkable
class PodsBeforeCache(Protocol):
    """Pods with a record, before the cache knows of the event: by that it can be seen what is new."""

    def pod_arriving(self, record: PodRecord) -> None:
        """A pod was added or changed."""

    def pod_leaving(self, last: PodRecord) -> None:
        """A pod is gone."""


@runtime_checkable
class PodsAfterCache(Protocol):
    """The same once the cache knows."""

    def pod_updated(self, record: PodRecord) -> None:
        """A pod was added or changed."""

    def pod_removed(self, last: PodRecord) -> None:
        """A pod is gone."""


@runtime_checkable
class PodsListed(Protocol):
    """Called once, when the first list of pods is in the cache."""

    def pods_listed(self) -> None:
        """The first list is complete."""


@runtime_checkable
class Controller(Protocol):
    """A plugin with parts that run for as long as the process."""

    def tasks(self) -> Iterable[Task]:
        """What is to run side by side. Called once."""


class Factory(Protocol):
    """How a plugin is made: what an entry point of the group ``gpushare.scheduler_plugins`` names."""

    def __call__(self, handle: Handle, arguments: Mapping[str, Any]) -> object:
        """The plugin; raises ``ValueError`` with what is wrong with ``arguments``, the user's settings for it."""
