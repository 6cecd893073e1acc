"""What the log says of one pod's cycle.

A bind is told once a pod. Filter and prioritize are state many times a second for pods that wait, so they are told at level
debug alone: then the answers are read again, which costs what the answer itself does.
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


def tell_filtered(state: CycleState, answer: bytes) -> None:
    """Say how many nodes fit, and why one of the others does not."""
    pod = state.args.pod
    said = _FILTERED.decode(answer)
    refused = (said.failed_nodes or {}) | (said.failed_and_unresolvable_nodes or {})
    why = "".join(f"; {node}: {reason}" for node, reason in list(refused.items())[:1])
    logger.debug(
        "pod %s: filter: %d of %d nodes fit%s",
        pod.key,
        len(state.names) - len(refused),
        len(state.names),
        why,
        extra=about(pod=pod.key, uid=pod.metadata.uid),
    )


def tell_prioritized(state: CycleState, answer: bytes) -> None:
    """Say which node stands out."""
    pod = state.args.pod
    scored = _SCORED.decode(answer)
    best = max(scored, key=lambda one: one.score, default=None)
    words = "no node stands out" if best is None else f"{best.host} first, with {best.score}"
    logger.debug("pod %s: prioritize: %s", pod.key, words, extra=about(pod=pod.key, uid=pod.metadata.uid))


def tell_bound(ledger: Ledger, args: BindingArgs) -> None:
    """Say where a pod is bound, and what it was given."""
    held = ledger.held(args.uid)
    gpus = () if held is None else held.allocation.gpus
    given = " and ".join(f"{share.units} units of GPU {share.index}" for share in gpus)
    logger.info(
        "pod %s: bound to node %s%s",
        args.key,
        args.node,
        f": {given}" if given else "",
        extra=about(pod=args.key, uid=args.uid, node=args.node),
    )
