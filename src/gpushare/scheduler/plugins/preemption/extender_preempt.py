"""The verb preempt: which of kube-scheduler's candidate nodes have room on their GPUs after preemption, and which extra victims that takes.

kube-scheduler deletes the victims that we add as it deletes its own, without checking their PodDisruptionBudgets. So no protected pod is
added if another node has room without that. If no node has, protected victims count as violations, and kube-scheduler prefers the
node with the fewest. Budgets are read only once victims would be added, which is rare.
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

#: Attempts to find nodes where no protected pod has to be added.
_MAX_ATTEMPTS: Final = 5
#: Seconds that reading budgets may take in all. kube-scheduler schedules no pod while it waits for the answer.
_PATIENCE_S: Final = 3.0

ViolatingFn = Callable[[Collection[str]], set[str]]
"""Of pods (UIDs) that are evicted together, in this order, those whose PodDisruptionBudgets do not allow it."""


class _Look(NamedTuple):
    """Nodes with room once their victims are gone, the victims that we added (``extra_victims``), and why other nodes fail."""

    rooms: dict[str, protocol.Victims]
    extra_victims: dict[str, tuple[str, ...]]
    failures: dict[str, str]
    ended_early: bool


class _Result(NamedTuple):
    request: Request | None
    offered: Mapping[str, protocol.Victims]
    allowed: Mapping[str, protocol.Victims]
    """Those of ``offered`` that ResourcePolicies allow."""
    look: _Look


Steps = Generator[_Look, set[str], _Result]
"""Yields looks with ``extra_victims``, and is sent those of these that budgets protect."""


def _none_protected(uids: Collection[str]) -> set[str]:
    return set()


def preempt_pods(
    view: ClusterCache,
    args: protocol.PreemptionArgs,
    on_scheduler_preempts: Callable[[str], None],
    policies: NodePolicies | None = None,
    decisions: Decisions | None = None,
    quotas: PodQuotas = NO_QUOTAS,
    protected: ViolatingFn = _none_protected,
) -> bytes:
    """Answer a preempt body with the nodes that have room on their GPUs without the victims and the extra victims that we add.

    Nodes are left out if a victim's elastic quota would fall below its min.
    ``on_scheduler_preempts`` is called with the UID of a pod for which kube-scheduler will make room.
    """
    steps = _steps(view, args, policies, quotas)
    try:
        look = next(steps)
        while True:
            look = steps.send(
                _protected_extra_victims(
                    look, {node: protected(victims.uids) for node, victims in look.rooms.items()}
                )
            )
    except StopIteration as stop:
        return _answer(view, args, stop.value, on_scheduler_preempts, decisions)


class PreemptVerb:
    """The verb ``preempt`` of the extender.

    ``on_scheduler_preempts`` is called with the UID of a pod for which kube-scheduler will make room.
    """

    def __init__(
        self,
        view: ClusterCache,
        api: BudgetReader,
        on_scheduler_preempts: Callable[[str], None],
        policies: NodePolicies | None = None,
        decisions: Decisions | None = None,
        quotas: PodQuotas = NO_QUOTAS,
    ) -> None:
        self._view = view
        self._quotas = quotas
        self._api = api
        self._on_scheduler_preempts = on_scheduler_preempts
        self._policies = policies
        self._decisions = decisions

    def verbs(self) -> Mapping[str, Callable[[bytes], Coroutine[Any, Any, bytes]]]:
        """The verb's handler by name."""
        return {"preempt": self.preempt}

    async def preempt(self, body: bytes) -> bytes:
        """Answer a preempt body like ``preempt_pods``, by the current budgets; raises ``WireError``.

        If the budgets cannot be read, every extra victim counts as protected.
        """
        args = protocol.read_preemption(body)
        reading = BudgetReading(self._view, self._api)
        steps = _steps(self._view, args, self._policies, self._quotas)
        deadline_s = asyncio.get_running_loop().time() + _PATIENCE_S
        try:
            look = next(steps)
            while True:
                try:
                    async with asyncio.timeout_at(deadline_s):
                        protected = {
                            node: await _violating(reading, victims.uids)
                            for node, victims in look.rooms.items()
                        }
                except (KubeError, TimeoutError) as error:
                    if deadline_s:
                        reason = str(error) or f"no answer within {_PATIENCE_S:.0f} s"
                        logger.warning(
                            "pod %s: PodDisruptionBudgets cannot be read, all further victims count as protected: %s",
                            args.pod.key,
                            reason,
                            extra=about(pod=args.pod.key, uid=args.pod.metadata.uid),
                        )
                    deadline_s = 0.0  # do not wait a second time
                    protected = {node: set(victims.uids) for node, victims in look.rooms.items()}
                look = steps.send(_protected_extra_victims(look, protected))
        except StopIteration as stop:
            return _answer(self._view, args, stop.value, self._on_scheduler_preempts, self._decisions)


async def _violating(reading: BudgetReading, uids: Collection[str]) -> set[str]:
    return violating(await reading.pods(uids), await reading.budgets())


def _protected_extra_victims(look: _Look, protected: Mapping[str, set[str]]) -> set[str]:
    return {
        uid
        for node, extra_victims in look.extra_victims.items()
        for uid in extra_victims
        if uid in protected[node]
    }


def _steps(
    view: ClusterCache, args: protocol.PreemptionArgs, policies: NodePolicies | None, quotas: PodQuotas
) -> Steps:
    offered = allowed = args.victims()
    if policies is not None and policies.in_use:
        allowed = policies.preemptable(args.pod, offered)
    try:
        request = request_of(args.pod)
    except InvalidRequest:
        return _Result(None, offered, allowed, _Look({}, {}, {}, ended_early=False))
    if request is None:
        return _Result(None, offered, allowed, _by_quotas(quotas, args.pod, allowed))
    look = _look(view, quotas, args.pod, request, allowed)
    newly_protected = (yield look) if look.extra_victims else set()
    if not newly_protected:
        return _Result(request, offered, allowed, look)
    return _Result(
        request,
        offered,
        allowed,
        (yield from _avoiding_protected(view, quotas, args.pod, request, allowed, look, newly_protected)),
    )


def _by_quotas(quotas: PodQuotas, pod: Pod, victims: dict[str, protocol.Victims]) -> _Look:
    """For a pod without a GPU: nodes where no victim's quota would fall below its min."""
    from gpushare.scheduler.framework.preemption_results import BELOW_MIN

    claim = quotas.claim(pod.metadata.uid, pod.key, amounts_of(pod))
    if claim is None:
        return _Look(victims, {}, {}, ended_early=False)
    rooms = {
        node: node_victims
        for node, node_victims in victims.items()
        if all(claim.may_evict(uid, lesser=True) for uid in node_victims.uids)
        and claim.together(node_victims.uids, ()) is not None
    }
    failures = dict.fromkeys(victims.keys() - rooms.keys(), BELOW_MIN)
    return _Look(rooms, {}, failures, ended_early=False)


def _avoiding_protected(
    view: ClusterCache,
    quotas: PodQuotas,
    pod: Pod,
    request: Request,
    victims: Mapping[str, protocol.Victims],
    look: _Look,
    newly_protected: set[str],
) -> Generator[_Look, set[str], _Look]:
    """Nodes where no protected pod is added; if each of them violates a budget, also nodes where protected pods are added."""
    guarded = set(newly_protected)
    nodes_with_room = set(look.rooms)
    for _ in range(_MAX_ATTEMPTS - 1):
        look = _look(view, quotas, pod, request, victims, barred=guarded)
        nodes_with_room |= look.rooms.keys()
        newly_protected = (yield look) if look.extra_victims else set()
        if not newly_protected:
            break
        guarded |= newly_protected
    rooms = {
        node: node_victims
        for node, node_victims in look.rooms.items()
        if not newly_protected & {*look.extra_victims.get(node, ())}
    }
    if any(node_victims.violations == 0 for node_victims in rooms.values()):
        from gpushare.scheduler.framework.preemption_results import GUARDED

        failures = look.failures | dict.fromkeys(nodes_with_room - rooms.keys(), GUARDED)
        return look._replace(rooms=rooms, failures=failures)
    others = {node: node_victims for node, node_victims in victims.items() if node not in rooms}
    last = _look(view, quotas, pod, request, others, spared=guarded)
    newly_protected = (yield last) if last.extra_victims else set()
    for node, node_victims in last.rooms.items():
        violations = node_victims.violations + len(newly_protected & {*last.extra_victims.get(node, ())})
        rooms[node] = protocol.Victims(node_victims.uids, violations)
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
    """Examine nodes. Pods in ``barred`` (UIDs) are never added, pods in ``spared`` only as a last resort."""
    from gpushare.scheduler.framework.preemption_results import BELOW_MIN, NOT_ENOUGH

    uid = pod.metadata.uid
    priority = pod.spec.priority or 0
    view.recount_leaving()
    look = _Look({}, {}, {}, ended_early=False)
    tried = 0
    # Room reserved for the pod itself, from an earlier refusal on GPUs, is available to it here.
    suspended = view.ledger.nominations.suspend((uid,))
    try:
        claim = quotas.claim(uid, pod.key, amounts_of(pod))
        rank = lesser(view, priority, barred, claim, spared)
        below = reach(view, priority, claim)
        # kube-scheduler offers hundreds of nodes, takes one, and prefers the fewest violated budgets.
        for violations in sorted({node_victims.violations for node_victims in victims.values()}):
            nodes = [node for node, node_victims in victims.items() if node_victims.violations == violations]
            for node in chain.from_iterable(view.ledger.evictions.stages(request, nodes, below)):
                if len(look.rooms) == ENOUGH or tried == MOST_TRIED:
                    return look._replace(ended_early=True)
                uids = victims[node].uids
                if claim is not None and not all(claim.may_evict(victim, lesser=True) for victim in uids):
                    look.failures[node] = BELOW_MIN
                    continue
                if any(map(view.lingers, uids)):
                    look.failures[node] = NOT_ENOUGH
                    continue
                tried += 1
                forced = set(uids)
                plan = view.ledger.evictions.plan(request, (node,), rank, forced=forced, rule=claim)
                if plan is None:
                    look.failures[node] = NOT_ENOUGH
                    continue
                extra_victims = tuple(victim for victim in plan.victims if victim not in forced)
                leaving_uids = (*uids, *extra_victims)
                if request.whole_device and not quotas.whole_is_let_in(pod, request, node, leaving_uids):
                    look.failures[node] = BELOW_MIN
                    continue
                look.rooms[node] = protocol.Victims(leaving_uids, violations)
                if extra_victims:
                    look.extra_victims[node] = extra_victims
    finally:
        view.ledger.nominations.restore(suspended)
    return look


def _answer(
    view: ClusterCache,
    args: protocol.PreemptionArgs,
    result: _Result,
    on_scheduler_preempts: Callable[[str], None],
    decisions: Decisions | None,
) -> bytes:
    uid, look = args.pod.metadata.uid, result.look
    if result.request is not None:
        if look.rooms:
            on_scheduler_preempts(uid)
        if decisions is not None:
            from gpushare.scheduler.framework.preemption_results import of_verb

            preemption = of_verb(
                view,
                decisions.now_s,
                result.offered,
                result.allowed,
                look.rooms,
                look.failures,
                ended_early=look.ended_early,
            )
            decisions.preempted(uid, args.pod.key, result.request, preemption)
    return protocol.preemption_answer(look.rooms)
