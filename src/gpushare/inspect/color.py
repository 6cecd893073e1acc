"""Colours, for terminals."""

import os
from typing import Final, TextIO

_SEQUENCES: Final = {"red": "\x1b[31m", "green": "\x1b[32m", "yellow": "\x1b[33m", "bold": "\x1b[1m"}
_RESET: Final = "\x1b[0m"


class Paint:
    """Colours text if ``out`` is a terminal (``None``: never); ``$NO_COLOR`` (any value) and ``TERM=dumb`` turn it off."""

    def __init__(self, out: "TextIO | None" = None) -> None:
        self._on = (
            out is not None
            and out.isatty()
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
        )

    def __call__(self, colour: str, text: str) -> str:
        """``text`` in that colour."""
        return f"{_SEQUENCES[colour]}{text}{_RESET}" if self._on else text
