"""The verbs filter and prioritize. They only read the ledger; plugins may reserve shares in it."""

from collections.abc import Mapping

from gpushare.api.request.request import Request
from gpushare.ledger import Verdict
from gpushare.scheduler.cache.cache import ClusterCache
from gpushare.scheduler.framework.cycle_state import CycleState
from gpushare.scheduler.framework.interface import NodesInTurn
from gpushare.scheduler.framework.runtime import NO_PLUGINS, Framework
from gpushare.scheduler.server import protocol


def filter_nodes(view: ClusterCache, state: CycleState, framework: Framework = NO_PLUGINS) -> bytes:
    """Return the response to a filter request. A pod without a GPU request fits on every node unless a plugin refuses it."""
    args, names, request, problem, _ = state
    if problem:
        verdict = Verdict([], {}, dict.fromkeys(names, problem))
        _explain(state, verdict, framework)
        return protocol.filter_answer(args, [], {}, verdict.hopeless)
    assumers = framework.assumers if request is not None else ()
    for assumer in assumers:
        assumer.filter_begins(state)
    unsuitable = {} if request is None else _unsuitable(view, state, request, framework)
    if unsuitable:
        names = [name for name in names if name not in unsuitable]
    verdict, in_turn = _decided(view, state, names, framework)
    if unsuitable:
        verdict = Verdict(verdict.fits, verdict.refused, {**verdict.hopeless, **unsuitable})
    if not verdict.fits:
        if in_turn is not None:
            verdict = Verdict([], verdict.refused, verdict.hopeless | in_turn.rest())
        # Called even if no eviction could help: the node may soon have what it lacks now (a healthy GPU, for example).
        framework.post_filter(args.pod.metadata.uid, verdict.refused.keys())
    else:
        for assumer in assumers:
            verdict = assumer.assume(state, verdict)
    _explain(state, verdict, framework)
    return protocol.filter_answer(args, verdict.fits, *_resolvable(view, args.pod.metadata.uid, verdict))


def _decided(
    view: ClusterCache, state: CycleState, names: list[str], framework: Framework
) -> tuple[Verdict, NodesInTurn | None]:
    """Decide which of ``names`` take the pod. The second value is the order of a search in turns, ``None`` if all nodes were searched at once."""
    refusal = framework.pre_filter(state)
    if refusal:
        for finder in framework.room_finders:
            finder.not_admitted(state, names)
        return Verdict([], dict.fromkeys(names, refusal), {}), None
    if not framework.narrowers:
        return _verdict(view, state, names, framework), None
    in_turn = None if state.gang is None else _in_turn(view, state, names, framework)
    if in_turn is None:
        with_room = _verdict(view, state, names, framework)
    else:
        with_room = _verdict_in_turn(view, state, in_turn, framework)
    verdict = with_room
    for narrower in framework.narrowers:
        verdict = narrower.narrow(state.pod, verdict)
    if with_room.fits and not verdict.fits:
        for finder in framework.room_finders:
            finder.narrowed_to_none(state.pod.metadata.uid)
    return verdict, in_turn


def _unsuitable(
    view: ClusterCache, state: CycleState, request: Request, framework: Framework
) -> Mapping[str, str]:
    """Nodes that cannot take the pod even after evictions, with reasons: by their kubelet's capacity and by ``Filter`` plugins."""
    if not view.offers.any_short and not framework.filters:
        return {}
    if view.ledger.held(state.args.pod.metadata.uid) is not None:
        return {}  # a Binding is in flight and may still be written, whether the node is suitable or not
    short = view.offers.refusals(request, state.names) if view.offers.any_short else {}
    return {**framework.refusals(state), **short} if framework.filters else short


def _resolvable(view: ClusterCache, uid: str, verdict: Verdict) -> tuple[dict[str, str], dict[str, str]]:
    """Nodes on which kube-scheduler may preempt for the pod, and all other refused nodes.

    kube-scheduler sends only nodes that pass its own filters, so its preemption finds no victims there: it would try each node, pod by
    pod, and log an error for each ("expected at least one victim pod on node"). So all nodes are reported as unresolvable, and the
    plugin ``preemption`` makes room instead. The exception is the node that it has nominated for the pod.
    """
    if verdict.fits or not verdict.refused:
        return verdict.refused, verdict.hopeless
    hopeless = {**verdict.hopeless, **verdict.refused}
    nominated = view.ledger.nominations.node_of(uid)
    return ({nominated: hopeless.pop(nominated)} if nominated in verdict.refused else {}), hopeless


def _explain(state: CycleState, verdict: Verdict, framework: Framework) -> None:
    for explainer in framework.explainers:
        explainer.after_filter(state, verdict)


def prioritize_nodes(view: ClusterCache, state: CycleState, framework: Framework = NO_PLUGINS) -> bytes:
    """Return the response to a prioritize request: scores from 0 to 10, encoded by ``protocol.priorities``."""
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
    """The order of search for a pod of a gang: its gang's plan must not use nodes that ``Narrow`` would remove afterwards."""
    uid = state.pod.metadata.uid
    # The node that the pod already has: by its gang's plan, or by a Binding that may still be written.
    destined = framework.planned_node(uid)
    if not destined and (held := view.ledger.held(uid)) is not None:
        destined = held.node
    for narrower in framework.narrowers:
        in_turn = narrower.in_turn(state.pod, names, destined)
        if in_turn is not None:
            return in_turn
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
        planned = finder.find_room(state, names)
        if planned is not None:
            return planned
    uid = state.pod.metadata.uid
    held = view.ledger.held(uid)
    if held is not None and held.node in names:
        # An earlier Binding of this pod may still be written, so only that node is safe.
        reason = f"the pod is still being bound to node {held.node}"
        return Verdict([held.node], {name: reason for name in names if name != held.node}, {})
    verdict = view.ledger.filter_for(uid, request, names)
    for finder in framework.room_finders:
        verdict = finder.explain_room(request, verdict)
    return verdict
