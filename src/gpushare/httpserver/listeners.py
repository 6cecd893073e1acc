"""Which pages of a process are answered at which of its addresses: whoever may read one need not reach the others."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

PROBES: Final = "probes"
METRICS: Final = "metrics"
#: All else: what is told to those alone who show that they may read it, or the page of the dashboard.
REST: Final = "pages"
ALL: Final = frozenset({PROBES, METRICS, REST})

Address = tuple[str, int]


class Door(NamedTuple):
    """Host and port (0: any), and the kinds of pages that are answered there."""

    address: Address
    pages: frozenset[str]


def kind_of(path: str) -> str:
    """``PROBES``, ``METRICS`` or ``REST``."""
    if path in ("/healthz", "/readyz"):
        return PROBES
    return METRICS if path == "/metrics" or path.startswith("/metrics/") else REST


def elsewhere(path: str, pages: Collection[str]) -> str:
    """Why a door with ``pages`` does not answer ``path``; empty where it does."""
    return "" if kind_of(path) in pages else f"no {path} at this port; another one of the pod has it"


def doors(general: Address | None, apart: Mapping[str, Address | None]) -> list[Door]:
    """``apart``: addresses of kinds that have one of their own; ``general`` has the others (``None``: they are answered nowhere)."""
    own = {kind: at for kind, at in apart.items() if at is not None}
    found = [] if general is None else [Door(general, ALL - own.keys())]
    return found + [Door(at, frozenset({kind})) for kind, at in own.items()]
