"""The parts of the extender for autoscaling, put together; imported only where one of them is asked for."""

from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final, Generic, TypeVar

import msgspec

from gpushare.api import names
from gpushare.api.crd.placeholder_pod import HOSTNAME, decode_stand_in
from gpushare.kube.client.client import Client
from gpushare.kube.client.session import Session
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare.kube.watch.informer import Handler, Informer
from gpushare.scheduler.cache.cache import ClusterView
from gpushare.scheduler.leader.lease import Leading
from gpushare.scheduler.plugins.autoscaling.placeholder_pods import Marks, StandIns
from gpushare.scheduler.plugins.autoscaling.settings import Autoscaling
from gpushare.scheduler.plugins.autoscaling.startup_taints import StartupTaints

T = TypeVar("T")


class _Meta(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Labelled(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


_LABELLED: Final = msgspec.json.Decoder(_Labelled)


class _Leaving(Generic[T]):
    """A handler of nodes whose removals are told besides."""

    def __init__(self, handler: Handler[T], gone: Callable[[str, T], None]) -> None:
        self.synced = handler.synced
        self.upsert = handler.upsert
        self._handler = handler
        self._gone = gone

    def remove(self, key: str, last: T) -> None:
        """A node is gone."""
        self._gone(key, last)
        self._handler.remove(key, last)


class AutoscalingParts:
    """``lease`` as ``Leading`` takes it; ``read`` tells whether pods and nodes were read."""

    def __init__(
        self,
        asked: Autoscaling,
        session: Session,
        view: ClusterView,
        events: Recorder,
        clock: Clock,
        lease: tuple[str, str] | None,
        *,
        read: Callable[[], bool],
    ) -> None:
        client = Client(session)
        leading = Leading(client, lease)
        self._marks: dict[str, Marks] = {}
        self._newest: dict[str, object] = {}
        self._taints = StartupTaints(client, clock, leading) if asked.startup_taint else None
        self._stand_ins: StandIns | None = None
        self._kind_label = ""
        if asked.stand_ins is not None:
            limits = asked.stand_ins
            self._kind_label = limits.kind_label
            self._stand_ins = StandIns(
                view,
                client,
                events,
                clock,
                limits,
                leading,
                marks=self._marks,
                ready=lambda: read() and self._watch.synced.is_set(),
            )
            # All namespaces are watched for pods already; here only those of one, with a label.
            self._watch = Informer(
                session,
                f"/api/v1/namespaces/{limits.namespace}/pods",
                decode_stand_in,
                self._stand_ins,
                params={"labelSelector": names.LABEL_STANDS_FOR},
            )

    def refused(self, uid: str, nodes: Collection[str]) -> None:
        """No node took the pod, as ``StandIns.refused`` has it."""
        if self._stand_ins is not None:
            self._stand_ins.refused(uid, nodes)

    @property
    def stand_ins(self) -> int:
        """How many there are."""
        return 0 if self._stand_ins is None else self._stand_ins.count

    def noticing(self, decode: Callable[[bytes], tuple[str, T]]) -> Callable[[bytes], tuple[str, T]]:
        """``decode`` for the JSON of every node, which is looked at on its way."""

        def noticed(raw: bytes) -> tuple[str, T]:
            name, item = decode(raw)
            self._newest[name] = item
            if self._taints is not None:
                self._taints.seen(name, raw)
            if self._stand_ins is not None:
                labels = _LABELLED.decode(raw).metadata.labels or {}
                self._marks[name] = Marks(labels.get(HOSTNAME, name), labels.get(self._kind_label, ""))
            return name, item

        return noticed

    def following(self, handler: Handler[T]) -> Handler[T]:
        """``handler`` of nodes, of which those that go are noticed too."""

        def gone(name: str, last: T) -> None:
            # Of a list all nodes are read before it is told who is gone: another of that name may have passed by already.
            if self._newest.get(name) is not last:
                return
            del self._newest[name]
            self._marks.pop(name, None)
            if self._taints is not None:
                self._taints.gone(name)

        return _Leaving(handler, gone)

    def running(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """What is to run side by side, with names."""
        found: list[tuple[str, Coroutine[Any, Any, None]]] = []
        if self._taints is not None:
            found.append(("startup taints", self._taints.run()))
        if self._stand_ins is not None:
            found += [("stand-ins", self._stand_ins.run()), ("their watch", self._watch.run())]
        return found
