"""Gangs: pods that run together or not at all, by the labels of ``pod-group.scheduling.sigs.k8s.io``."""

from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.errors import InvalidRequest
from gpushare.api.objects import Pod

#: Maximum size of a gang.
MOST_PODS: Final = 100_000


class Gang(msgspec.Struct, frozen=True, gc=False):
    """The gang of a pod: ``least`` is the number of pods that must run together.

    ``key`` is ``namespace/name``, or ``namespace/name/value`` if the annotation ``gpushare.dev/gang-by`` names a label with that value.

    ``owner`` is the UID of the pod's controller, or empty.
    """

    key: str
    least: int
    owner: str = ""

    @property
    def namespace(self) -> str:
        """The namespace of its pods."""
        return self.key.partition("/")[0]


def gang_of(pod: Pod) -> Gang | None:
    """The pod's gang, or ``None``, also for a pod in a PodGroup, which kube-scheduler places together itself.

    Raises ``InvalidRequest`` if the label with the number is missing or invalid.
    """
    labels = pod.metadata.labels
    if pod.pod_group or not labels or not (name := labels.get(names.LABEL_GANG_NAME)):
        return None
    least = labels.get(names.LABEL_GANG_LEAST, "")
    if not (least.isascii() and least.isdecimal() and 0 < int(least) <= MOST_PODS):
        raise InvalidRequest(
            f"pod {pod.key}",
            f"label {names.LABEL_GANG_NAME}={name} needs {names.LABEL_GANG_LEAST} as well, the number of pods "
            f"that must run together, from 1 to {MOST_PODS}: it is '{least[:63]}'; set both on every pod",
        )
    owner = next((owner.uid for owner in pod.metadata.owner_references or () if owner.controller), "")
    part = labels.get((pod.metadata.annotations or {}).get(names.ANN_GANG_BY, ""), "")
    key = f"{pod.metadata.namespace}/{name}/{part}" if part else f"{pod.metadata.namespace}/{name}"
    return Gang(key, int(least), owner)
