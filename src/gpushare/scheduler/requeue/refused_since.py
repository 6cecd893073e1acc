"""Since when a pod is refused, where its own condition cannot tell.

``PodScheduled`` is False from the moment of its creation where a pod has scheduling gates, and its time stays that one, or none
at all from older API servers, when the gates are gone and the pod is refused. So that moment is remembered here, and noted
on the pod with the next touch for whoever leads after us.
"""

import math
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Final

from gpushare.api import names
from gpushare.api.crd.resource_policy import PolicyPod

_REMEMBERED: Final = 4096


class RefusedSince:
    """Not for several threads. All times are seconds since 1970."""

    def __init__(self) -> None:
        # By UID, of pods whose condition is of a time before they could be refused; 0: they were not yet. The oldest give way.
        self._first: OrderedDict[str, float] = OrderedDict()

    def seen(self, pod: PolicyPod, now: float) -> None:
        """A waiting pod is new or changed."""
        if pod.untimed:
            self._remember(pod.uid, self._first.get(pod.uid, 0.0))
        elif pod.uid in self._first:
            # It was gated, and has been refused since, perhaps by kube-scheduler without a word to us.
            self._note(pod, now)

    def refused(self, pod: PolicyPod, now: float) -> bool:
        """No unit takes the pod. Whether its time has to be counted from now, as neither it nor anybody else tells."""
        return (pod.untimed or pod.uid in self._first) and self._note(pod, now)

    def waited_s(self, pod: PolicyPod, now: float) -> float:
        """For how long the pod has been refused."""
        since = self._first.get(pod.uid) or _noted(pod)
        if not since and pod.uid not in self._first:
            since = pod.scheduled
        return max(now - since, 0.0) if since else 0.0

    def stamp(self, uid: str) -> dict[str, str]:
        """The annotation that a pod is to have for the next leader's sake, with its text; empty for most."""
        first = self._first.get(uid)
        if not first:
            return {}
        # A whole second, and not one too early.
        at = datetime.fromtimestamp(math.ceil(first), UTC)
        return {names.ANN_REFUSED_SINCE: at.isoformat().replace("+00:00", "Z")}

    def forget(self, uid: str) -> None:
        """The pod waits no more."""
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
    """What is noted on the pod itself; 0 for nothing, and for what came with a copied manifest."""
    return pod.refused_since if pod.refused_since >= pod.created else 0.0
