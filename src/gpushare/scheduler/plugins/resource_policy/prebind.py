"""What a ResourcePolicy does at a bind: a last check of the unit's caps, and the unit's labels and annotations on the pod.

Labels are written before the Binding, as API servers before 1.33 ignore labels in it. Annotations and the deletion cost are
part of the Binding. A pod with the labels and without a node counts in no unit, so they do no harm if no Binding follows. The next
attempt removes labels that another unit had added.
"""

import logging
from collections.abc import Mapping
from typing import Final, Protocol

from gpushare.api import names
from gpushare.api.crd.resource_policy import PolicyPod, Unit, policy_pod_of
from gpushare.api.objects import Pod
from gpushare.kube.client.errors import ApiError, CredentialError, KubeError, Unreachable
from gpushare.kube.clock import Clock
from gpushare.process.log_setup import about
from gpushare.scheduler.plugins.resource_policy.model.policy_index import cost_annotations, cost_of
from gpushare.scheduler.plugins.resource_policy.plugin import Policies, Promise
from gpushare.scheduler.server.protocol import BindingArgs

logger = logging.getLogger(__name__)

_SWEEP_S: Final = 1.0


class Pods(Protocol):
    """API server requests (``gpushare.kube.client.client.Client``); all methods raise ``KubeError``."""

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """Read the pod."""

    async def annotate_pod(
        self,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        uid: str,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        """Set annotations and labels in one write; ``None`` removes one."""


class NotInUnit(ApiError):
    """The pod may not have the node now. The binder handles it like a Binding that the API server has refused."""

    def __init__(self, policy: str, problem: str) -> None:
        super().__init__(409, "", problem, f"ResourcePolicy {policy}")


class PolicyBinding:
    """Prepares Bindings, and keeps the promises of pods whose Binding was not observed yet."""

    def __init__(self, pods: Pods, policies: Policies, clock: Clock) -> None:
        self._pods = pods
        self._policies = policies
        self._clock = clock
        self._under_way: dict[str, bool] = {}
        """UIDs of pods that are being bound, and whether a place is promised for the Binding."""

    async def pre_bind(self, args: BindingArgs) -> Mapping[str, str]:
        """Promise a place in a unit, and return its annotations. Raises ``KubeError`` and ``NotInUnit``. One call at a time per pod."""
        self._under_way[args.uid] = False
        namespace, uid, node = args.namespace, args.uid, args.node
        census = self._policies.census
        if namespace not in census.namespaces:
            return {}
        pod = await self._known(namespace, args.name, uid)
        book = census.book_for(namespace, pod.labels)
        if book is None:
            return {}
        if namespace in self._policies.unread:
            raise NotInUnit(book.policy.key, "its pods have not been loaded yet")
        booking = book.booked.get(uid)
        if booking is not None and booking.node not in ("", node):
            raise NotInUnit(book.policy.key, f"the pod may be bound to node {booking.node} at any moment")
        number = book.unit_for(pod, node)
        if number is None:
            self._policies.end_promise(uid)
            raise NotInUnit(book.policy.key, f"no unit has capacity for the pod on node {node}")
        # No await between the check and the promise, so no other pod can take the place.
        self._policies.promise(book, pod, number, node)
        unit = book.policy.units[number]
        costs = cost_annotations(pod, cost_of(book.policy, number))
        try:
            await self._label(pod, unit)
        except KubeError:
            self._policies.end_promise(uid)
            raise
        self._under_way[uid] = True
        return {**unit.pod_annotations, **{key: value for key, value in costs.items() if value}}

    def post_bind(self, args: BindingArgs, error: BaseException | None) -> None:
        """The Binding was written, or ``error`` says why not. The promise is removed if it was certainly not written."""
        promised = self._under_way.pop(args.uid, False)
        if promised and isinstance(error, KubeError) and surely_not_done(error):
            self._policies.end_promise(args.uid)

    async def _known(self, namespace: str, name: str, uid: str) -> PolicyPod:
        promise = self._policies.promises.get(uid)
        if promise is not None:
            return promise.pod
        known = self._policies.census.pod(uid)
        return policy_pod_of(await self._pods.get_pod(namespace, name)) if known is None else known

    async def _label(self, pod: PolicyPod, unit: Unit) -> None:
        labels, added = label_changes(pod, unit)
        if labels:
            stamp = {names.ANN_UNIT_LABELS: added}
            await self._pods.annotate_pod(pod.namespace, pod.name, stamp, uid=pod.uid, labels=labels)

    # --- unconfirmed promises ---------------------------------------------------------------------

    async def run(self) -> None:
        """Settle expired promises and retry pods that are due, until cancelled."""
        while True:
            await self._clock.sleep(_SWEEP_S)
            self._policies.hurry()
            for promise in self._policies.overdue():
                await self._settle(promise)

    async def _settle(self, promise: Promise) -> None:
        pod = promise.pod
        if pod.uid in self._under_way:
            self._policies.prolong(pod.uid)  # the outcome of the bind is newer than a read now
            return
        try:
            current = await self._pods.get_pod(pod.namespace, pod.name)
        except KubeError as error:
            if isinstance(error, ApiError) and error.not_found:
                self._policies.end_promise(pod.uid)
                return
            about_it = about(pod=pod.key, uid=pod.uid)
            logger.warning(
                "pod %s: cannot determine whether it was bound: %s", pod.key, error, extra=about_it
            )
            self._policies.prolong(pod.uid)
            return
        if self._policies.promises.get(pod.uid) is not promise:
            return  # another bind has started meanwhile, which the read does not show
        if current.metadata.uid == pod.uid and current.spec.node_name and not current.finished:
            self._policies.prolong(pod.uid)  # the informer will show it
        else:
            self._policies.end_promise(pod.uid)


def label_changes(pod: PolicyPod, unit: Unit) -> tuple[dict[str, str | None], str | None]:
    """The labels to write on a pod that is placed in ``unit``, and the keys that a unit has added, joined by commas."""
    added_before = set(filter(None, pod.annotations.get(names.ANN_UNIT_LABELS, "").split(",")))
    changes: dict[str, str | None] = {
        key: value for key, value in unit.pod_labels.items() if pod.labels.get(key) != value
    }
    changes |= dict.fromkeys(added_before - unit.pod_labels.keys())
    added = sorted(key for key in unit.pod_labels if key in added_before or key not in pod.labels)
    return changes, ",".join(added) or None


def surely_not_done(error: KubeError) -> bool:
    """Whether the failed request has certainly changed nothing, and will not."""
    if isinstance(error, ApiError):
        return error.status < 500 and error.status != 408
    return isinstance(error, CredentialError) or (isinstance(error, Unreachable) and error.sent is False)
