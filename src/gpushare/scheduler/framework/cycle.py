"""The verbs filter and prioritize: questions to the ledger, answered without writing anything."""

from collections.abc import Mapping

from gpushare.api.request.request import Request
from gpushare.ledger import Verdict
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.framework.cycle_state import CycleState
from gpushare.scheduler.framework.interface import NodesInTurn
from gpushare.scheduler.framework.runtime import NO_PLUGINS, Framework
from gpushare.scheduler.server import protocol


def filter_nodes(view: ClusterCache, state: CycleState, framework: Framework = NO_PLUGINS) -> bytes:
    """Answer a filter body. A pod without a GPU request fits everywhere where no plugin decides otherwise."""
    args, names, request, problem, _ = state
    if problem:
        verdict = Verdict([], {}, dict.fromkeys(names, problem))
        _explain(state, verdict, framework)
        return protocol.filter_answer(args, [], {}, verdict.hopeless)
    unsuitable = {} if request is None else _unsuitable(view, state, request, framework)
    if unsuitable:
        names = [name for name in names if name not in unsuitable]
    verdict, in_turn = _decided(view, state, names, framework)
    if unsuitable:
        verdict = Verdict(verdict.fits, verdict.refused, {**verdict.hopeless, **unsuitable})
    if not verdict.fits:
        if in_turn is not None:
            verdict = Verdict([], verdict.refused, verdict.hopeless | in_turn.rest())
        # Also where no eviction could help: what the node lacks now (a healthy GPU, say) it may have in a moment.
        framework.post_filter(args.pod.metadata.uid, verdict.refused.keys())
    _explain(state, verdict, framework)
    return protocol.filter_answer(args, verdict.fits, *_resolvable(view, args.pod.metadata.uid, verdict))


def _decided(
    view: ClusterCache, state: CycleState, names: list[str], framework: Framework
) -> tuple[Verdict, NodesInTurn | None]:
    """Which of ``names`` take the pod, and in which order they were looked at, where that is not all at once."""
    refusal = framework.pre_filter(state)
    if refusal:
        for finder in framework.room_finders:
            finder.not_admitted(state, names)
        return Verdict([], dict.fromkeys(names, refusal), {}), None
    if not framework.narrowers:
        return _verdict(view, state, names, framework), None
    in_turn = None if state.gang is None else _in_turn(view, state, names, framework)
    if in_turn is None:
        taken = _verdict(view, state, names, framework)
    else:
        taken = _verdict_in_turn(view, state, in_turn, framework)
    verdict = taken
    for narrower in framework.narrowers:
        verdict = narrower.narrow(state.pod, verdict)
    if taken.fits and not verdict.fits:
        for finder in framework.room_finders:
            finder.narrowed_to_none(state.pod.metadata.uid)
    return verdict, in_turn


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


def _explain(state: CycleState, verdict: Verdict, framework: Framework) -> None:
    for explainer in framework.explainers:
        explainer.after_filter(state, verdict)


def prioritize_nodes(view: ClusterCache, state: CycleState, framework: Framework = NO_PLUGINS) -> bytes:
    """Answer a prioritize body with scores from 0 to 10, as ``protocol.priorities`` writes them."""
    _, names, request, *_ = state
    if request is None:
        return protocol.priorities([])
    above = framework.scores(state, names, view.ledger.standing_out(request, names))
    for explainer in framework.explainers:
        explainer.after_score(state, above)
    return protocol.priorities(above)


def _verdict(view: ClusterCache, state: CycleState, names: list[str], framework: Framework) -> Verdict:
    request = state.request
    if request is None:
        return Verdict(names, {}, {})
    return framework.filter_fits(state, _by_room(view, state, request, names, framework))


def _in_turn(
    view: ClusterCache, state: CycleState, names: list[str], framework: Framework
) -> NodesInTurn | None:
    """For pods that are planned with others: the plan must not be in vain because of what ``Narrow`` leaves out."""
    uid = state.pod.metadata.uid
    # Where the pod goes already: by the plan for its group, or by a Binding that may still arrive.
    destined = framework.planned_node(uid)
    if not destined and (held := view.ledger.held(uid)) is not None:
        destined = held.node
    for narrower in framework.narrowers:
        found = narrower.in_turn(state.pod, names, destined)
        if found is not None:
            return found
    return None


def _verdict_in_turn(
    view: ClusterCache, state: CycleState, in_turn: NodesInTurn, framework: Framework
) -> Verdict:
    verdict: Verdict | None = None
    for names in in_turn:
        verdict = _verdict(view, state, names, framework)
        if verdict.fits:
            return verdict
    return _verdict(view, state, [], framework) if verdict is None else verdict


def _by_room(
    view: ClusterCache, state: CycleState, request: Request, names: list[str], framework: Framework
) -> Verdict:
    for finder in framework.room_finders:
        found = finder.find_room(state, names)
        if found is not None:
            return found
    uid = state.pod.metadata.uid
    held = view.ledger.held(uid)
    if held is not None and held.node in names:
        # An earlier Binding of this very pod may still arrive there: nowhere else is safe, there is.
        reason = f"the pod's binding to node {held.node} is still under way"
        return Verdict([held.node], {name: reason for name in names if name != held.node}, {})
    verdict = view.ledger.filter_for(uid, request, names)
    for finder in framework.room_finders:
        verdict = finder.explain_room(request, verdict)
    return verdict
