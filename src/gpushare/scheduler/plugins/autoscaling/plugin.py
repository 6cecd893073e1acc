"""The autoscaling plugin: startup taints and placeholder pods. Imported only if one of them is enabled."""

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.crd.placeholder_pod import HOSTNAME, decode_placeholder
from gpushare.kube.watch.informer import Informer
from gpushare.scheduler.framework.interface import Handle, Task
from gpushare.scheduler.framework.services import PodQuotas
from gpushare.scheduler.leader.lease import Leading
from gpushare.scheduler.plugins.autoscaling.placeholder_pods import Marks, PlaceholderPods
from gpushare.scheduler.plugins.autoscaling.settings import Autoscaling
from gpushare.scheduler.plugins.autoscaling.startup_taints import StartupTaints


class _Meta(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Labelled(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


_LABELLED: Final = msgspec.json.Decoder(_Labelled)


class Autoscaler:
    """Lets cluster-autoscaler know what it cannot see itself: when a node has its GPUs, and which pods need a new node."""

    def __init__(self, handle: Handle, settings: Autoscaling, quotas: PodQuotas) -> None:
        client, clock = handle.client, handle.clock
        leading = Leading(client, handle.lease)
        self._marks: dict[str, Marks] = {}
        self._taints = StartupTaints(client, clock, leading) if settings.startup_taint else None
        self._placeholders: PlaceholderPods | None = None
        self._kind_label = ""
        if settings.placeholders is not None:
            limits = settings.placeholders
            self._kind_label = limits.kind_label
            self._placeholders = PlaceholderPods(
                handle.cache,
                client,
                handle.recorder,
                clock,
                limits,
                leading,
                quotas,
                marks=self._marks,
                ready=lambda: handle.synced() and self._watch.synced.is_set(),
            )
            # All pods are watched already; this watch covers only the labelled pods of one namespace.
            self._watch = Informer(
                handle.session,
                f"/api/v1/namespaces/{limits.namespace}/pods",
                decode_placeholder,
                self._placeholders,
                params={"labelSelector": names.LABEL_STANDS_FOR},
            )
        handle.gauge(
            "gpushare_scheduler_placeholder_pods",
            "Pods that ask cluster-autoscaler for a node in the place of one that no single GPU holds.",
            lambda: self.placeholders,
        )

    def post_filter(self, uid: str, nodes: Collection[str]) -> None:
        """No node took the pod; see ``PlaceholderPods.refused``."""
        if self._placeholders is not None:
            self._placeholders.refused(uid, nodes)

    @property
    def placeholders(self) -> int:
        """Number of placeholder pods."""
        return 0 if self._placeholders is None else self._placeholders.count

    def node_read(self, name: str, raw: bytes) -> None:
        """A node was listed, added or changed."""
        if self._taints is not None:
            self._taints.node_seen(name, raw)
        if self._placeholders is not None:
            labels = _LABELLED.decode(raw).metadata.labels or {}
            self._marks[name] = Marks(labels.get(HOSTNAME, name), labels.get(self._kind_label, ""))

    def node_removed(self, name: str) -> None:
        """A node is gone."""
        self._marks.pop(name, None)
        if self._taints is not None:
            self._taints.forget(name)

    def tasks(self) -> Iterable[Task]:
        """Background tasks that run for the lifetime of the process."""
        if self._taints is not None:
            yield "startup taints", self._taints.run()
        if self._placeholders is not None:
            yield "placeholder pods", self._placeholders.run()
            yield "their watch", self._watch.run()
