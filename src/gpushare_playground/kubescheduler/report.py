"""What the scheduler writes about a pod: its condition and its events, with kube-scheduler's messages."""

import logging
from typing import Final, Literal

from gpushare.api.objects import ObjectReference
from gpushare.kube.client.errors import KubeError
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare_playground.objects import (
    PODS,
    Json,
    Objects,
    condition_of,
    key_of,
    name_of,
    namespace_of,
    time_text,
    uid_of,
)

UNSCHEDULABLE: Final = "Unschedulable"
SCHEDULER_ERROR: Final = "SchedulerError"
_NOTE_LIMIT: Final = 1024
_log = logging.getLogger(__name__)


class Reporter:
    """Writes for one profile."""

    def __init__(self, objects: Objects, recorder: Recorder, clock: Clock) -> None:
        self._objects = objects
        self._recorder = recorder
        self._clock = clock

    def scheduled(self, pod: Json, node: str) -> None:
        """The pod is bound to ``node``."""
        note = f"Successfully assigned {key_of(pod)} to {node}"
        self._record(pod, "Normal", "Scheduled", "Binding", note)

    def ignores(self, pod: Json, fields: list[str]) -> None:
        """The pod uses fields that are not implemented here."""
        note = f"the playground's scheduler does not look at {', '.join(fields)}"
        self._record(pod, "Warning", "IgnoredByPlayground", "Scheduling", note)

    async def failed(self, pod: Json, reason: str, message: str) -> None:
        """The pod was not scheduled: ``reason`` is ``Unschedulable`` or ``SchedulerError``."""
        self._record(pod, "Warning", "FailedScheduling", "Scheduling", _cut(message))
        old = condition_of(pod, "PodScheduled") or {}
        new: Json = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        if generation := pod["metadata"].get("generation"):
            new["observedGeneration"] = generation
        if all(old.get(name) == value for name, value in new.items()):
            return
        same_status = old.get("status") == new["status"] and old.get("lastTransitionTime")
        new["lastTransitionTime"] = same_status or time_text(self._clock.time_ns())
        new["lastProbeTime"] = None
        try:
            await self._objects.merge_lists(PODS, pod, {"status": {"conditions": [new]}}, "status")
        except KubeError as error:
            # The next attempt writes it; the pod itself is not affected.
            _log.warning("pod %s: its condition could not be written: %s", key_of(pod), error)

    def _record(
        self, pod: Json, kind: Literal["Normal", "Warning"], reason: str, action: str, note: str
    ) -> None:
        regarding = ObjectReference("Pod", name_of(pod), namespace_of(pod), uid_of(pod))
        self._recorder.record(regarding, kind=kind, reason=reason, action=action, note=note)


def _cut(message: str) -> str:
    return message if len(message) <= _NOTE_LIMIT else message[: _NOTE_LIMIT - 4] + " ..."
