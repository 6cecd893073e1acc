"""The verbs filter and prioritize: questions to the ledger, answered without writing anything."""

from collections.abc import Callable
from typing import Final

from gpushare.ledger import Verdict
from gpushare.model.errors import InvalidRequest
from gpushare.model.request import request_of
from gpushare.scheduler import wire
from gpushare.scheduler.view import ClusterView

_NEUTRAL_SCORE: Final = 5


def filter_nodes(view: ClusterView, body: bytes, on_refused: Callable[[str], None]) -> bytes:
    """Answer a filter body; raises ``WireError``. A pod without a GPU request fits everywhere.

    ``on_refused`` is told the UID of a pod that no node takes now, though one might later.
    """
    args = wire.read_args(body)
    names = args.names()
    verdict = _verdict(view, args, names)
    if not verdict.fits and verdict.refused:
        on_refused(args.pod.metadata.uid)
    return wire.filter_answer(args, verdict.fits, verdict.refused, verdict.hopeless)


def prioritize_nodes(view: ClusterView, body: bytes) -> bytes:
    """Answer a prioritize body with a score from 0 to 10 a node; raises ``WireError``."""
    args = wire.read_args(body)
    names = args.names()
    try:
        request = request_of(args.pod)
    except InvalidRequest:
        request = None
    scores = [_NEUTRAL_SCORE] * len(names) if request is None else view.ledger.score(request, names)
    return wire.priorities(names, scores)


def _verdict(view: ClusterView, args: wire.ExtenderArgs, names: list[str]) -> Verdict:
    try:
        request = request_of(args.pod)
    except InvalidRequest as error:
        return Verdict([], {}, dict.fromkeys(names, error.problem))
    if request is None:
        return Verdict(names, {}, {})
    held = view.ledger.held(args.pod.metadata.uid)
    if held is not None and held.node in names:
        # An earlier Binding of this very pod may still arrive there: nowhere else is safe, there is.
        reason = f"the pod's binding to node {held.node} is still under way"
        return Verdict([held.node], {name: reason for name in names if name != held.node}, {})
    return view.ledger.filter(request, names)
