"""What a ResourcePolicy adds to a Binding: a last look at the unit's caps, and what the unit puts on the pod.

Labels are written before the Binding, as servers before 1.33 take none from it; annotations and the deletion cost go with
it. A pod that has the labels and no node counts nowhere, so it does no harm if nothing follows. The next try takes back
those that another unit had put there.
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
    """What is asked of the API server (``gpushare.kube.client.client.Client``); all methods raise ``KubeError``."""

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """The pod as it is."""

    async def annotate_pod(
        self,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        uid: str,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        """Set annotations and labels in one write, or with ``None`` remove them."""


class NotInUnit(ApiError):
    """The pod may not have the node now. To the binder it is a Binding that the API server has refused: nothing came of it."""

    def __init__(self, policy: str, problem: str) -> None:
        super().__init__(409, "", problem, f"ResourcePolicy {policy}")


class PolicyBinding:
    """Completes Bindings before they are written, and keeps the places of pods whose Binding was not observed yet."""

    def __init__(self, pods: Pods, policies: Policies, clock: Clock) -> None:
        self._pods = pods
        self._policies = policies
        self._clock = clock
        self._under_way: dict[str, bool] = {}
        """UIDs of pods that are being bound, and whether their place is promised for that."""

    async def pre_bind(self, args: BindingArgs) -> Mapping[str, str]:
        """What the pod's unit has written on it. Raises ``KubeError``, ``NotInUnit`` among them. One at a time for each pod."""
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
            raise NotInUnit(book.policy.key, "its pods are not read yet")
        before = book.booked.get(uid)
        if before is not None and before.node not in ("", node):
            raise NotInUnit(book.policy.key, f"the pod may be bound to node {before.node} any moment")
        number = book.unit_for(pod, node)
        if number is None:
            self._policies.end_promise(uid)
            raise NotInUnit(book.policy.key, f"no unit has room for the pod on node {node}")
        # From here to the next await nobody else is asked: the place is the pod's.
        self._policies.promise_on(book, pod, number, node)
        unit = book.policy.units[number]
        costs = cost_annotations(pod, cost_of(book.policy, number))
        try:
            await self._label(pod, unit)
        except KubeError:
            self._policies.end_promise(uid)
            raise
        self._under_way[uid] = True
        return {**unit.pod_annotations, **{key: text for key, text in costs.items() if text}}

    def post_bind(self, args: BindingArgs, error: BaseException | None) -> None:
        """The Binding was written, or ``error`` says why not: then the place is free again, if that is certain."""
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
        labels, put = label_changes(pod, unit)
        if labels:
            stamp = {names.ANN_UNIT_LABELS: put}
            await self._pods.annotate_pod(pod.namespace, pod.name, stamp, uid=pod.uid, labels=labels)

    # --- promises that nobody has confirmed -------------------------------------------------------

    async def run(self) -> None:
        """End overdue promises, and have pods tried again whose time has come, for ever."""
        while True:
            await self._clock.sleep(_SWEEP_S)
            self._policies.hurry()
            for promise in self._policies.overdue():
                await self._settle(promise)

    async def _settle(self, promise: Promise) -> None:
        pod = promise.pod
        if pod.uid in self._under_way:
            self._policies.prolong(pod.uid)  # what comes of that says more than a look now
            return
        try:
            found = await self._pods.get_pod(pod.namespace, pod.name)
        except KubeError as error:
            if isinstance(error, ApiError) and error.not_found:
                self._policies.end_promise(pod.uid)
                return
            about_it = about(pod=pod.key, uid=pod.uid)
            logger.warning("pod %s: whether it was bound cannot be read: %s", pod.key, error, extra=about_it)
            self._policies.prolong(pod.uid)
            return
        if self._policies.promises.get(pod.uid) is not promise:
            return  # it has come to be bound once more meanwhile, of which the look knows nothing
        if found.metadata.uid == pod.uid and found.spec.node_name and not found.finished:
            self._policies.prolong(pod.uid)  # the informer will tell
        else:
            self._policies.end_promise(pod.uid)


def label_changes(pod: PolicyPod, unit: Unit) -> tuple[dict[str, str | None], str | None]:
    """The labels to write on a pod for it to be in ``unit``, and those of them that were not its own, with commas."""
    before = set(filter(None, pod.annotations.get(names.ANN_UNIT_LABELS, "").split(",")))
    changes: dict[str, str | None] = {
        key: text for key, text in unit.pod_labels.items() if pod.labels.get(key) != text
    }
    changes |= dict.fromkeys(before - unit.pod_labels.keys())
    put = sorted(key for key in unit.pod_labels if key in before or key not in pod.labels)
    return changes, ",".join(put) or None


def surely_not_done(error: KubeError) -> bool:
    """Whether the request that failed so has changed nothing, and will not."""
    if isinstance(error, ApiError):
        return error.status < 500 and error.status != 408
    return isinstance(error, CredentialError) or (isinstance(error, Unreachable) and error.sent is False)
