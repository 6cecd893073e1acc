"""The isolation backend of a node, by its mode and the option ``--isolation``. Pure."""

from typing import NamedTuple

from gpushare.api.node.enforcement_text import cannot_text
from gpushare.api.node.modes import BackendKind, NodeMode
from gpushare.nodeagent.isolation.options import AskedIsolation


class Backing(NamedTuple):
    """A backend, and why it is used."""

    kind: BackendKind
    why: str


def backing(asked: AskedIsolation, mode: NodeMode) -> Backing:
    """The backend of a node in ``mode``."""
    if not mode.isolated:
        return Backing("none", mode.trusts_text)
    if asked is AskedIsolation.NONE:
        return Backing("none", f"mode {mode.value} requires isolation, but --isolation none disables it")
    if asked is AskedIsolation.AUTO:
        return Backing(mode.backend, f"mode {mode.value}")
    return Backing(asked.value, f"mode {mode.value}, and --isolation {asked.value} is set")


def cannot(mode: NodeMode, why: str) -> Backing:
    """No backend, on a node in ``mode`` with ``--isolation auto`` that cannot isolate. Short: kubectl describe cuts at 140 characters."""
    return Backing("none", cannot_text(mode, why))
