"""Which endpoints of a process are served on which of its addresses, so that each can be exposed separately."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

PROBES: Final = "probes"
METRICS: Final = "metrics"
#: Everything else: what only authorized readers get, or the dashboard.
REST: Final = "pages"
ALL: Final = frozenset({PROBES, METRICS, REST})

Address = tuple[str, int]


class Door(NamedTuple):
    """Host and port (0: any free one), and the kinds of endpoints served there."""

    address: Address
    pages: frozenset[str]


def kind_of(path: str) -> str:
    """``PROBES``, ``METRICS`` or ``REST``."""
    if path in ("/healthz", "/readyz"):
        return PROBES
    return METRICS if path == "/metrics" or path.startswith("/metrics/") else REST


def elsewhere(path: str, pages: Collection[str]) -> str:
    """Why a listener with ``pages`` does not serve ``path``; empty if it does."""
    return (
        "" if kind_of(path) in pages else f"no {path} on this port; it is served on another port of the pod"
    )


def doors(general: Address | None, apart: Mapping[str, Address | None]) -> list[Door]:
    """``apart``: kinds with an address of their own; ``general`` serves the others (``None``: not served)."""
    own = {kind: at for kind, at in apart.items() if at is not None}
    found = [] if general is None else [Door(general, ALL - own.keys())]
    return found + [Door(at, frozenset({kind})) for kind, at in own.items()]
