"""Suggestions for pending pods of a gang, whose pods run together or not at all."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gpushare.api import names
from gpushare.api.request.pod_group import Gang
from gpushare.reasons.phrases import are, pods
from gpushare.reasons.suggestions import quotas as quota_suggestions
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.services import PodQuotas, Standing
from gpushare.scheduler.plugins.explain.gang_room import Room, Trial

if TYPE_CHECKING:
    from gpushare.api.request.request import Request

BY_ITSELF: Final = "nothing to do: it is retried automatically"
_DELETED: Final = "nothing to do: the pod is being deleted, and its gang continues without it"
#: Most pods for which room is looked for while one list is made, over all gangs. For a gang of 300 pods it takes as long as a decision.
_MOST_PODS: Final = 1024
#: Separates a pod's UID from the number of a missing pod that is assumed to be like it.
_COPY: Final = "+"

NodeNamesFn = Callable[[], list[str]]
TextFn = Callable[[], str]


class GangSuggestions:
    """Suggestions for gangs at one moment. The result for a pod is cached for pods of its gang with the same request."""

    def __init__(self, view: ClusterCache, quotas: PodQuotas) -> None:
        self._view = view
        self._quotas = quotas
        self._pods_left = _MOST_PODS
        self._rooms: dict[tuple[str, Request, bool, int], Room | None] = {}

    def of(
        self,
        record: PodRecord,
        gang: Gang,
        standing: Standing,
        nodes: NodeNamesFn,
        own_suggestion: TextFn,
        reserved_text: TextFn,
    ) -> str:
        """Suggestion for a pod whose gang needs more pods to run.

        ``nodes``: the nodes that the pod may have now. ``own_suggestion``: what would make the pod fit by itself.
        ``reserved_text``: names the holder of reserved room that the pod could use otherwise.
        """
        if record.leaving:
            return _DELETED
        missing = max(gang.least - standing.there, 0)
        if not missing and standing.planned:
            return f"node {standing.planned} has enough capacity now; kube-scheduler retries automatically"
        if not missing and (standing.is_planned or standing.resting):
            return BY_ITSELF
        completed = _with_missing_pods(standing, missing)
        room_text = self._room_suggestion(
            record, gang, completed, nodes, own_suggestion, reserved_text, missing=missing
        )
        if not missing:
            return room_text or (
                f"there is now enough capacity for {pods(standing.need)} of gang {gang.key} at once; kube-scheduler retries automatically"
            )
        missing_text = f"{missing} more {'pod' if missing == 1 else 'pods'} of gang {gang.key}: {standing.there} of {gang.least} {are(standing.there)} there"
        return f"{missing_text}; and then {room_text}" if room_text else missing_text

    def _room_suggestion(
        self,
        record: PodRecord,
        gang: Gang,
        standing: Standing,
        nodes: NodeNamesFn,
        own_suggestion: TextFn,
        reserved_text: TextFn,
        *,
        missing: int,
    ) -> str:
        """What room the gang lacks; empty if it lacks none."""
        if len(standing.candidates) < standing.need:
            return _other_pods_suggestion(gang, standing)
        pods_text = f"{pods(standing.need)} of gang {gang.key} at once"
        room = self._available_room(gang, standing, nodes, missing=missing)
        if room is None:
            return f"capacity for {pods_text}"
        room_by_quotas, quota_text = room, ""
        if self._quotas.in_use:
            # Quotas do not know pods that do not exist yet. For these the sum of the requests is checked instead.
            room_by_quotas = (
                room if missing else self._available_room(gang, standing, nodes, by_quotas=True) or room
            )
            quota_text = (
                self._quota_suggestion(record, gang, standing, missing, room)
                if missing or not room_by_quotas.enough
                else ""
            )
        if room_by_quotas.enough and not quota_text:
            return ""
        fewer_text = "" if missing else _fewer_pods_suggestion(standing, room_by_quotas)
        if quota_text:
            return f"{quota_text}{fewer_text}" + (
                "" if room.enough else f"; and capacity for {pods_text}, which is not available now"
            )
        if not room_by_quotas.most and (pod_suggestion := own_suggestion()):
            return f"capacity for {pods_text}; there is none even for this pod alone: {pod_suggestion}"
        return f"capacity for {pods_text}{fewer_text}{reserved_text()}"

    def _available_room(
        self, gang: Gang, standing: Standing, nodes: NodeNamesFn, *, missing: int = 0, by_quotas: bool = False
    ) -> Room | None:
        """Room for the gang, cached; ``None`` once ``_MOST_PODS`` is used up."""
        _, _, request = standing.candidates[0]
        key = (gang.key, request, by_quotas, missing)
        if key not in self._rooms:
            self._pods_left -= standing.need
            self._rooms[key] = (
                None
                if self._pods_left < 0
                else Trial(self._view, self._quotas, standing, nodes(), by_quotas=by_quotas).room()
            )
        return self._rooms[key]

    def _quota_suggestion(
        self, record: PodRecord, gang: Gang, standing: Standing, missing: int, room: Room
    ) -> str:
        """What would help with quotas, by what the needed pods request together (or get, if there is room); empty if quotas admit them."""
        quotas = self._quotas
        requested = [(uid.partition(_COPY)[0], units) for uid, units in room.units_by_pod.items()]
        if not room.enough:
            others = (uid for uid, *_ in standing.candidates[1:] if uid in self._view.waiting)
            uids = [*[record.uid] * (1 + missing), *quotas.least_asking(others)]
            requested = [(uid, 0) for uid in uids[: standing.need]]
        over, alone = quotas.over_together(requested, standing.members)
        return quota_suggestions.would_help_gang(over, gang, alone=alone) if over else ""


def _with_missing_pods(standing: Standing, missing: int) -> Standing:
    """``standing`` as if the missing pods existed and had the same request as this pod."""
    uid, pod, request = standing.candidates[0]
    first, *others = standing.candidates
    copies = [(f"{uid}{_COPY}{number}", pod, request) for number in range(missing)]
    return standing._replace(candidates=[first, *copies, *others])


def _other_pods_suggestion(gang: Gang, standing: Standing) -> str:
    invalid = standing.wrong
    if invalid is not None:
        return f"correct the request of pod {invalid.pod}, which blocks gang {gang.key}: {invalid.problem}"
    return f"the pods of gang {gang.key} without a GPU must be bound first: `kubectl describe pod` shows why they are pending"


def _fewer_pods_suggestion(standing: Standing, room: Room) -> str:
    """Suggests the lower minimum with which the gang would run now; empty if not even the pod itself has room."""
    if not room.most:
        return ""
    return f', or {names.LABEL_GANG_LEAST}: "{standing.running + room.most}" on each of its pods: that many fit now'
