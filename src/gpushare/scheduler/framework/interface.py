"""What a plugin of the scheduler may implement, and what it works with.

A plugin is an object that implements one or more of the extension points below, named as in kube-scheduler's framework where that has
the same. The points take all nodes of a question at once: a call for each of 5,000 nodes would cost more than the answer. The
framework asks each plugin once, at start-up, which points it implements; a point that nobody implements costs one test of an empty
tuple. Everything runs in one event loop: a method that is no coroutine must return within microseconds and never block.

Order of one scheduling cycle: ``Filter`` → ``PreFilter`` → ``FindRoom`` (else the ledger) → ``FilterFits`` → ``Narrow`` → ``Score``, or
``PostFilter`` where no node is left; then of one binding cycle: ``Permit`` → (core: reserve the share) → ``Reserve`` → ``PreBind`` → (core: the
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
    placed: Callable[[str], None]
    """The pod with this UID has its node and need not be tried again, whatever ``retry`` was called for."""
    resynced: Event[[]]
    """Called when this replica begins to lead and has listed everything again: another may have bound pods meanwhile."""
    synced: Callable[[], bool]
    """Whether pods and nodes were read."""
    relist_pods: Callable[[], Awaitable[None]]
    """Have all pods listed again, and return once they were: ``PodDecoder`` keeps others than before."""
    leading: LeaderWatch
    """Whether this replica leads."""
    gauge_by: Callable[[str, str, str, Callable[[], Mapping[str, float]]], None]
    """Name, help, label and a function that is called at each scrape: a metric with one value for each value of the label."""
    gauge: Callable[[str, str, Callable[[], float]], None]
    """Name, help and a function that is called at each scrape: a metric of the plugin's own."""


@runtime_checkable
class Filter(Protocol):
    """Refuses nodes for a pod that requests a GPU, before room is looked for. Called for each filter of kube-scheduler."""

    def filter(self, state: CycleState, nodes: Sequence[str]) -> Mapping[str, str]:
        """Those of ``nodes`` that must not take the pod, and why, in words for its event. Ending pods there would not help."""


@runtime_checkable
class PreFilter(Protocol):
    """Refuses all nodes at once. Called after ``Filter``, before room is looked for; also for pods that request no GPU."""

    def pre_filter(self, state: CycleState) -> str:
        """Why the pod may have no node now, in words for its event; empty where it may. Ending pods may help."""


@runtime_checkable
class FindRoom(Protocol):
    """Finds room for several pods at once and keeps it for those that are bound later. Called after ``Filter`` for pods with a GPU.

    The room is reserved in the ledger by the plugin; ``reserved`` and ``reservation_cancelled`` have the core count the time of each
    reservation, which ends as that of a bind does.
    """

    reserved: Event[str, str]
    """To be called with UID and ``namespace/name`` of a pod whose reservation starts or is prolonged."""
    reservation_cancelled: Event[str]
    """To be called with the UID of a pod that needs its reservation no more; the core releases it unless a Binding is under way."""

    def find_room(self, state: CycleState, nodes: list[str]) -> Verdict | None:
        """Where the pod may go for the others' sake; ``None``: wherever the ledger has room. The first plugin's answer counts."""

    def planned_node(self, uid: str) -> str:
        """The node on which room is kept for the pod; empty where there is none."""

    def explain_room(self, request: Request, verdict: Verdict) -> Verdict:
        """The ledger's ``verdict``, with reasons for nodes that have no room because of what is kept there."""

    def not_admitted(self, state: CycleState, nodes: list[str]) -> None:
        """The pod may have no GPU now, on whichever of ``nodes``, so ``find_room`` is not called."""

    def narrowed_to_none(self, uid: str) -> None:
        """``Narrow`` has left the pod none of the nodes that ``find_room`` found."""

    def reservation_expired(self, uid: str) -> None:
        """The pod's reservation has ended without a Binding."""


class NodesInTurn(Protocol):
    """Nodes that a pod may have, the preferred ones first."""

    def __iter__(self) -> Iterator[list[str]]:
        """Each list contains the ones before. The next is asked for only where the last one has no room for the pod and its group."""

    def rest(self) -> dict[str, str]:
        """Why the pod may have none of the nodes that were not listed, by node."""


@runtime_checkable
class FilterFits(Protocol):
    """Refuses nodes that have room for a pod that requests a GPU."""

    def filter_fits(self, state: CycleState, nodes: list[str]) -> Mapping[str, str]:
        """Those of ``nodes`` whose GPUs the pod may not have now, and why, in words for its event. Ending pods may help."""


@runtime_checkable
class Narrow(Protocol):
    """Leaves a pod some of the nodes that have room for it. Also called for pods that request no GPU."""

    def in_turn(self, asked: Pod, names: list[str], destined: str) -> NodesInTurn | None:
        """Of a pod that is placed with others: the nodes to look for room on; ``None`` where all may be. The first plugin's answer counts.

        ``destined`` is the node that the pod is planned or reserved on already; empty where there is none.
        """

    def narrow(self, asked: Pod, verdict: Verdict) -> Verdict:
        """What is left of ``verdict``; itself where nothing is to be left out."""


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


class PodToBind(NamedTuple):
    """A pod that kube-scheduler wants bound. ``request`` is ``None`` where it requests no GPU; ``amounts`` are all that it requests."""

    uid: str
    key: str
    request: Request | None
    gang: Gang | None
    amounts: Amounts


@runtime_checkable
class Permit(Protocol):
    """Holds back or refuses the bind of a pod that requests a GPU. Called before its share is reserved."""

    async def permit(self, pod: PodToBind) -> None:
        """Return once the pod may be bound; raises ``NotPermitted``. kube-scheduler waits for the answer."""


@runtime_checkable
class Reserve(Protocol):
    """Accounts for what a pod takes besides its share of a GPU, from before its Binding until the watch shows it. Called for any pod."""

    def reserve(self, pod: PodToBind) -> str:
        """Why the pod may not be bound, in words for its event; empty where it may. What it requests of GPUs is in the ledger already.

        Called once: what is refused, or is there already, is not reserved again.
        """

    def is_reserved(self, uid: str) -> bool:
        """Whether the plugin keeps something for the pod that the ledger knows nothing of."""

    def unreserve(self, uid: str) -> None:
        """The pod is not bound, and is not going to be."""


@runtime_checkable
class PreBind(Protocol):
    """Called before the Binding of any pod is written, those without a GPU among them; each delays that Binding."""

    async def pre_bind(self, args: BindingArgs) -> Mapping[str, str]:
        """Annotations to be written with the Binding.

        Raises ``KubeError``: with an ``ApiError`` below 500 the Binding is refused, with any other it may be tried again.
        """


@runtime_checkable
class PostBind(Protocol):
    """Called once the Binding was answered, or a ``PreBind`` has failed."""

    def post_bind(self, args: BindingArgs, error: BaseException | None) -> None:
        """``error``: why it was not written, or is not known to be (``KubeError``); ``None`` where it was."""


class NotPermitted(Exception):
    """Why a pod is not bound now, in words for its event."""


@runtime_checkable
class Explain(Protocol):
    """Records what was decided, for those who ask why. Each method must only take note: the answer is not sent yet."""

    def after_filter(self, state: CycleState, verdict: Verdict) -> None:
        """The answer about ``state.names``; none of it changes any more."""

    def after_score(self, state: CycleState, above: Sequence[tuple[str, int]]) -> None:
        """The scores of the nodes that stand out among ``state.names``."""

    def after_bind(self, args: BindingArgs, error: str) -> None:
        """The pod was bound, or ``error`` says why not."""


@runtime_checkable
class PodDecoder(Protocol):
    """Adds to the record of each pod what the plugin needs of its manifest."""

    def pod_decoder(self, decode: DecodePodFn) -> DecodePodFn:
        """``decode`` with more in it. Called once; the result is called for every event of every pod, so it must be fast."""


@runtime_checkable
class PodsWait(Protocol):
    """Delays the first list of pods."""

    async def before_pods(self) -> None:
        """Return once pods may be listed, as it is known which the plugin's ``pod_decoder`` has to keep."""


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


class Watch(Protocol):
    """An informer."""

    @property
    def figures(self) -> InformerFigures:
        """How it fares."""


@runtime_checkable
class WatchedKinds(Protocol):
    """A plugin that watches kinds of its own and decides by them. Nothing is answered before they were listed once."""

    def watched(self) -> Mapping[str, Watch]:
        """The watches by kind. Called at each scrape of the metrics: some come and go."""

    def not_listed(self) -> str:
        """What was not listed yet, in words; empty once all was. Called for each request until everything was."""

    async def relist(self) -> None:
        """List everything again: this replica begins to lead, and its watches may be behind."""


@runtime_checkable
class Verbs(Protocol):
    """Verbs of kube-scheduler's extender protocol that the core does not have."""

    def verbs(self) -> Mapping[str, Callable[[bytes], Coroutine[Any, Any, bytes]]]:
        """By name: what answers the body of a request with the body of the answer; raises ``WireError``. Called once."""


@runtime_checkable
class Pages(Protocol):
    """JSON that is read over HTTP by those whom the API server authorizes."""

    page_prefix: str
    """Where the pages are: ``/gpushare/…``; it is also what readers are authorized for."""

    async def page(self, path: str) -> bytes:
        """The page at ``path``, which begins with ``page_prefix``; raises ``Refusal``."""


class Factory(Protocol):
    """How a plugin is made: what an entry point of the group ``gpushare.scheduler_plugins`` names."""

    def __call__(self, handle: Handle, arguments: Mapping[str, Any]) -> object:
        """The plugin; raises ``ValueError`` with what is wrong with ``arguments``, the user's settings for it."""
