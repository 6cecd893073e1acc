"""The verb preempt: of the nodes on which kube-scheduler would end others, which have room on GPUs then, and who must go besides.

kube-scheduler deletes whom we add as it deletes its own victims, without asking for their PodDisruptionBudgets. So of those that
budgets protect nobody is added where another node has room, and where none has they count as violations, of which kube-scheduler
takes the fewest. Budgets are read when somebody would be added, and not before: mostly nobody is.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

from gpushare.api.disruption import violating
from gpushare.api.errors import InvalidRequest
from gpushare.api.objects import Pod
from gpushare.api.request.amounts import amounts_of
from gpushare.api.request.request import Request, request_of
from gpushare.kube.client.errors import KubeError
from gpushare.ledger.preemption.victims import ENOUGH, MOST_TRIED
from gpushare.process.log_setup import about
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.framework.services import NO_QUOTAS, Decisions, NodePolicies, PodQuotas
from gpushare.scheduler.plugins.preemption.disruption_budgets import BudgetReader, BudgetReading
from gpushare.scheduler.plugins.preemption.ranks import lesser, reach
from gpushare.scheduler.server import protocol

logger = logging.getLogger(__name__)

#: Looks for nodes where nobody who is protected has to be added.
_TRIES: Final = 5
#: Seconds that all reading of budgets may take: kube-scheduler waits, with all of its pods.
_PATIENCE_S: Final = 3.0

ViolatingFn = Callable[[Collection[str]], set[str]]
"""Of pods (UIDs) that end together, in this order, those whose PodDisruptionBudgets do not allow it."""


class _Look(NamedTuple):
    """Nodes that have room once their victims are gone; of these ``more`` are ours; and why others were looked at in vain."""

    rooms: dict[str, protocol.Victims]
    more: dict[str, tuple[str, ...]]
    vain: dict[str, str]
    ended_early: bool


class _Found(NamedTuple):
    request: Request | None
    offered: Mapping[str, protocol.Victims]
    left: Mapping[str, protocol.Victims]
    """What policies have left of them."""
    look: _Look


Steps = Generator[_Look, set[str], _Found]
"""Gives looks that have ``more``, takes those of these that budgets protect."""


def _nobody(uids: Collection[str]) -> set[str]:
    return set()


def preempt_pods(
    view: ClusterCache,
    args: protocol.PreemptionArgs,
    on_found: Callable[[str], None],
    policies: NodePolicies | None = None,
    decisions: Decisions | None = None,
    quotas: PodQuotas = NO_QUOTAS,
    protected: ViolatingFn = _nobody,
) -> bytes:
    """Answer a preempt body: on which of the nodes the victims, and who of ours must go besides, leave room on one GPU.

    Nodes on which somebody would go whose elastic quota that would bring below its min are left out.
    ``on_found`` is told the UID of a pod for which kube-scheduler will make room.
    """
    steps = _steps(view, args, policies, quotas)
    try:
        look = next(steps)
        while True:
            look = steps.send(_added(look, {node: protected(one.uids) for node, one in look.rooms.items()}))
    except StopIteration as ended:
        return _answer(view, args, ended.value, on_found, decisions)


async def preempt_within_budgets(
    view: ClusterCache,
    args: protocol.PreemptionArgs,
    on_found: Callable[[str], None],
    policies: NodePolicies | None,
    decisions: Decisions | None,
    reading: BudgetReading,
    quotas: PodQuotas = NO_QUOTAS,
) -> bytes:
    """The same, with the budgets of ``reading``; where they cannot be read everybody whom we add counts as protected."""
    steps = _steps(view, args, policies, quotas)
    until_s = asyncio.get_running_loop().time() + _PATIENCE_S
    try:
        look = next(steps)
        while True:
            try:
                async with asyncio.timeout_at(until_s):
                    found = {node: await _violating(reading, one.uids) for node, one in look.rooms.items()}
            except (KubeError, TimeoutError) as error:
                if until_s:
                    why = str(error) or f"no answer within {_PATIENCE_S:.0f} s"
                    logger.warning(
                        "pod %s: PodDisruptionBudgets cannot be read, all who would end besides count as protected: %s",
                        args.pod.key,
                        why,
                        extra=about(pod=args.pod.key, uid=args.pod.metadata.uid),
                    )
                until_s = 0.0  # not to be waited for once more
                found = {node: set(one.uids) for node, one in look.rooms.items()}
            look = steps.send(_added(look, found))
    except StopIteration as ended:
        return _answer(view, args, ended.value, on_found, decisions)


class PreemptVerb:
    """The verb ``preempt`` of the extender. ``on_found`` is called with the UID of a pod for which kube-scheduler will make room."""

    def __init__(
        self,
        view: ClusterCache,
        api: BudgetReader,
        on_found: Callable[[str], None],
        policies: NodePolicies | None = None,
        decisions: Decisions | None = None,
        quotas: PodQuotas = NO_QUOTAS,
    ) -> None:
        self._view = view
        self._quotas = quotas
        self._api = api
        self._on_found = on_found
        self._policies = policies
        self._decisions = decisions

    def verbs(self) -> Mapping[str, Callable[[bytes], Coroutine[Any, Any, bytes]]]:
        """The verb by its name."""
        return {"preempt": self.preempt}

    async def preempt(self, body: bytes) -> bytes:
        """Answer a preempt body; raises ``WireError``."""
        return await preempt_within_budgets(
            self._view,
            protocol.read_preemption(body),
            self._on_found,
            self._policies,
            self._decisions,
            BudgetReading(self._view, self._api),
            self._quotas,
        )


async def _violating(reading: BudgetReading, uids: Collection[str]) -> set[str]:
    return violating(await reading.pods(uids), await reading.budgets())


def _added(look: _Look, protected: Mapping[str, set[str]]) -> set[str]:
    return {uid for node, more in look.more.items() for uid in more if uid in protected[node]}


def _steps(
    view: ClusterCache, args: protocol.PreemptionArgs, policies: NodePolicies | None, quotas: PodQuotas
) -> Steps:
    offered = left = args.victims()
    if policies is not None and policies.in_use:
        left = policies.preemptable(args.pod, offered)
    try:
        request = request_of(args.pod)
    except InvalidRequest:
        return _Found(None, offered, left, _Look({}, {}, {}, ended_early=False))
    if request is None:
        return _Found(None, offered, left, _by_quotas(quotas, args.pod, left))
    look = _look(view, quotas, args.pod, request, left)
    against = (yield look) if look.more else set()
    if not against:
        return _Found(request, offered, left, look)
    return _Found(
        request, offered, left, (yield from _without(view, quotas, args.pod, request, left, look, against))
    )


def _by_quotas(quotas: PodQuotas, pod: Pod, victims: dict[str, protocol.Victims]) -> _Look:
    """For a pod without a GPU: nodes on which nobody goes whose quota must keep it."""
    from gpushare.scheduler.framework.preemption_results import BELOW_MIN

    claim = quotas.claim(pod.metadata.uid, pod.key, amounts_of(pod))
    if claim is None:
        return _Look(victims, {}, {}, ended_early=False)
    rooms = {
        node: one
        for node, one in victims.items()
        if all(claim.may_end(uid, lesser=True) for uid in one.uids)
        and claim.together(one.uids, ()) is not None
    }
    vain = dict.fromkeys(victims.keys() - rooms.keys(), BELOW_MIN)
    return _Look(rooms, {}, vain, ended_early=False)


def _without(
    view: ClusterCache,
    quotas: PodQuotas,
    pod: Pod,
    request: Request,
    victims: Mapping[str, protocol.Victims],
    look: _Look,
    against: set[str],
) -> Generator[_Look, set[str], _Look]:
    """Nodes where nobody protected is added; where there are none without a violation, the others too."""
    guarded = set(against)
    room_for_them = set(look.rooms)
    for _ in range(_TRIES - 1):
        look = _look(view, quotas, pod, request, victims, barred=guarded)
        room_for_them |= look.rooms.keys()
        against = (yield look) if look.more else set()
        if not against:
            break
        guarded |= against
    rooms = {node: one for node, one in look.rooms.items() if not against & {*look.more.get(node, ())}}
    if any(one.violations == 0 for one in rooms.values()):
        from gpushare.scheduler.framework.preemption_results import GUARDED

        vain = look.vain | dict.fromkeys(room_for_them - rooms.keys(), GUARDED)
        return look._replace(rooms=rooms, vain=vain)
    others = {node: one for node, one in victims.items() if node not in rooms}
    last = _look(view, quotas, pod, request, others, spared=guarded)
    against = (yield last) if last.more else set()
    for node, one in last.rooms.items():
        violations = one.violations + len(against & {*last.more.get(node, ())})
        rooms[node] = protocol.Victims(one.uids, violations)
    return last._replace(rooms=rooms)


def _look(
    view: ClusterCache,
    quotas: PodQuotas,
    pod: Pod,
    request: Request,
    victims: Mapping[str, protocol.Victims],
    *,
    barred: Collection[str] = (),
    spared: Collection[str] = (),
) -> _Look:
    """``barred`` ones (UIDs) are not added, ``spared`` ones where nobody else helps."""
    from gpushare.scheduler.framework.preemption_results import BELOW_MIN, NOT_ENOUGH

    uid = pod.metadata.uid
    priority = pod.spec.priority or 0
    look = _Look({}, {}, {}, ended_early=False)
    tried = 0
    # Room that is kept for the pod itself, for it was refused on GPUs before, is its own here, too.
    lifted = view.ledger.nominations.suspend((uid,))
    try:
        claim = quotas.claim(uid, pod.key, amounts_of(pod))
        rank = lesser(view, priority, barred, claim, spared)
        below = reach(view, priority, claim)
        # kube-scheduler names hundreds of nodes, and takes one; fewest violated budgets come first with it.
        for violations in sorted({one.violations for one in victims.values()}):
            nodes = [node for node, one in victims.items() if one.violations == violations]
            for node in chain.from_iterable(view.ledger.evictions.stages(request, nodes, below)):
                if len(look.rooms) == ENOUGH or tried == MOST_TRIED:
                    return look._replace(ended_early=True)
                uids = victims[node].uids
                if claim is not None and not all(claim.may_end(one, lesser=True) for one in uids):
                    look.vain[node] = BELOW_MIN
                    continue
                tried += 1
                forced = set(uids)
                plan = view.ledger.evictions.plan(request, (node,), rank, forced=forced, rule=claim)
                if plan is None:
                    look.vain[node] = NOT_ENOUGH
                    continue
                more = tuple(one for one in plan.victims if one not in forced)
                ended = (*uids, *more)
                if request.whole_device and not quotas.whole_is_let_in(pod, request, node, ended):
                    look.vain[node] = BELOW_MIN
                    continue
                look.rooms[node] = protocol.Victims(ended, violations)
                if more:
                    look.more[node] = more
    finally:
        view.ledger.nominations.restore(lifted)
    return look


def _answer(
    view: ClusterCache,
    args: protocol.PreemptionArgs,
    found: _Found,
    on_found: Callable[[str], None],
    decisions: Decisions | None,
) -> bytes:
    uid, look = args.pod.metadata.uid, found.look
    if found.request is not None:
        if look.rooms:
            on_found(uid)
        if decisions is not None:
            from gpushare.scheduler.framework.preemption_results import of_verb

            told = of_verb(
                view,
                decisions.now_s,
                found.offered,
                found.left,
                look.rooms,
                look.vain,
                ended_early=look.ended_early,
            )
            decisions.preempted(uid, args.pod.key, found.request, told)
    return protocol.preemption_answer(look.rooms)
