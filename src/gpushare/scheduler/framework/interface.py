"""The extension points that a scheduler plugin may implement, and the handle that it gets.

A plugin is an object that implements one or more of the extension points below. They have the names of kube-scheduler's framework where
that has the same point. Each call passes all nodes of a request at once: one call per node would cost more than the decision with 5,000
nodes. The framework determines at start-up which points each plugin implements. A point without plugins costs one test of an empty
tuple. Everything runs in one event loop: a method that is not a coroutine must return within microseconds and must never block.

Order of one scheduling cycle: ``Filter`` → ``PreFilter`` → ``FindRoom`` (else the ledger) → ``FilterFits`` → ``Narrow`` → ``Score``, or
``PostFilter`` where no node is left, and ``Assume``; then of one binding cycle: ``Permit`` → (core: reserve the share) → ``Reserve`` → ``PreBind`` → (core: the
Binding) → ``PostBind``. ``Explain`` is called after each step.
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from gpushare.api.objects import Pod
from gpushare.api.request.amounts import Amounts
from gpushare.api.request.pod_group import Gang
from gpushare.api.request.request import Request
from gpushare.kube.client.client import Client
from gpushare.kube.client.session import Session
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import EventRecorder
from gpushare.kube.watch.informer import InformerFigures
from gpushare.ledger import Verdict
from gpushare.process.event import Event
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.cycle_state import CycleState
from gpushare.scheduler.leader.lease import LeaderWatch
from gpushare.scheduler.server.protocol import BindingArgs

#: The name of a long-running task, for logs, and its coroutine. An exception ends the process, as in the tasks of the core.
Task: TypeAlias = tuple[str, Coroutine[Any, Any, None]]
#: Decodes a pod's JSON into its key and record; ``None`` for a pod that the scheduler can ignore.
DecodePodFn: TypeAlias = Callable[[bytes], tuple[str, PodRecord] | None]


@dataclass(frozen=True)
class Handle:
    """The parts of the core that a plugin gets at start-up."""

    session: Session
    """Connections to the API server, for watches of the plugin's own kinds."""
    client: Client
    cache: ClusterCache
    """Nodes, pods and the ledger, as seen by the watches. Read-only: only the core reserves shares."""
    recorder: EventRecorder
    clock: Clock
    lease: tuple[str, str] | None
    """Namespace and name of the leader election Lease of our kube-scheduler; ``None`` if there is only one replica."""
    must_lead: Callable[[], Awaitable[None]]
    """Await this right before a write that only the leader may do; raises ``NotLeading``."""
    retry: Callable[[Iterable[str]], None]
    """Make kube-scheduler retry the pods with these UIDs soon."""
    placed: Callable[[str], None]
    """The pod with this UID has a node: cancels a pending ``retry`` of it."""
    resynced: Event[[]]
    """Called when this replica has become leader and has listed everything again: another replica may have bound pods meanwhile."""
    synced: Callable[[], bool]
    """Whether the first lists of pods and nodes are complete."""
    relist_pods: Callable[[], Awaitable[None]]
    """List all pods again and return when that is done. Needed when ``PodDecoder`` keeps other pods than before."""
    leading: LeaderWatch
    """Whether this replica leads."""
    gauge_by: Callable[[str, str, str, Callable[[], Mapping[str, float]]], None]
    """Exports a gauge with one value per label value. Arguments: name, help, label, and a function called at each scrape."""
    gauge: Callable[[str, str, Callable[[], float]], None]
    """Exports a gauge. Arguments: name, help, and a function called at each scrape."""


@runtime_checkable
class Filter(Protocol):
    """Refuses nodes for a pod that requests a GPU, before the search for room. Called for each filter request of kube-scheduler."""

    def filter(self, state: CycleState, nodes: Sequence[str]) -> Mapping[str, str]:
        """The nodes of ``nodes`` that must not take the pod, with the reason for its event. Evictions there would not help."""


@runtime_checkable
class PreFilter(Protocol):
    """Refuses all nodes at once. Called after ``Filter``, before the search for room; also for pods that request no GPU."""

    def pre_filter(self, state: CycleState) -> str:
        """Why the pod may not be placed on any node now, as a reason for its event; empty if it may. Evictions may help."""


@runtime_checkable
class FindRoom(Protocol):
    """Finds room for several pods at once and reserves it until they are bound. Called after ``Filter`` for pods that request a GPU.

    The plugin reserves the room in the ledger. By ``reserved`` and ``reservation_cancelled`` the core tracks the deadline of each
    reservation, which expires like the reservation of a bind.
    """

    reserved: Event[str, str]
    """The plugin calls it with UID and ``namespace/name`` of a pod when its reservation starts or is prolonged."""
    reservation_cancelled: Event[str]
    """The plugin calls it with the UID of a pod that no longer needs its reservation. The core releases it unless a Binding is in flight."""

    def find_room(self, state: CycleState, nodes: list[str]) -> Verdict | None:
        """Which nodes the plan for the group of pods leaves to this pod; ``None`` to let the ledger decide. The first plugin's answer counts."""

    def planned_node(self, uid: str) -> str:
        """The node on which room is reserved for the pod; empty if there is none."""

    def explain_room(self, request: Request, verdict: Verdict) -> Verdict:
        """The ledger's ``verdict``, with reasons that name the plugin's reservations on nodes that lack room because of them."""

    def not_admitted(self, state: CycleState, nodes: list[str]) -> None:
        """``PreFilter`` refused the pod, so ``find_room`` is not called. ``nodes`` are those that kube-scheduler's own filters passed."""

    def narrowed_to_none(self, uid: str) -> None:
        """``Narrow`` removed all nodes that ``find_room`` had returned for the pod."""

    def reservation_expired(self, uid: str) -> None:
        """The pod's reservation expired without a Binding."""


@runtime_checkable
class Assume(Protocol):
    """Reserves a pod's share when its filter request is answered, for pods that kube-scheduler binds only after it has filtered others.

    Called for pods that request a GPU. ``reserved`` and ``reservation_cancelled`` are those of ``FindRoom``.
    """

    reserved: Event[str, str]
    reservation_cancelled: Event[str]

    def filter_begins(self, state: CycleState) -> None:
        """Before anything else is asked about the pod: end its reservation from an earlier request."""

    def assume(self, state: CycleState, verdict: Verdict) -> Verdict:
        """Reserve the pod's share on one of ``verdict.fits``, and return only this node; or ``verdict`` itself. Called last."""

    def reservation_expired(self, uid: str) -> None:
        """The pod's reservation expired without a Binding."""


class NodesInTurn(Protocol):
    """Nodes that a pod may have, the preferred ones first."""

    def __iter__(self) -> Iterator[list[str]]:
        """Growing lists: each contains the previous one. The caller takes the next only if the last has no room for the pod and its group."""

    def rest(self) -> dict[str, str]:
        """By node, the reason why the pod may not have a node that was not listed."""


@runtime_checkable
class FilterFits(Protocol):
    """Refuses nodes that have room for a pod that requests a GPU."""

    def filter_fits(self, state: CycleState, nodes: list[str]) -> Mapping[str, str]:
        """The nodes of ``nodes`` whose GPUs the pod may not have now, with the reason for its event. Evictions may help."""


@runtime_checkable
class Narrow(Protocol):
    """Restricts a pod to some of the nodes that have room for it. Also called for pods that request no GPU."""

    def in_turn(self, asked: Pod, names: list[str], destined: str) -> NodesInTurn | None:
        """For a pod of a group: the nodes on which to search for room, in order; ``None`` for all at once. The first plugin's answer counts.

        ``destined`` is the node on which the pod is already planned or reserved; empty if there is none.
        """

    def narrow(self, asked: Pod, verdict: Verdict) -> Verdict:
        """``verdict`` without the nodes that the pod may not have; the same object if none is removed."""


@runtime_checkable
class Score(Protocol):
    """Prefers nodes for a pod that requests a GPU. Called once after all filters, with the nodes that passed."""

    def score(self, state: CycleState, nodes: Sequence[str]) -> Mapping[str, float]:
        """Scores from 0 (lowest) to 10; a node that is not in the mapping has 0. Weighted with GPU placement (see ``Framework.scores``)."""


@runtime_checkable
class PostFilter(Protocol):
    """Called when no node takes a pod."""

    def post_filter(self, uid: str, nodes: Collection[str]) -> None:
        """No node takes the pod; evictions could make room on ``nodes``. The watch may not have shown the pod yet."""


class PodToBind(NamedTuple):
    """A pod that kube-scheduler wants to bind. ``request`` is ``None`` if it requests no GPU; ``amounts`` are all resources that it requests."""

    uid: str
    key: str
    request: Request | None
    gang: Gang | None
    amounts: Amounts


@runtime_checkable
class Permit(Protocol):
    """Delays or refuses the bind of a pod that requests a GPU. Called before its share is reserved."""

    async def permit(self, pod: PodToBind) -> None:
        """Return when the pod may be bound; raises ``NotPermitted`` if it may not. kube-scheduler waits for the response."""


@runtime_checkable
class Reserve(Protocol):
    """Accounts for resources other than GPU shares, from before a pod's Binding until the watch shows it. Called for every pod.

    A pod's share of a GPU is already in the ledger at that point.
    """

    def reserve(self, pod: PodToBind) -> str:
        """Reserve, or return why the pod may not be bound, as a reason for its event. Not called again while the pod has a reservation."""

    def is_reserved(self, uid: str) -> bool:
        """Whether the plugin holds a reservation for the pod that is not in the ledger."""

    def unreserve(self, uid: str) -> None:
        """Release the pod's reservation: the pod is not bound and will not be."""


@runtime_checkable
class PreBind(Protocol):
    """Called before the Binding of any pod is written, pods without a GPU included. The time that it takes delays the Binding."""

    async def pre_bind(self, args: BindingArgs) -> Mapping[str, str]:
        """Annotations to write with the Binding.

        Raises ``KubeError``: an ``ApiError`` with a status below 500 refuses the Binding; after any other error it may be retried.
        """


@runtime_checkable
class PostBind(Protocol):
    """Called when the API server has answered the Binding, or when a ``PreBind`` has failed."""

    def post_bind(self, args: BindingArgs, error: BaseException | None) -> None:
        """``error`` is ``None`` if the Binding was written. A ``KubeError`` may leave that unknown."""


class NotPermitted(Exception):
    """The pod may not be bound now; the text is the reason for its event."""


@runtime_checkable
class Explain(Protocol):
    """Records decisions for diagnosis (``--why``). Methods must only record: the response is not sent yet."""

    def after_filter(self, state: CycleState, verdict: Verdict) -> None:
        """``verdict`` is the final decision about ``state.names``."""

    def after_score(self, state: CycleState, above: Sequence[tuple[str, int]]) -> None:
        """``above`` are the nodes of ``state.names`` with a score above the lowest."""

    def after_bind(self, args: BindingArgs, error: str) -> None:
        """The pod was bound, or ``error`` is the reason why not."""


@runtime_checkable
class PodDecoder(Protocol):
    """Adds the fields of a pod's manifest that the plugin needs to the pod's record."""

    def pod_decoder(self, decode: DecodePodFn) -> DecodePodFn:
        """Wrap ``decode``. Called once; the returned function runs for every event of every pod, so it must be fast."""


@runtime_checkable
class PodsWait(Protocol):
    """Delays the first list of pods."""

    async def before_pods(self) -> None:
        """Return when pods may be listed: the plugin's ``pod_decoder`` then knows which pods to keep."""


@runtime_checkable
class RawPods(Protocol):
    """Gets the JSON of every pod of the cluster, pods without a GPU included."""

    def pod_read(self, raw: bytes) -> None:
        """A pod was listed, added or changed. ``raw`` is its JSON, for fields that records do not have."""


@runtime_checkable
class RawNodes(Protocol):
    """Gets the JSON of every node."""

    def node_read(self, name: str, raw: bytes) -> None:
        """A node was listed, added or changed."""

    def node_removed(self, name: str) -> None:
        """A node was deleted, and no new node of that name exists."""


@runtime_checkable
class PodsBeforeCache(Protocol):
    """Gets events of pods with a record before the cache does, so the cache still shows the previous state."""

    def pod_arriving(self, record: PodRecord) -> None:
        """A pod was added or changed."""

    def pod_leaving(self, last: PodRecord) -> None:
        """A pod was deleted."""


@runtime_checkable
class PodsAfterCache(Protocol):
    """Gets events of pods with a record after the cache was updated."""

    def pod_updated(self, record: PodRecord) -> None:
        """A pod was added or changed."""

    def pod_removed(self, last: PodRecord) -> None:
        """A pod was deleted."""


@runtime_checkable
class PodsListed(Protocol):
    """Called once, when the first list of pods is in the cache."""

    def pods_listed(self) -> None:
        """The first list is complete."""


@runtime_checkable
class Controller(Protocol):
    """A plugin with tasks that run as long as the process."""

    def tasks(self) -> Iterable[Task]:
        """The tasks to run concurrently. Called once."""


class Watch(Protocol):
    """An informer."""

    @property
    def figures(self) -> InformerFigures:
        """The informer's state and counters."""


@runtime_checkable
class WatchedKinds(Protocol):
    """A plugin that watches further kinds and decides by them. The extender serves no verb before they were listed once."""

    def watched(self) -> Mapping[str, Watch]:
        """The watches by kind. Called at each scrape of the metrics, as watches may be added and removed."""

    def not_listed(self) -> str:
        """The kinds that were not listed yet, in words; empty when all were. Called for each request until everything is listed."""

    async def relist(self) -> None:
        """List everything again: this replica has become leader, and its watches may lag behind."""


@runtime_checkable
class Verbs(Protocol):
    """Verbs of kube-scheduler's extender protocol that the core does not have."""

    def verbs(self) -> Mapping[str, Callable[[bytes], Coroutine[Any, Any, bytes]]]:
        """By name, a coroutine function from request body to response body that raises ``WireError`` for a bad body. Called once."""


@runtime_checkable
class Pages(Protocol):
    """JSON pages that are served over HTTP to clients that the API server authorizes."""

    page_prefix: str
    """Path prefix of the pages, ``/gpushare/…``. It is also the non-resource URL that clients must be authorized for."""

    async def page(self, path: str) -> bytes:
        """The page at ``path``, which starts with ``page_prefix``; raises ``Refusal``."""


class Factory(Protocol):
    """Creates a plugin. An entry point of the group ``gpushare.scheduler_plugins`` names one."""

    def __call__(self, handle: Handle, arguments: Mapping[str, Any]) -> object:
        """Return the plugin. Raises ``ValueError``, with a text for the user, if its settings (``arguments``) are invalid."""
