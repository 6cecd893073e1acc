"""Suggestions for pods that an elastic quota refuses."""

from collections.abc import Sequence
from typing import NamedTuple

from gpushare.api.request.pod_group import Gang
from gpushare.ledger.quota.accounting import Over
from gpushare.reasons.phrases import pods


class Whole(NamedTuple):
    """Total units that whole GPUs of ``node`` would use of the pod's quota."""

    node: str
    units: int


def would_help(over: Sequence[Over], *, alone: bool | None = None, whole: Whole | None = None) -> str:
    """The suggestion. ``over``: the quotas that the pod would exceed, its own first; not empty.

    ``whole``: set if it would be allocated whole GPUs. ``alone``: whether the request alone exceeds the max of one of the quotas.
    """
    which = _which(over)
    alone_whole = any(quota.alone for quota in over)
    if alone if alone is not None else alone_whole:
        return f"request less, or raise the max of {which}: the request alone exceeds it"
    if whole is not None and alone_whole:
        return (
            f"a larger max of {which}, or a node with smaller GPUs: whole GPUs of node {whole.node} count "
            f"{whole.units} units, which alone exceeds it"
        )
    return _ends(over)


def would_help_gang(over: Sequence[Over], gang: Gang, *, alone: bool) -> str:
    """The suggestion for a gang; ``alone``: its pods together, with those that run, request more than the max of one of ``over``."""
    if alone:
        which = _which(over)
        return f"request less, or raise the max of {which}: {pods(gang.least)} of gang {gang.key} alone exceed it"
    return _ends(over)


def _ends(over: Sequence[Over]) -> str:
    return f"wait for pods of {_which(over)} to end, or raise the max of {'each' if len(over) > 1 else 'it'}"


def _which(over: Sequence[Over]) -> str:
    return f"elastic quota{'s' if len(over) > 1 else ''} {' and '.join(exceeded.quota for exceeded in over)}"
