"""Follows ResourcePolicies, and for their sake nodes' labels and the pods of their namespaces.

As long as there is no policy nothing but the policies themselves is followed; where the cluster does not know the kind, it
is looked for every few seconds. What is followed is told by ``Policies``.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from gpushare.api import names
from gpushare.api.crd.resource_policy import (
    Labels,
    PolicyPod,
    ResourcePolicy,
    decode_policy,
    policy_pod_of,
)
from gpushare.api.objects import decode_pod
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.client.session import Session, segment
from gpushare.kube.clock import SYSTEM_CLOCK, Clock
from gpushare.kube.watch.informer import Informer, InformerFigures
from gpushare.scheduler.leader.resync import read_or_go_on
from gpushare.scheduler.plugins.resource_policy.plugin import Policies

logger = logging.getLogger(__name__)

PATH: Final = f"/apis/{names.POLICY_GROUP}/{names.POLICY_VERSION}/{names.POLICY_PLURAL}"
#: Seconds between looks whether the kind is there.
_ABSENT_S: Final = 3.0
_PRESENT_S: Final = 30.0
_LOOK_S: Final = 10.0
#: Namespaces with policies; each costs a watch. Policies of further ones are passed over, with a word.
MOST_NAMESPACES: Final = 200
_SPARE_CONNECTIONS: Final = 8
#: Beside the names of namespaces, which have no star.
_POLICIES: Final = "*policies"
_NODES: Final = "*nodes"
#: What the informers that are not of a namespace's pods are called in figures.
_KINDS: Final = {_POLICIES: "resourcepolicies", _NODES: "policy-nodes"}


class NodeLabels(msgspec.Struct, frozen=True):
    """A node's labels."""

    name: str
    labels: Labels


class _Meta(msgspec.Struct):
    name: str = ""
    labels: dict[str, str] | None = None


class _Node(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


_NODE: Final = msgspec.json.Decoder(_Node)


def decode_labels(raw: bytes) -> tuple[str, NodeLabels]:
    """A node's JSON as policies take it."""
    meta = _NODE.decode(raw).metadata
    return meta.name, NodeLabels(meta.name, meta.labels or {})


def decode_policy_pod(raw: bytes) -> tuple[str, PolicyPod] | None:
    """A pod's JSON as policies take it; ``None`` when it has ended."""
    pod = decode_pod(raw)
    return None if pod.finished else (pod.key, policy_pod_of(pod))


def decode_keyed_policy(raw: bytes) -> tuple[str, ResourcePolicy]:
    """A policy's JSON with its key."""
    policy = decode_policy(raw)
    return policy.key, policy


class _Nodes:
    def __init__(self, policies: Policies, on_synced: Callable[[], None]) -> None:
        self._census = policies.census
        self._on_synced = on_synced

    def synced(self) -> None:
        """The first list is complete."""
        self._on_synced()

    def upsert(self, item: NodeLabels) -> None:
        """A node was added or changed."""
        self._census.set_node(item.name, item.labels)

    def remove(self, key: str, last: NodeLabels) -> None:
        """A node is gone."""
        self._census.remove_node(key)


class _Pods:
    def __init__(self, policies: Policies, on_synced: Callable[[], None]) -> None:
        self._policies = policies
        self._on_synced = on_synced

    def synced(self) -> None:
        """The first list is complete."""
        self._on_synced()

    def upsert(self, item: PolicyPod) -> None:
        """A pod was added or changed."""
        self._policies.upsert_pod(item)

    def remove(self, key: str, last: PolicyPod) -> None:
        """A pod has ended or is gone."""
        self._policies.remove_pod(last)


class Followed(NamedTuple):
    """Informers of one kind of object, as one."""

    figures: InformerFigures


def _joined(figures: list[InformerFigures]) -> InformerFigures:
    heard = [one.last_heard_s for one in figures if one.last_heard_s is not None]
    return InformerFigures(
        synced=all(one.synced for one in figures),
        objects=sum(one.objects for one in figures),
        events=sum(one.events for one in figures),
        relists=sum(one.relists for one in figures),
        reconnects=sum(one.reconnects for one in figures),
        unreadable=sum(one.unreadable for one in figures),
        # Who was never heard is silent the longest.
        last_heard_s=min(heard) if len(heard) == len(figures) else None,
        last_error=next((one.last_error for one in figures if one.last_error), ""),
    )


class PolicyWatches:
    """Keeps ``policies`` true to the API server, and is the handler of their informer.

    What is followed only while there are policies has connections of its own.
    """

    def __init__(self, policies: Policies, session: Session, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.ready = asyncio.Event()
        """All that is needed was read once."""
        self._policies = policies
        self._session = session
        self._clock = clock
        self._changed = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._informers: dict[str, Informer[Any]] = {}
        self._read: set[str] = set()
        self._left: set[str] = set()
        # Nobody tells of them again when there is a place for them.
        self._passed_over: dict[str, ResourcePolicy] = {}

    # --- what the informers tell ------------------------------------------------------------------

    def synced(self) -> None:
        """All policies were read."""
        self._note_read(_POLICIES)

    def upsert(self, item: ResourcePolicy) -> None:
        """A policy was added or changed."""
        known = self._policies.census.namespaces
        if item.namespace not in known and len(known) >= MOST_NAMESPACES:
            self._passed_over[item.key] = item
            logger.error(
                "ResourcePolicy %s is passed over: %d namespaces have policies, and more are not followed",
                item.key,
                MOST_NAMESPACES,
            )
            return
        self._passed_over.pop(item.key, None)
        self._policies.upsert_policy(item)
        self._changed.set()

    def remove(self, key: str, last: ResourcePolicy) -> None:
        """A policy is gone."""
        if self._passed_over.pop(key, None) is not None:
            return
        self._policies.remove_policy(key)
        if last.namespace not in self._policies.census.namespaces:
            self._left.add(last.namespace)
            self._read.discard(last.namespace)
            self._take_up()
        self._changed.set()

    def _take_up(self) -> None:
        """There is a place for one more namespace: for the one whose policies were passed over first."""
        first = next(iter(self._passed_over.values()), None)
        if first is not None:
            logger.info("ResourcePolicies of namespace %s are followed now", first.namespace)
            for one in [one for one in self._passed_over.values() if one.namespace == first.namespace]:
                self.upsert(one)

    def _note_read(self, what: str) -> None:
        self._read.add(what)
        if _NODES in self._read:
            for namespace in self._policies.unread & self._read:
                self._policies.unread.discard(namespace)
                self._policies.refresh(namespace)
        self._changed.set()

    async def relist(self) -> None:
        """Return once all that is followed was listed anew, or cannot be."""
        await read_or_go_on("ResourcePolicies", *self._informers.values())

    def followed(self) -> dict[str, Followed]:
        """How what is followed fares, by what it is: the pods of all namespaces with policies as one. Empty where the kind is absent."""
        found: dict[str, list[InformerFigures]] = {}
        for name, informer in self._informers.items():
            found.setdefault(_KINDS.get(name, "policy-pods"), []).append(informer.figures)
        return {kind: Followed(_joined(figures)) for kind, figures in found.items()}

    # --- following --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow for ever; raises what cannot be gone on with."""
        while True:
            if await self._is_there():
                await self._follow()
                for book in list(self._policies.census.books()):
                    self._policies.remove_policy(book.policy.key)
                self._policies.census.forget_nodes()
            else:
                self.ready.set()
                await self._clock.sleep(_ABSENT_S)

    async def _is_there(self) -> bool:
        """Whether the API server knows the kind, and lets us read it; waits until it says."""
        while True:
            try:
                await self._session.request("GET", PATH, params={"limit": "1"}, timeout_s=_LOOK_S)
            except KubeError as error:
                if isinstance(error, ApiError) and error.not_found:
                    return False
                if isinstance(error, ApiError) and error.status == 403:
                    logger.warning("ResourcePolicies are not heeded, they may not be read: %s", error)
                    return False
                logger.warning("%s; looking again in %.0f s", error, _ABSENT_S)
                await self._clock.sleep(_ABSENT_S)
            else:
                return True

    async def _follow(self) -> None:
        """Follow policies, and what they need, until the kind is gone."""
        self._read.clear()
        self._passed_over.clear()
        policies = Informer(self._session, PATH, decode_keyed_policy, self)
        self._running, self._informers = {}, {}
        self._start(_POLICIES, policies)
        gone = asyncio.create_task(self._until_gone())
        async with AsyncExitStack() as stack:
            session: Session | None = None
            try:
                while not gone.done():
                    self._changed.clear()
                    if session is None and self._policies.in_use:
                        connections = MOST_NAMESPACES + _SPARE_CONNECTIONS
                        session = await stack.enter_async_context(
                            Session(self._session.access, connections=connections)
                        )
                    if session is not None:
                        self._adjust(session)
                    if _POLICIES in self._read and not self._policies.unread:
                        self.ready.set()
                    await self._until_changed(gone)
            finally:
                self._informers.clear()
                await _end(gone, *self._running.values())

    async def _until_changed(self, gone: asyncio.Task[None]) -> None:
        changed = asyncio.create_task(self._changed.wait())
        try:
            done, _ = await asyncio.wait(
                {*self._running.values(), gone, changed}, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            changed.cancel()
        for task in done:
            task.result()  # an informer ends with an error alone

    def _adjust(self, session: Session) -> None:
        """Start what is wanted and does not run, end what runs and is not wanted."""
        wanted = self._policies.census.namespaces
        for name in [
            one for one in self._running if one in self._left or (one[:1] != "*" and one not in wanted)
        ]:
            del self._informers[name]
            self._running.pop(name).cancel()
            self._read.discard(name)
        self._left.clear()
        if _NODES not in self._running:
            nodes = Informer(
                session,
                "/api/v1/nodes",
                decode_labels,
                _Nodes(self._policies, partial(self._note_read, _NODES)),
            )
            self._start(_NODES, nodes)
        for namespace in wanted - self._running.keys():
            path = f"/api/v1/namespaces/{segment(namespace)}/pods"
            pods = _Pods(self._policies, partial(self._note_read, namespace))
            self._start(namespace, Informer(session, path, decode_policy_pod, pods))

    def _start(self, name: str, informer: Informer[Any]) -> None:
        self._informers[name] = informer
        self._running[name] = asyncio.create_task(informer.run())

    async def _until_gone(self) -> None:
        """Wait until the API server knows the kind no more."""
        while True:
            await self._clock.sleep(_PRESENT_S)
            try:
                await self._session.request("GET", PATH, params={"limit": "1"}, timeout_s=_LOOK_S)
            except KubeError as error:
                if isinstance(error, ApiError) and error.not_found:
                    return


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
