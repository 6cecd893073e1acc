"""The rendered result of reading the cluster."""

from typing import NamedTuple


class Shown(NamedTuple):
    """``text`` for stdout; ``remarks``: lines for stderr."""

    text: str
    remarks: "tuple[str, ...]"
