"""Counts in words that read right whatever the count is: of pods, and of nodes that refuse for a reason."""

from typing import Final

from gpushare.api.request.pluralize import counted

_NODE: Final = "node "
OTHER_REASONS: Final = "other reasons"
"""What stands for reasons that are too rare to be told apart."""


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
    """The reason of a node, said of several: ``node has no GPU`` becomes ``each has no GPU``, others say nothing of a node."""
    return f"each {reason[len(_NODE) :]}" if reason.startswith(_NODE) else reason


def on_nodes(count: int, reason: str) -> str:
    """So many nodes refuse for a reason: ``1 node has no GPU``, ``2 nodes: each has no GPU``, ``2 nodes: asks for …``."""
    if reason == OTHER_REASONS:
        return for_others(count)
    if count == 1 and reason.startswith(_NODE):
        return f"1 {reason}"
    return f"{nodes(count)}: {of_each(reason)}"


def for_others(count: int) -> str:
    """So many nodes refuse for reasons that are not told."""
    return f"{nodes(count)} for {'another reason' if count == 1 else OTHER_REASONS}"


NOT_A_SHARE: Final = "not looked at: not a share of one GPU"
"""Of a request that no moves are planned for."""


def kept_besides(reason: str, *, moves: bool) -> str:
    """That something else than capacity keeps a pod from a GPU with room, or with room after ``moves``; ``reason``: what, if known."""
    head = (
        "something else keeps it from there, too"
        if moves
        else "there is room: something else keeps it from there"
    )
    return f"{head}: {reason}" if reason else head
