"""Log lines about the scheduling cycle of a pod.

A bind is logged once per pod. Filter and prioritize run many times per second for pending pods, so they are logged only at level
debug: the response is then decoded again, which takes as long as the request itself.
"""

import logging
from typing import Final

import msgspec

from gpushare.ledger import Ledger
from gpushare.process.log_setup import about
from gpushare.scheduler.framework.cycle_state import CycleState
from gpushare.scheduler.server.protocol import BindingArgs

logger = logging.getLogger(__name__)


class _Filtered(msgspec.Struct, rename="pascal"):
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None


class _Scored(msgspec.Struct, rename="pascal"):
    host: str
    score: int


_FILTERED: Final = msgspec.json.Decoder(_Filtered)
_SCORED: Final = msgspec.json.Decoder(list[_Scored])


def log_filtered(state: CycleState, answer: bytes) -> None:
    """Log how many nodes fit, and the reason of one node that does not."""
    pod = state.args.pod
    result = _FILTERED.decode(answer)
    refused = (result.failed_nodes or {}) | (result.failed_and_unresolvable_nodes or {})
    example = "".join(f"; {node}: {reason}" for node, reason in list(refused.items())[:1])
    logger.debug(
        "pod %s: filter: %d of %d nodes fit%s",
        pod.key,
        len(state.names) - len(refused),
        len(state.names),
        example,
        extra=about(pod=pod.key, uid=pod.metadata.uid),
    )


def log_prioritized(state: CycleState, answer: bytes) -> None:
    """Log the node with the highest score."""
    pod = state.args.pod
    scored = _SCORED.decode(answer)
    best = max(scored, key=lambda one: one.score, default=None)
    words = "all nodes score the same" if best is None else f"{best.host} first, with {best.score}"
    logger.debug("pod %s: prioritize: %s", pod.key, words, extra=about(pod=pod.key, uid=pod.metadata.uid))


def log_bound(ledger: Ledger, args: BindingArgs) -> None:
    """Log where a pod was bound, and its allocation."""
    held = ledger.held(args.uid)
    gpus = () if held is None else held.allocation.gpus
    shares = " and ".join(f"{share.units} units of GPU {share.label}" for share in gpus)
    logger.info(
        "pod %s: bound to node %s%s",
        args.key,
        args.node,
        f": {shares}" if shares else "",
        extra=about(pod=args.key, uid=args.uid, node=args.node),
    )
