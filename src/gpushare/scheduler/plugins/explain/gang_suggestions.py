"""What would let a pod in that runs together with others of its gang, or not at all."""

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

BY_ITSELF: Final = "nothing: it is tried again by itself"
_LEAVES: Final = "nothing: it is being deleted, and its gang goes on without it"
#: Pods for which room is looked for, of all gangs together, while one list is made: that of a gang of 300 takes as long as a decision.
_MOST_PODS: Final = 1024
#: Between a pod's UID and the number of one like it that is missing.
_COPY: Final = "+"

NodeNamesFn = Callable[[], list[str]]
TextFn = Callable[[], str]


class GangSuggestions:
    """Words for the gangs of one moment: what was found for a pod holds for others of its gang that ask the same."""

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
        alone: TextFn,
        kept: TextFn,
    ) -> str:
        """For a pod whose gang needs others beside it. ``nodes``: those that it may have now; ``alone``: what would let it in by itself.

        ``kept``: whose room it would have, were it not kept for that one.
        """
        if record.leaving:
            return _LEAVES
        lack = gang.least - standing.there
        if lack > 0:
            told = f"{lack} more {'pod' if lack == 1 else 'pods'} of gang {gang.key}: {standing.there} of {gang.least} {are(standing.there)} there"
            then = self._for_room(record, gang, _completed(standing, lack), nodes, alone, kept, lack=lack)
            return f"{told}; and then {then}" if then else told
        if standing.planned:
            return f"there is room by now, on node {standing.planned}: kube-scheduler asks again by itself"
        if standing.is_planned or standing.resting:
            return BY_ITSELF
        return self._for_room(record, gang, standing, nodes, alone, kept) or (
            f"there is room by now, for {pods(standing.need)} of gang {gang.key} at once: kube-scheduler asks again by itself"
        )

    def _for_room(
        self,
        record: PodRecord,
        gang: Gang,
        standing: Standing,
        nodes: NodeNamesFn,
        alone: TextFn,
        kept: TextFn,
        *,
        lack: int = 0,
    ) -> str:
        """Empty where nothing more is needed."""
        if len(standing.candidates) < standing.need:
            return _for_others(gang, standing)
        together = f"{pods(standing.need)} of gang {gang.key} at once"
        room = self._room(gang, standing, nodes, lack=lack)
        if room is None:
            return f"room for {together}"
        at_most, quota = room, ""
        if self._quotas.in_use:
            # Pods that are not there yet have no quota's leave: of these the sum is looked at.
            at_most = room if lack else self._room(gang, standing, nodes, by_quotas=True) or room
            quota = self._for_quota(record, gang, standing, lack, room) if lack or not at_most.enough else ""
        if at_most.enough and not quota:
            return ""
        fewer = "" if lack else _for_fewer(standing, at_most)
        if quota:
            return f"{quota}{fewer}" + (
                "" if room.enough else f"; and room for {together}, which is not there now"
            )
        if not at_most.most and (would_help := alone()):
            return f"room for {together}, and this pod alone has none: {would_help}"
        return f"room for {together}{fewer}{kept()}"

    def _room(
        self, gang: Gang, standing: Standing, nodes: NodeNamesFn, *, lack: int = 0, by_quotas: bool = False
    ) -> Room | None:
        """``None`` where as much as is looked for at a time was looked for already."""
        _, _, request = standing.candidates[0]
        key = (gang.key, request, by_quotas, lack)
        if key not in self._rooms:
            self._pods_left -= standing.need
            self._rooms[key] = (
                None
                if self._pods_left < 0
                else Trial(self._view, self._quotas, standing, nodes(), by_quotas=by_quotas).room()
            )
        return self._rooms[key]

    def _for_quota(self, record: PodRecord, gang: Gang, standing: Standing, lack: int, room: Room) -> str:
        """By what as many of its pods ask for together as have to run, or are given where there is room; empty where quotas let them in."""
        quotas = self._quotas
        asking = [(uid.partition(_COPY)[0], units) for uid, units in room.given.items()]
        if not room.enough:
            others = (uid for uid, *_ in standing.candidates[1:] if uid in self._view.waiting)
            uids = [*[record.uid] * (1 + lack), *quotas.least_asking(others)]
            asking = [(uid, 0) for uid in uids[: standing.need]]
        over, alone = quotas.over_together(asking, standing.members)
        return quota_suggestions.would_help_gang(over, gang, alone=alone) if over else ""


def _completed(standing: Standing, lack: int) -> Standing:
    """As if the pods that are missing were there, and asked as this one does."""
    uid, pod, request = standing.candidates[0]
    first, *others = standing.candidates
    more = [(f"{uid}{_COPY}{number}", pod, request) for number in range(lack)]
    return standing._replace(candidates=[first, *more, *others])


def _for_others(gang: Gang, standing: Standing) -> str:
    wrong = standing.wrong
    if wrong is not None:
        return (
            f"another request of pod {wrong.pod}, without which gang {gang.key} does not run: {wrong.problem}"
        )
    return (
        f"the pods of gang {gang.key} that ask for no GPU, which are to be bound first: `kubectl describe pod` tells "
        "why they wait"
    )


def _for_fewer(standing: Standing, room: Room) -> str:
    """With how many it would run now; empty where not even the pod itself has room."""
    if not room.most:
        return ""
    return f', or {names.LABEL_GANG_LEAST}: "{standing.running + room.most}" on each of its pods: there is room for so many now'
