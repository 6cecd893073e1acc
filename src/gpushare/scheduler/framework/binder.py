"""The bind verb: reserve, write one Binding, and determine the outcome even if the response is lost.

A pod's share is reserved in the ledger before the Binding is posted, so two pods that race for the last
unit cannot both get it. There are three outcomes:

* The API server accepted the Binding: the reservation stays until the informer shows the pod bound.
* It refused the Binding: the pod's current state decides. A pod that is already bound to the requested node is a success.
* The outcome is unknown, as the response was lost: the pod is read. If it is unbound or cannot be read, the reservation
  stays, because the Binding may still be written, even after later ones. A repeated bind posts the same Binding again.
  The reservation expires in the end. If another replica may have been leader meanwhile, nothing is posted again: that
  replica did not know of the reservation.

Plugins reserve other resources in the same way (``Reserve``), also for pods that request no GPU: kube-scheduler delegates
the binding of these pods to us, too.

The result of a direct read takes effect at once, but only the informer confirms a reservation. A read may be older than the
informer's state, and the end of a pod that the informer never saw would never be reported. Until the informer
confirms it, the reservation's deadline stays in force, and the pod is read again when it expires.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, Protocol

import msgspec

from gpushare.api.allocation.annotations import Stamp, allocation_annotations
from gpushare.api.errors import ModelError
from gpushare.api.objects import Pod
from gpushare.api.request.amounts import amounts_of
from gpushare.api.request.pod_group import gang_of
from gpushare.api.request.request import Request, request_of
from gpushare.kube.client.errors import ApiError, CredentialError, KubeError, Unreachable
from gpushare.kube.clock import Clock
from gpushare.ledger import Held, Refused
from gpushare.process.event import Event
from gpushare.process.log_setup import about
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import record_of
from gpushare.scheduler.framework.interface import NotPermitted, PodToBind
from gpushare.scheduler.framework.runtime import NO_PLUGINS, Framework
from gpushare.scheduler.server.protocol import BindingArgs

logger = logging.getLogger(__name__)

#: Seconds until a reservation expires whose Binding is not seen.
RESERVATION_TTL_S: Final = 15.0
_SWEEP_S: Final = 1.0
_SWEEP_AT_ONCE: Final = 64


class Pods(Protocol):
    """The API server requests of the binder (``gpushare.kube.client.client.Client``)."""

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """Read the pod; raises ``ApiError`` with ``not_found`` if it does not exist."""

    async def bind(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        """Post one Binding with ``annotations``."""


class BindRefused(Exception):
    """The pod was not bound; the text is the reason for its event."""


class Reservations(msgspec.Struct):
    """The deadlines of reservations that are not confirmed by a Binding: UID → (deadline in seconds, pod).

    ``doubtful``: those for which a Binding was posted that may still be written. ``of_before``: those from before another replica held the
    lease. That replica did not know of them and may have allocated the same share to other pods.
    """

    ttl_s: float
    deadlines: dict[str, tuple[float, str]] = {}
    doubtful: set[str] = set()
    of_before: set[str] = set()

    def add(self, uid: str, pod: str, now_s: float) -> None:
        """Start or prolong the reservation of ``uid``."""
        self.deadlines.pop(uid, None)  # keeps the mapping sorted by deadline
        self.deadlines[uid] = (now_s + self.ttl_s, pod)

    def end(self, uid: str) -> None:
        """The reservation was confirmed or released."""
        self.deadlines.pop(uid, None)
        self.doubtful.discard(uid)
        self.of_before.discard(uid)

    def due(self, now_s: float) -> list[tuple[str, str]]:
        """(UID, pod) of expired reservations, at most ``_SWEEP_AT_ONCE``."""
        expired: list[tuple[str, str]] = []
        for uid, (deadline_s, pod) in self.deadlines.items():
            if deadline_s > now_s or len(expired) == _SWEEP_AT_ONCE:
                break
            expired.append((uid, pod))
        return expired


class Binder:
    """Binds pods through the API server and owns their reservations."""

    def __init__(
        self,
        view: ClusterCache,
        pods: Pods,
        reservations: Reservations,
        clock: Clock,
        framework: Framework = NO_PLUGINS,
    ) -> None:
        self._view = view
        self._ledger = view.ledger
        self._pods = pods
        self._reservations = reservations
        self._clock = clock
        self._under_way: dict[str, asyncio.Future[None]] = {}
        self._framework = framework
        for reserver in framework.reservers:
            reserver.reserved.subscribe(self._prolong)
            reserver.reservation_cancelled.subscribe(self._binding_failed)
        self.reservation_expired: Event[str, str, str] = Event()
        """Called with UID, ``namespace/name`` and node of a pod whose reservation expired without a Binding."""

    def forget_reservations(self) -> None:
        """Another replica may have been leader, and everything was listed again: it may have allocated our reservations to other pods.

        Reservations whose Binding may still be written stay until their deadline, but no Binding is posted again for them.
        """
        self._reservations.of_before = set(self._reservations.deadlines)

    async def bind(self, args: BindingArgs) -> None:
        """Bind the pod to the node, or raise ``BindRefused``. Safe to repeat."""
        async with self._serialized(args.uid):
            await self._bind(args)

    @asynccontextmanager
    async def _serialized(self, uid: str) -> AsyncIterator[None]:
        """Serialize operations on a pod, so that no other task changes its state between two awaits."""
        while (running := self._under_way.get(uid)) is not None:
            await asyncio.wait([running])
        done = self._under_way[uid] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._under_way[uid]
            done.set_result(None)

    async def _bind(self, args: BindingArgs) -> None:
        held = self._ledger.held(args.uid)
        if self._is_done(args, held):
            return
        pod = await self._pod_to_bind(args)
        if pod is None:
            return  # it is already bound to this node
        annotations: Mapping[str, str] = {}
        if pod.request is not None:
            annotations = await self._reserve_share(pod, pod.request, args.node, held)
        if held is None and not self._is_reserved_by_plugins(args.uid):
            self._reserve_in_plugins(pod)
        if self._has_reservation(args.uid) and args.uid not in self._reservations.doubtful:
            self._prolong(args.uid, args.key)
        await self._post(args, annotations)

    async def _reserve_share(
        self, pod: PodToBind, request: Request, node: str, held: Held | None
    ) -> Mapping[str, str]:
        """Reserve the share and return the annotations that record it. ``held`` is what the pod already holds. Raises ``BindRefused``."""
        try:
            for permit in self._framework.permits:
                await permit.permit(pod)
            if held is None and (refusal := self._view.offers.refusal(request, node)):
                raise BindRefused(f"node {node}: {refusal}")
            self._ledger.nominations.remove(pod.uid)
            allocation = self._ledger.reserve(pod.uid, pod.key, request, node)
        except NotPermitted as error:
            raise BindRefused(str(error)) from None
        except Refused as refused:
            raise BindRefused(f"node {node}: {refused.reason}") from None
        return allocation_annotations(allocation, request, Stamp(self._clock.time_ns(), assigned=False))

    def _reserve_in_plugins(self, pod: PodToBind) -> None:
        """Call the ``Reserve`` plugins. Raises ``BindRefused`` after releasing everything if one refuses."""
        for plugin in self._framework.reserves:
            if refusal := plugin.reserve(pod):
                self._release(pod.uid)
                raise BindRefused(refusal)

    def _is_done(self, args: BindingArgs, held: Held | None) -> bool:
        """Whether the pod is already bound to the requested node. Raises ``BindRefused`` if it is, or may be, bound to another."""
        if held is not None and held.node != args.node:
            state = "is already bound" if held.confirmed else "may be bound at any moment"
            raise BindRefused(f"pod {args.key} {state} to node {held.node}")
        if held is not None and held.confirmed:
            return True
        if args.uid in self._reservations.of_before:
            raise BindRefused(
                f"pod {args.key} may still be bound by a Binding sent before a possible change of leader; "
                f"if none arrives, it is rescheduled within {self._reservations.ttl_s:.0f} s"
            )
        return False

    async def _post(self, args: BindingArgs, annotations: Mapping[str, str]) -> None:
        try:
            await self._write(args, annotations)
        except KubeError as error:
            await self._after_failure(args, error)

    async def _write(self, args: BindingArgs, annotations: Mapping[str, str]) -> None:
        error: BaseException | None = None
        try:
            added: dict[str, str] = {}
            for plugin in self._framework.pre_binds:
                added |= await plugin.pre_bind(args)
            await self._pods.bind(
                namespace=args.namespace,
                name=args.name,
                uid=args.uid,
                node=args.node,
                annotations={**added, **annotations},
            )
        except BaseException as raised:
            error = raised
            raise
        finally:
            for post in self._framework.post_binds:
                post.post_bind(args, error)

    async def _pod_to_bind(self, args: BindingArgs) -> PodToBind | None:
        """The pod; ``None`` if it is already bound to the requested node. Raises ``BindRefused``."""
        record = self._view.waiting.get(args.uid)
        if record is not None and record.pod == args.key:
            if record.request is None:
                raise BindRefused(record.problem)
            return PodToBind(args.uid, args.key, record.request, record.gang, record.amounts)
        # kube-scheduler's watch may be ahead of ours, and it may repeat a bind that succeeded.
        try:
            pod = await self._pods.get_pod(args.namespace, args.name)
            if self._bound_as_wanted(args, pod):
                return None
            request = request_of(pod)
            gang = None if request is None else gang_of(pod)
        except KubeError as error:
            raise BindRefused(f"pod {args.key} cannot be read: {error}") from error
        except ModelError as error:
            raise BindRefused(error.problem) from error
        return PodToBind(args.uid, args.key, request, gang, amounts_of(pod))

    def _bound_as_wanted(self, args: BindingArgs, pod: Pod) -> bool:
        """Whether ``pod`` is bound to the requested node. The ledger is updated with the pod's state.

        Raises ``BindRefused`` if it is another pod, is bound elsewhere, or has ended.
        """
        if pod.metadata.uid != args.uid:
            self._release(args.uid)
            raise BindRefused(f"pod {args.key} was replaced: its UID is {pod.metadata.uid}, not {args.uid}")
        self._apply_read(pod)
        if pod.spec.node_name == args.node:
            return True
        if pod.spec.node_name:
            raise BindRefused(f"pod {args.key} is already bound to node {pod.spec.node_name}")
        if pod.finished:
            raise BindRefused(f"pod {args.key} has ended")
        return False

    def _apply_read(self, pod: Pod) -> None:
        """Update the ledger from a direct read of a pod that has a node or has ended. Other pods' reservations do not change."""
        uid = pod.metadata.uid
        if pod.finished:
            self._release(uid)
        elif pod.spec.node_name:
            record = record_of(pod)
            if record is not None:
                self._view.count_read_pod(record)
            held = self._ledger.held(uid)
            if self._is_reserved_by_plugins(uid):
                self._prolong(uid, pod.key)
            elif held is None or held.confirmed:
                self._reservations.end(uid)
            elif record is None or held.node != record.node:
                self._release(uid)
            else:
                self._prolong(uid, pod.key)

    async def _after_failure(self, args: BindingArgs, error: KubeError) -> None:
        """Return if the pod is bound after all. Otherwise raise ``BindRefused``, and release what is certainly not used."""
        never_sent = isinstance(error, CredentialError) or (
            isinstance(error, Unreachable) and error.sent is False
        )
        refused = isinstance(error, ApiError) and error.status < 500 and error.status != 408
        if never_sent:
            self._binding_failed(args.uid)
            raise BindRefused(
                f"pod {args.key} was not bound: cannot reach the API server: {error}"
            ) from error
        if not refused and self._has_reservation(args.uid):
            self._prolong(args.uid, args.key)
            self._reservations.doubtful.add(args.uid)
        try:
            pod = await self._pods.get_pod(args.namespace, args.name)
            if self._bound_as_wanted(args, pod):
                return
        except KubeError as read_error:
            if isinstance(read_error, ApiError) and read_error.not_found:
                self._release(args.uid)
                raise BindRefused(f"pod {args.key} is gone") from error
            logger.warning(
                "pod %s may or may not be bound to node %s: %s",
                args.key,
                args.node,
                read_error,
                extra=about(pod=args.key, uid=args.uid, node=args.node),
            )
        else:
            if refused:
                self._binding_failed(args.uid)
        raise BindRefused(f"pod {args.key} was not bound to node {args.node}: {error}") from error

    def _prolong(self, uid: str, pod: str) -> None:
        self._reservations.add(uid, pod, self._clock.monotonic())

    def _has_reservation(self, uid: str) -> bool:
        """Whether the pod holds a share, or a plugin holds a reservation for it."""
        return self._ledger.held(uid) is not None or self._is_reserved_by_plugins(uid)

    def _is_reserved_by_plugins(self, uid: str) -> bool:
        return any(plugin.is_reserved(uid) for plugin in self._framework.reserves)

    def _release(self, uid: str) -> None:
        self._ledger.release(uid)
        for plugin in self._framework.reserves:
            plugin.unreserve(uid)
        self._reservations.end(uid)

    def _binding_failed(self, uid: str) -> None:
        """The last Binding will not be written: release its reservation, unless an earlier one may still be written."""
        held = self._ledger.held(uid)
        confirmed = held is not None and held.confirmed
        if self._has_reservation(uid) and not confirmed and uid not in self._reservations.doubtful:
            self._release(uid)

    # --- unconfirmed reservations ----------------------------------------------------------------

    async def sweep(self) -> None:
        """Settle expired reservations by their pods' state at the API server, until cancelled."""
        while True:
            await self._clock.sleep(_SWEEP_S)
            overdue = self._reservations.due(self._clock.monotonic())
            await asyncio.gather(
                *(self.settle(uid, pod) for uid, pod in overdue if uid not in self._under_way)
            )

    async def settle(self, uid: str, key: str) -> None:
        """Confirm, prolong or release one reservation by the pod's current state. It is prolonged if the pod cannot be read."""
        namespace, _, name = key.partition("/")
        async with self._serialized(uid):
            pod: Pod | None = None
            deadline = self._reservations.deadlines.get(uid)
            try:
                pod = await self._pods.get_pod(namespace, name)
            except KubeError as error:
                if isinstance(error, ApiError) and error.not_found:
                    self._release(uid)
                    self._view.reservation_released()
                else:
                    about_it = about(pod=key, uid=uid)
                    logger.warning(
                        "pod %s: cannot determine whether it was bound: %s", key, error, extra=about_it
                    )
            held = self._ledger.held(uid)
            if not self._has_reservation(uid) or (held is not None and held.confirmed):
                self._reservations.end(uid)
            elif pod is None:
                self._prolong(uid, key)
            elif pod.metadata.uid == uid and (pod.finished or pod.spec.node_name):
                self._apply_read(pod)
            elif self._reservations.deadlines.get(uid) != deadline:
                pass  # prolonged meanwhile by a filter request for its gang
            elif held is None:
                logger.info(
                    "pod %s: its Binding was never observed; its reservation has been released",
                    key,
                    extra=about(pod=key, uid=uid),
                )
                self._release(uid)
                self._view.reservation_released()
            else:
                logger.info(
                    "pod %s: the Binding to node %s was never observed; the share has been released",
                    key,
                    held.node,
                    extra=about(pod=key, uid=uid, node=held.node),
                )
                self._release(uid)
                for reserver in self._framework.reservers:
                    reserver.reservation_expired(uid)
                self._view.reservation_released()
                self.reservation_expired(uid, key, held.node)
