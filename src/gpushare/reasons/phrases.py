"""Phrases with correct singular and plural: counts of pods, and of nodes that refuse for a reason."""

from typing import Final

from gpushare.api.request.pluralize import counted

_NODE: Final = "node "
OTHER_REASONS: Final = "other reasons"
"""Stands for reasons that are too rare to be listed."""


def pods(count: int) -> str:
    """``1 pod`` or ``3 pods``."""
    return counted(count, "pod")


def nodes(count: int) -> str:
    """``1 node`` or ``3 nodes``."""
    return counted(count, "node")


def are(count: int) -> str:
    """``is`` or ``are``."""
    return "is" if count == 1 else "are"


def have(count: int) -> str:
    """``has`` or ``have``."""
    return "has" if count == 1 else "have"


def of_each(reason: str) -> str:
    """A node's reason, worded for several nodes: ``node has no GPU`` becomes ``each has no GPU``; other texts stay the same."""
    return f"each {reason[len(_NODE) :]}" if reason.startswith(_NODE) else reason


def on_nodes(count: int, reason: str) -> str:
    """``count`` nodes with a reason: ``1 node has no GPU``, ``2 nodes: each has no GPU``, ``2 nodes: requests …``."""
    if reason == OTHER_REASONS:
        return for_others(count)
    if count == 1 and reason.startswith(_NODE):
        return f"1 {reason}"
    return f"{nodes(count)}: {of_each(reason)}"


def for_others(count: int) -> str:
    """``count`` nodes with reasons that are not listed."""
    return f"{nodes(count)} for {'another reason' if count == 1 else OTHER_REASONS}"


NOT_A_SHARE: Final = "not examined: not a share of one GPU"
"""Note on a request for which no moves are planned."""


def other_obstacle_note(reason: str, *, moves: bool) -> str:
    """A note that something other than capacity keeps the pod pending, now or after ``moves``; ``reason``: what, if known."""
    head = "something else blocks it, too" if moves else "it fits: something else blocks it"
    return f"{head}: {reason}" if reason else head
