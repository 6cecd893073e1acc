"""Since when a pod is refused, for pods whose condition does not show it.

The condition ``PodScheduled`` of a pod with scheduling gates is False since its creation. After the gates are removed and the pod is
refused, the condition keeps that time, or has none with older API servers. So the time of the first refusal is stored here, and
written to an annotation of the pod with the next touch, for the next leader.
"""

import math
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Final

from gpushare.api import names
from gpushare.api.crd.resource_policy import PolicyPod

_REMEMBERED: Final = 4096


class RefusedSince:
    """First refusals by pod. Not thread-safe. All times are seconds since 1970."""

    def __init__(self) -> None:
        # By UID, for pods whose condition dates from before they could be refused; 0: not refused yet. The oldest entries are dropped.
        self._first: OrderedDict[str, float] = OrderedDict()

    def seen(self, pod: PolicyPod, now: float) -> None:
        """A pending pod was added or changed."""
        if pod.untimed:
            self._remember(pod.uid, self._first.get(pod.uid, 0.0))
        elif pod.uid in self._first:
            # It was gated and was refused since, perhaps by kube-scheduler without a request to us.
            self._note(pod, now)

    def refused(self, pod: PolicyPod, now: float) -> bool:
        """No unit takes the pod. Returns whether its time counts from now, as no earlier refusal is known."""
        return (pod.untimed or pod.uid in self._first) and self._note(pod, now)

    def waited_s(self, pod: PolicyPod, now: float) -> float:
        """Seconds since the pod was first refused."""
        since = self._first.get(pod.uid) or _noted(pod)
        if not since and pod.uid not in self._first:
            since = pod.scheduled
        return max(now - since, 0.0) if since else 0.0

    def stamp(self, uid: str) -> dict[str, str]:
        """The annotation that passes the time to the next leader; empty for most pods."""
        first = self._first.get(uid)
        if not first:
            return {}
        # Rounded up to a whole second, as it must not be too early.
        at = datetime.fromtimestamp(math.ceil(first), UTC)
        return {names.ANN_REFUSED_SINCE: at.isoformat().replace("+00:00", "Z")}

    def forget(self, uid: str) -> None:
        """The pod is no longer pending."""
        self._first.pop(uid, None)

    def _note(self, pod: PolicyPod, now: float) -> bool:
        if self._first.get(pod.uid) or _noted(pod):
            return False
        self._remember(pod.uid, now)
        return True

    def _remember(self, uid: str, first: float) -> None:
        self._first[uid] = first
        if len(self._first) > _REMEMBERED:
            self._first.popitem(last=False)


def _noted(pod: PolicyPod) -> float:
    """The time in the pod's annotation; 0 if there is none, or if it was copied with a manifest."""
    return pod.refused_since if pod.refused_since >= pod.created else 0.0
