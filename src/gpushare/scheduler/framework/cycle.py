"""The verbs filter and prioritize: questions to the ledger, answered without writing anything."""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from gpushare.api.request.amounts import amounts_of
from gpushare.api.request.request import Request
from gpushare.ledger import Verdict
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.framework.cycle_state import CycleState
from gpushare.scheduler.framework.runtime import NO_PLUGINS, Framework
from gpushare.scheduler.plugins.explain.decision_log import DecisionLog
from gpushare.scheduler.plugins.resource_policy.plugin import InTurn, Policies
from gpushare.scheduler.server import protocol

#: Why nodes are neither among those that take a pod nor refused: nobody is told in thousands of texts.
LEFT_OUT_BY_GANG: Final = "another node is its own, in the plan for its whole gang"
LEFT_OUT_BY_POLICY: Final = "not in the unit of its ResourcePolicy that comes first and has room"


OnRefused = Callable[[str, Collection[str]], None]


def filter_nodes(
    view: ClusterCache,
    state: CycleState,
    on_refused: OnRefused,
    policies: Policies | None = None,
    decisions: DecisionLog | None = None,
    framework: Framework = NO_PLUGINS,
) -> bytes:
    """Answer a filter body. A pod without a GPU request fits everywhere where no ResourcePolicy or elastic quota has it otherwise.

    ``on_refused`` is told the UID of a pod that no node takes now, though one might later, and the nodes that would
    take it if others ended.
    """
    args, names, request, problem, gang = state
    if problem:
        verdict = Verdict([], {}, dict.fromkeys(names, problem))
        _note(decisions, state, verdict)
        return protocol.filter_answer(args, [], {}, verdict.hopeless)
    unsuitable = {} if request is None else _unsuitable(view, state, request, framework)
    if unsuitable:
        names = [name for name in names if name not in unsuitable]
    refusal = _quota_refusal(view, args, request) if view.quotas.in_use else ""
    in_turn: InTurn | None = None
    if refusal:
        if gang is not None:
            view.gangs.asked_about(args.pod.metadata.uid, gang, names)
        verdict = Verdict([], dict.fromkeys(names, refusal), {})
    elif policies is not None and policies.in_use:
        if gang is not None:
            in_turn = policies.in_turn(args.pod, names, _destined(view, args.pod.metadata.uid))
        taken = _verdict(view, state, names) if in_turn is None else _verdict_in_turn(view, state, in_turn)
        verdict = policies.narrow(args.pod, taken)
        if taken.fits and not verdict.fits:
            view.gangs.denied(args.pod.metadata.uid)
    else:
        verdict = _verdict(view, state, names)
    if unsuitable:
        verdict = Verdict(verdict.fits, verdict.refused, {**verdict.hopeless, **unsuitable})
    if not verdict.fits:
        if in_turn is not None:
            verdict = Verdict([], verdict.refused, verdict.hopeless | in_turn.rest())
        # Also where no eviction could help: what the node lacks now (a healthy GPU, say) it may have in a moment.
        on_refused(args.pod.metadata.uid, verdict.refused.keys())
    if request is not None or verdict.refused or verdict.hopeless:
        _note(decisions, state, verdict)
    return protocol.filter_answer(args, verdict.fits, *_resolvable(view, args.pod.metadata.uid, verdict))


def _unsuitable(
    view: ClusterCache, state: CycleState, request: Request, framework: Framework
) -> Mapping[str, str]:
    """Nodes that cannot take the pod whoever ends there, and why: by what their kubelet offers, and by plugins."""
    if not view.offers.any_short and not framework.filters:
        return {}
    if view.ledger.held(state.args.pod.metadata.uid) is not None:
        return {}  # its Binding is under way and may yet arrive, suitable or not
    short = view.offers.refusals(request, state.names) if view.offers.any_short else {}
    return {**framework.refusals(state), **short} if framework.filters else short


def _resolvable(view: ClusterCache, uid: str, verdict: Verdict) -> tuple[dict[str, str], dict[str, str]]:
    """As kube-scheduler is told: nodes that could take the pod if it ended others there, and nodes that could not.

    It asks about nodes that pass all of its own filters, so by those it would have to end nobody: it tries each node that it may, pod
    by pod, and fails ("expected at least one victim pod on node"), with a text for each. So it may none; room is made by
    ``preemption``. Only the node for which that has nominated the pod stays one that can be waited for.
    """
    if verdict.fits or not verdict.refused:
        return verdict.refused, verdict.hopeless
    hopeless = {**verdict.hopeless, **verdict.refused}
    kept = view.ledger.nominations.node_of(uid)
    return ({kept: hopeless.pop(kept)} if kept in verdict.refused else {}), hopeless


def _note(decisions: DecisionLog | None, state: CycleState, verdict: Verdict) -> None:
    if decisions is None:
        return
    pod = state.args.pod
    left_out = LEFT_OUT_BY_POLICY if state.gang is None else LEFT_OUT_BY_GANG
    decisions.note_scheduler(pod.spec.scheduler_name)
    decisions.filtered(pod.metadata.uid, pod.key, state.request, state.names, verdict, left_out)


def prioritize_nodes(
    view: ClusterCache,
    state: CycleState,
    decisions: DecisionLog | None = None,
    framework: Framework = NO_PLUGINS,
) -> bytes:
    """Answer a prioritize body with scores from 0 to 10, as ``protocol.priorities`` writes them."""
    args, names, request, *_ = state
    if request is None:
        return protocol.priorities([])
    above = framework.scores(state, names, view.ledger.standing_out(request, names))
    if decisions is not None:
        decisions.scored(args.pod.metadata.uid, above, len(names))
    return protocol.priorities(above)


def _verdict(view: ClusterCache, state: CycleState, names: list[str]) -> Verdict:
    request = state.request
    if request is None:
        return Verdict(names, {}, {})
    found = _by_room(view, state, request, names)
    if request.whole_device and view.quotas.in_use:
        return _without_whole(view, state.args, request, found)
    return found


def _destined(view: ClusterCache, uid: str) -> str:
    """Where the pod goes already: by the plan for its gang, or by a Binding that may still arrive."""
    planned = view.gangs.planned_on(uid)
    held = None if planned else view.ledger.held(uid)
    return planned if held is None else held.node


def _verdict_in_turn(view: ClusterCache, state: CycleState, in_turn: InTurn) -> Verdict:
    verdict: Verdict | None = None
    for names in in_turn:
        verdict = _verdict(view, state, names)
        if verdict.fits:
            return verdict
    return _verdict(view, state, []) if verdict is None else verdict


def _by_room(view: ClusterCache, state: CycleState, request: Request, names: list[str]) -> Verdict:
    uid, key = state.args.pod.metadata.uid, state.args.pod.key
    if state.gang is not None:
        found = view.gangs.verdict(uid, key, state.gang, request, names)
        if found is not None:
            return found
    held = view.ledger.held(uid)
    if held is not None and held.node in names:
        # An earlier Binding of this very pod may still arrive there: nowhere else is safe, there is.
        reason = f"the pod's binding to node {held.node} is still under way"
        return Verdict([held.node], {name: reason for name in names if name != held.node}, {})
    return view.gangs.room.named(request, view.ledger.filter_for(uid, request, names))


def _quota_refusal(view: ClusterCache, args: protocol.ExtenderArgs, request: Request | None) -> str:
    uid = args.pod.metadata.uid
    if request is None and args.pod.metadata.namespace not in view.quotas.followed:
        return ""
    view.quotas.heard(uid, args.pod.key, amounts_of(args.pod))
    return view.quotas.refusal(uid)


def _without_whole(
    view: ClusterCache, args: protocol.ExtenderArgs, request: Request, verdict: Verdict
) -> Verdict:
    refused = view.quotas.whole_refusals(args.pod.metadata.uid, request, verdict.fits)
    if not refused:
        return verdict
    fits = [name for name in verdict.fits if name not in refused]
    return Verdict(fits, {**verdict.refused, **refused}, verdict.hopeless)
