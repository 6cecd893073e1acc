"""What a look at the cluster comes to."""

from typing import NamedTuple


class Shown(NamedTuple):
    """``text`` for stdout, and ``remarks`` for stderr, a line each."""

    text: str
    remarks: "tuple[str, ...]"
