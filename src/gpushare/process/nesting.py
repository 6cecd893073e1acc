"""How deeply nested JSON may be."""

import sys
from typing import Final

#: API servers store objects with 10,000 levels, in a ResourceClaim's parameters for example; msgspec counts levels as calls. At twice as
#: many the C stack of a thread (8 MiB) is nearly full.
_MOST_CALLS: Final = 10_500


def accept_deep_json() -> None:
    """Let the process decode whatever an API server stores: one object that cannot be decoded makes its whole list unreadable."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _MOST_CALLS))
