"""The file from which the playground's API server reads the memory unit, which may change while it runs."""

import os
from pathlib import Path

from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.unit_conversion import Counting


class UnitFile:
    """``UNIT MIB`` in one line: the memory unit, and the memory of the reference GPU for percentages."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, counting: Counting) -> None:
        """Write it atomically, for concurrent readers."""
        beside = self._path.with_name(f"{self._path.name}.new")
        beside.write_text(f"{counting.unit.setting} {counting.reference_mib}\n")
        os.replace(beside, self._path)

    def __call__(self) -> Counting:
        """Its current content. Raises ``OSError`` or ``ValueError`` if it cannot be read."""
        unit, _, reference_mib = self._path.read_text().partition(" ")
        return Counting(MemoryUnit.parse(unit, str(self._path)), int(reference_mib))
