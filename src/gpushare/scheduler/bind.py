"""The bind verb: reserve, write one Binding, and know the outcome even when the answer is lost.

A pod's share is reserved in the ledger before the Binding is posted, so two pods that race for the last
unit cannot both get it. Then one of these holds:

* the API server took the Binding: the reservation stays until the informer shows the pod bound;
* it refused: the pod's present state decides (already bound where we wanted it is a success);
* nobody knows (answer lost): the pod is read. Unbound and unknown both keep the reservation, for the
  Binding may still arrive; a repeated bind posts the same again, and the reservation ends by itself.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from gpushare.kube.clock import Clock
from gpushare.kube.errors import ApiError, KubeError, Unreachable
from gpushare.ledger import Refused
from gpushare.model.errors import ModelError
from gpushare.model.objects import Pod
from gpushare.model.request import Request, request_of
from gpushare.model.wire import Stamp, allocation_annotations
from gpushare.scheduler.records import record_of
from gpushare.scheduler.view import ClusterView
from gpushare.scheduler.wire import BindingArgs

logger = logging.getLogger(__name__)

#: How long a reservation waits for its Binding to be seen, in seconds.
RESERVATION_TTL_S: Final = 15.0
_SWEEP_S: Final = 1.0
_SWEEP_AT_ONCE: Final = 64


class Pods(Protocol):
    """What bind asks of the API server (``gpushare.kube.client.Client``)."""

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """The pod as it is; ``ApiError.not_found`` when there is none."""

    async def bind(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        """Post one Binding that carries ``annotations``."""


class BindRefused(Exception):
    """Why a pod was not bound, in words for its event."""


@dataclass(slots=True)
class Reservations:
    """When each reservation that no Binding has confirmed ends: UID → (deadline, pod, in seconds)."""

    ttl_s: float
    deadlines: dict[str, tuple[float, str]] = field(default_factory=dict)

    def add(self, uid: str, pod: str, now_s: float) -> None:
        """Start or prolong the reservation of ``uid``."""
        self.deadlines.pop(uid, None)  # keeps the mapping in order of its deadlines
        self.deadlines[uid] = (now_s + self.ttl_s, pod)

    def end(self, uid: str) -> None:
        """The reservation was confirmed or given up."""
        self.deadlines.pop(uid, None)

    def due(self, now_s: float) -> list[tuple[str, str]]:
        """(UID, pod) of the reservations whose time is over, at most a handful at once."""
        found: list[tuple[str, str]] = []
        for uid, (deadline_s, pod) in self.deadlines.items():
            if deadline_s > now_s or len(found) == _SWEEP_AT_ONCE:
                break
            found.append((uid, pod))
        return found


class Binder:
    """Binds pods through the API server and owns their reservations."""

    def __init__(self, view: ClusterView, pods: Pods, reservations: Reservations, clock: Clock) -> None:
        self._view = view
        self._ledger = view.ledger
        self._pods = pods
        self._reservations = reservations
        self._clock = clock
        self._under_way: dict[str, asyncio.Future[None]] = {}

    async def bind(self, args: BindingArgs) -> None:
        """Bind the pod to the node, or raise ``BindRefused``. Safe to repeat."""
        while (running := self._under_way.get(args.uid)) is not None:
            await asyncio.wait([running])
        done = self._under_way[args.uid] = asyncio.get_running_loop().create_future()
        try:
            await self._bind(args)
        finally:
            del self._under_way[args.uid]
            done.set_result(None)

    async def _bind(self, args: BindingArgs) -> None:
        held = self._ledger.held(args.uid)
        if held is not None and held.node != args.node:
            state = "is already bound" if held.confirmed else "may be bound any moment"
            raise BindRefused(f"pod {args.key} {state} to node {held.node}")
        if held is not None and held.confirmed:
            return
        request = await self._request(args)
        if request is None:
            return  # found bound to this node already
        try:
            allocation = self._ledger.reserve(args.uid, args.key, request, args.node)
        except Refused as refused:
            raise BindRefused(f"node {args.node}: {refused.reason}") from None
        self._reservations.add(args.uid, args.key, self._clock.monotonic())
        annotations = allocation_annotations(
            allocation, request, Stamp(self._clock.time_ns(), assigned=False)
        )
        try:
            await self._pods.bind(
                namespace=args.namespace,
                name=args.name,
                uid=args.uid,
                node=args.node,
                annotations=annotations,
            )
        except KubeError as error:
            await self._after_failure(args, error)

    async def _request(self, args: BindingArgs) -> Request | None:
        """What the pod asks; ``None`` when it turns out to be bound to the wanted node already."""
        record = self._view.waiting.get(args.uid)
        if record is not None and record.pod == args.key:
            if record.request is None:
                raise BindRefused(record.problem)
            return record.request
        # kube-scheduler's watch may be ahead of ours; and a bind that succeeded may be asked again.
        try:
            pod = await self._pods.get_pod(args.namespace, args.name)
            if self._bound_as_wanted(args, pod):
                return None
            request = request_of(pod)
        except KubeError as error:
            raise BindRefused(f"pod {args.key} cannot be read: {error}") from error
        except ModelError as error:
            raise BindRefused(error.problem) from error
        if request is None:
            raise BindRefused(f"pod {args.key} asks for no shared GPU, it is not for this extender to bind")
        return request

    def _bound_as_wanted(self, args: BindingArgs, pod: Pod) -> bool:
        """Whether ``pod`` is bound to the wanted node, which the ledger then holds; raises ``BindRefused``
        when it is another pod, is bound elsewhere, or has ended."""
        if pod.metadata.uid != args.uid:
            raise BindRefused(f"pod {args.key} was replaced: its UID is {pod.metadata.uid}, not {args.uid}")
        record = record_of(pod)
        if record is not None and (record.node or record.finished):
            self._view.upsert_pod(record)
        if not pod.spec.node_name:
            if pod.finished:
                raise BindRefused(f"pod {args.key} has ended")
            return False
        if pod.spec.node_name != args.node:
            raise BindRefused(f"pod {args.key} is already bound to node {pod.spec.node_name}")
        return True

    async def _after_failure(self, args: BindingArgs, error: KubeError) -> None:
        """Return if the pod is bound after all; otherwise raise, and release what is surely not used."""
        refused = isinstance(error, ApiError) and error.status < 500
        never_sent = isinstance(error, Unreachable) and error.sent is False
        if never_sent:
            self._release(args.uid)
            raise BindRefused(
                f"API server cannot be reached, pod {args.key} was not bound: {error}"
            ) from error
        try:
            pod = await self._pods.get_pod(args.namespace, args.name)
            if self._bound_as_wanted(args, pod):
                return
        except BindRefused:
            self._release(args.uid, unless_confirmed=True)
            raise
        except KubeError as second:
            if isinstance(second, ApiError) and second.not_found:
                self._release(args.uid)
                raise BindRefused(f"pod {args.key} is gone") from error
            logger.warning("pod %s may or may not be bound to node %s: %s", args.key, args.node, second)
        else:
            if refused:
                self._release(args.uid)
        raise BindRefused(f"pod {args.key} was not bound to node {args.node}: {error}") from error

    def _release(self, uid: str, *, unless_confirmed: bool = False) -> None:
        held = self._ledger.held(uid)
        if held is not None and not (unless_confirmed and held.confirmed):
            self._ledger.release(uid)
        self._reservations.end(uid)

    # --- reservations that no one confirmed -----------------------------------------------------

    async def sweep(self) -> None:
        """End overdue reservations for ever, after asking the API server what became of their pods."""
        while True:
            await self._clock.sleep(_SWEEP_S)
            for uid, pod in self._reservations.due(self._clock.monotonic()):
                if uid not in self._under_way:
                    await self.settle(uid, pod)

    async def settle(self, uid: str, key: str) -> None:
        """Decide one reservation by the pod's present state; unknown prolongs it."""
        namespace, _, name = key.partition("/")
        try:
            pod = await self._pods.get_pod(namespace, name)
        except KubeError as error:
            if isinstance(error, ApiError) and error.not_found:
                self._release(uid)
            else:
                self._reservations.add(uid, key, self._clock.monotonic())
            return
        record = record_of(pod) if pod.metadata.uid == uid else None
        held = self._ledger.held(uid)
        if held is None or held.confirmed:
            self._reservations.end(uid)
        elif record is not None and record.node:
            self._view.upsert_pod(record)
        else:
            logger.info("pod %s: its binding to node %s never came, the share is free again", key, held.node)
            self._release(uid)
