"""What autoscaling is to the rest of the extender, and the parts that are asked for: where none is, nothing is imported and nothing done."""

from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol, TypeVar

from gpushare.kube.client.session import Session
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare.kube.watch.informer import Handler
from gpushare.scheduler.cache.cache import ClusterView
from gpushare.scheduler.observability.metrics import Metrics
from gpushare.scheduler.plugins.autoscaling.settings import Autoscaling

T = TypeVar("T")
DecodeNodeFn = Callable[[bytes], tuple[str, T]]


class Scaling(Protocol):
    """What is told to it, and what runs."""

    def refused(self, uid: str, nodes: Collection[str]) -> None:
        """No node took the pod of that UID; ``nodes`` would if others were not there."""

    def noticing(self, decode: DecodeNodeFn[T]) -> DecodeNodeFn[T]:
        """``decode`` for the JSON of every node, which may be looked at on its way."""

    def following(self, handler: Handler[T]) -> Handler[T]:
        """``handler`` of nodes, of which those that go may be noticed too."""

    def running(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """What is to run side by side, with names."""


class Unscaled:
    """Nothing of it was asked for."""

    def refused(self, uid: str, nodes: Collection[str]) -> None:
        """Nobody wants to know."""

    def noticing(self, decode: DecodeNodeFn[T]) -> DecodeNodeFn[T]:
        """As it is."""
        return decode

    def following(self, handler: Handler[T]) -> Handler[T]:
        """As it is."""
        return handler

    def running(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """Nothing."""
        return []


def scaling_of(
    asked: Autoscaling | None,
    session: Session,
    view: ClusterView,
    events: Recorder,
    clock: Clock,
    lease: tuple[str, str] | None,
    metrics: Metrics,
    *,
    read: Callable[[], bool],
) -> Scaling:
    """The parts that were ``asked`` for. ``lease`` as ``Leading`` takes it; ``read`` tells whether pods and nodes were read."""
    if asked is None:
        return Unscaled()
    from gpushare.scheduler.plugins.autoscaling.plugin import AutoscalingParts

    parts = AutoscalingParts(asked, session, view, events, clock, lease, read=read)
    metrics.watch(
        "gpushare_scheduler_stand_ins",
        "Pods that ask cluster-autoscaler for a node in the place of one that no single GPU holds.",
        lambda: parts.stand_ins,
    )
    return parts
