"""Watches ResourcePolicies, nodes' labels, and the pods of namespaces with policies.

While there is no policy, only the policies themselves are watched. If the cluster does not have the kind, this is checked again every
few seconds. Events are passed to ``Policies``.
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
#: Seconds between checks whether the kind exists: while it does not, while it does; and the timeout of a check.
_ABSENT_S: Final = 3.0
_PRESENT_S: Final = 30.0
_LOOK_S: Final = 10.0
#: Maximum number of namespaces with policies, as each needs a watch. Policies of further namespaces are ignored, with an error in the log.
MOST_NAMESPACES: Final = 200
_SPARE_CONNECTIONS: Final = 8
#: Keys of informers next to names of namespaces, which cannot contain a star.
_POLICIES: Final = "*policies"
_NODES: Final = "*nodes"
#: Names in metrics of the informers that do not watch a namespace's pods.
_KINDS: Final = {_POLICIES: "resourcepolicies", _NODES: "policy-nodes"}


class _Meta(msgspec.Struct):
    name: str = ""
    labels: dict[str, str] | None = None


class _Node(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


_NODE: Final = msgspec.json.Decoder(_Node)


def decode_labels(raw: bytes) -> tuple[str, tuple[str, Labels]]:
    """Decode a node's JSON for policies: its name, and name and labels."""
    meta = _NODE.decode(raw).metadata
    return meta.name, (meta.name, meta.labels or {})


def decode_policy_pod(raw: bytes) -> tuple[str, PolicyPod] | None:
    """Decode a pod's JSON for policies; ``None`` if it has ended."""
    pod = decode_pod(raw)
    return None if pod.finished else (pod.key, policy_pod_of(pod))


def decode_keyed_policy(raw: bytes) -> tuple[str, ResourcePolicy]:
    """Decode a policy's JSON; returns its key, too."""
    policy = decode_policy(raw)
    return policy.key, policy


class _Handler(NamedTuple):
    """Handles the events of an informer (``gpushare.kube.watch.informer.Handler``)."""

    synced: Callable[[], None]
    upsert: Callable[[Any], None]
    remove: Callable[[str, Any], None]


class Followed(NamedTuple):
    """The combined figures of the informers of one kind."""

    figures: InformerFigures


def _joined(figures: list[InformerFigures]) -> InformerFigures:
    received_s = [one.last_received_s for one in figures if one.last_received_s is not None]
    return InformerFigures(
        synced=all(one.synced for one in figures),
        objects=sum(one.objects for one in figures),
        events=sum(one.events for one in figures),
        relists=sum(one.relists for one in figures),
        reconnects=sum(one.reconnects for one in figures),
        unreadable=sum(one.unreadable for one in figures),
        # Unknown if an informer has had no event yet: that one has been silent the longest.
        last_received_s=min(received_s) if len(received_s) == len(figures) else None,
        last_error=next((one.last_error for one in figures if one.last_error), ""),
    )


class PolicyWatches:
    """Keeps ``policies`` in sync with the API server, and handles the events of their informer.

    Watches that are needed only while there are policies have separate connections.
    """

    def __init__(self, policies: Policies, session: Session, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.ready = asyncio.Event()
        """Set when everything that is needed was listed once."""
        self._policies = policies
        self._session = session
        self._clock = clock
        self._changed = asyncio.Event()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._informers: dict[str, Informer[Any]] = {}
        self._read: set[str] = set()
        self._without_policies: set[str] = set()
        # Stored, as the informer will not report them again when another namespace has lost its policies.
        self._ignored: dict[str, ResourcePolicy] = {}

    # --- informer events --------------------------------------------------------------------------

    def synced(self) -> None:
        """The first list of policies is complete."""
        self._note_read(_POLICIES)

    def upsert(self, item: ResourcePolicy) -> None:
        """A policy was added or changed."""
        known = self._policies.census.namespaces
        if item.namespace not in known and len(known) >= MOST_NAMESPACES:
            self._ignored[item.key] = item
            logger.error(
                "ResourcePolicy %s is ignored: policies in more than %d namespaces are not supported",
                item.key,
                MOST_NAMESPACES,
            )
            return
        self._ignored.pop(item.key, None)
        self._policies.upsert_policy(item)
        self._changed.set()

    def remove(self, key: str, last: ResourcePolicy) -> None:
        """A policy was deleted."""
        if self._ignored.pop(key, None) is not None:
            return
        self._policies.remove_policy(key)
        if last.namespace not in self._policies.census.namespaces:
            self._without_policies.add(last.namespace)
            self._read.discard(last.namespace)
            self._watch_ignored()
        self._changed.set()

    def _watch_ignored(self) -> None:
        """Another namespace may be watched: the one whose policies were ignored first."""
        first = next(iter(self._ignored.values()), None)
        if first is not None:
            logger.info("ResourcePolicies of namespace %s are followed now", first.namespace)
            for policy in [
                policy for policy in self._ignored.values() if policy.namespace == first.namespace
            ]:
                self.upsert(policy)

    def _note_read(self, key: str) -> None:
        self._read.add(key)
        if _NODES in self._read:
            for namespace in self._policies.unread & self._read:
                self._policies.unread.discard(namespace)
                self._policies.refresh(namespace)
        self._changed.set()

    async def relist(self) -> None:
        """List everything that is watched again; return when that is done, or cannot be done in time."""
        await read_or_go_on("ResourcePolicies", *self._informers.values())

    def followed(self) -> dict[str, Followed]:
        """The informers' figures by kind, with the pods of all namespaces combined. Empty if the kind does not exist."""
        by_kind: dict[str, list[InformerFigures]] = {}
        for name, informer in self._informers.items():
            by_kind.setdefault(_KINDS.get(name, "policy-pods"), []).append(informer.figures)
        return {kind: Followed(_joined(figures)) for kind, figures in by_kind.items()}

    # --- watching ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch until cancelled; raises errors that cannot be handled."""
        while True:
            if await self._kind_exists():
                await self._follow()
                for book in list(self._policies.census.books()):
                    self._policies.remove_policy(book.policy.key)
                self._policies.census.forget_nodes()
            else:
                self.ready.set()
                await self._clock.sleep(_ABSENT_S)

    async def _kind_exists(self) -> bool:
        """Whether the kind exists and we may read it. Waits until the API server responds."""
        while True:
            try:
                await self._session.request("GET", PATH, params={"limit": "1"}, timeout_s=_LOOK_S)
            except KubeError as error:
                if isinstance(error, ApiError) and error.not_found:
                    return False
                if isinstance(error, ApiError) and error.status == 403:
                    logger.warning("ResourcePolicies are ignored: no permission to read them: %s", error)
                    return False
                logger.warning("%s; looking again in %.0f s", error, _ABSENT_S)
                await self._clock.sleep(_ABSENT_S)
            else:
                return True

    async def _follow(self) -> None:
        """Watch policies, and what they need, until the kind is deleted."""
        self._read.clear()
        self._ignored.clear()
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
                        await self._adjust(session)
                    if _POLICIES in self._read and not self._policies.unread:
                        self.ready.set()
                    await self._until_changed(gone)
            finally:
                self._informers.clear()
                await _cancel(gone, *self._running.values())

    async def _until_changed(self, gone: asyncio.Task[None]) -> None:
        changed = asyncio.create_task(self._changed.wait())
        try:
            done, _ = await asyncio.wait(
                {*self._running.values(), gone, changed}, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            changed.cancel()
        for task in done:
            task.result()  # an informer ends only with an error

    async def _adjust(self, session: Session) -> None:
        """Start informers that are needed, and stop those that are not."""
        wanted = self._policies.census.namespaces
        unneeded = [
            running
            for running in self._running
            if running in self._without_policies or (running[:1] != "*" and running not in wanted)
        ]
        self._without_policies.clear()
        for name in unneeded:
            del self._informers[name]
            await _cancel(self._running.pop(name))
            self._read.discard(name)
        policies, census = self._policies, self._policies.census
        if _NODES not in self._running:
            nodes = _Handler(
                partial(self._note_read, _NODES),
                lambda node: census.set_node(*node),
                lambda name, last: census.remove_node(name),
            )
            self._start(_NODES, Informer(session, "/api/v1/nodes", decode_labels, nodes))
        for namespace in wanted - self._running.keys():
            path = f"/api/v1/namespaces/{segment(namespace)}/pods"
            pods = _Handler(
                partial(self._note_read, namespace),
                policies.upsert_pod,
                lambda key, last: policies.remove_pod(last),
            )
            self._start(namespace, Informer(session, path, decode_policy_pod, pods))

    def _start(self, name: str, informer: Informer[Any]) -> None:
        self._informers[name] = informer
        self._running[name] = asyncio.create_task(informer.run())

    async def _until_gone(self) -> None:
        """Wait until the kind no longer exists."""
        while True:
            await self._clock.sleep(_PRESENT_S)
            try:
                await self._session.request("GET", PATH, params={"limit": "1"}, timeout_s=_LOOK_S)
            except KubeError as error:
                if isinstance(error, ApiError) and error.not_found:
                    return


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
