"""Kubernetes quantities as exact integers, and the unit of GPU memory."""

import re
from enum import Enum
from fractions import Fraction
from typing import Final

from gpushare.api.errors import InvalidQuantity, InvalidUnit

#: Kubernetes keeps resource amounts in an int64.
MAX_AMOUNT: Final = 2**63 - 1

_QUANTITY = re.compile(
    r"([+-]?)(\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:([eE][+-]?\d{1,3})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII
)
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}

Quantity = str | int | float


def parse_quantity(text: Quantity, subject: str = "") -> Fraction:
    """Read a quantity (``"3"``, ``"2Ki"``, ``"1e3"``, ``"500m"``, or a bare JSON number) exactly.

    Source of the grammar: k8s.io/apimachinery ``resource.Quantity``.
    Raises ``InvalidQuantity`` naming ``subject`` for anything else.
    """
    if isinstance(text, bool):
        raise InvalidQuantity(subject, f"{text!r} is not a valid quantity; use a number such as 3")
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise InvalidQuantity(
            subject, f"{str(text)[:80]!r} is not a valid quantity; use a number such as 3 or 2Ki"
        )
    sign, digits, exponent, suffix = match.groups()
    value = Fraction(digits)
    if exponent is not None:
        value *= Fraction(10) ** int(exponent[1:])
    elif suffix in _BINARY:
        value *= 1024 ** _BINARY[suffix]
    else:
        value *= Fraction(10) ** _DECIMAL[suffix or ""]
    return -value if sign == "-" else value


def parse_amount(text: Quantity, subject: str = "") -> int:
    """Read a quantity that must be a whole number from 0 to 2**63 - 1, as extended resources are.

    Raises ``InvalidQuantity`` naming ``subject`` when it is fractional, negative or too large.
    """
    if isinstance(text, str) and text.isdecimal() and text.isascii() and len(text) < 19:
        return int(text)  # fast path for nearly all objects; exact arithmetic costs ten times as much
    value = parse_quantity(text, subject)
    if value.denominator != 1:
        raise InvalidQuantity(subject, f"{text} is not a whole number; extended resources have no fractions")
    if value < 0:
        raise InvalidQuantity(subject, f"{text} is negative; use 0 or more")
    if value > MAX_AMOUNT:
        raise InvalidQuantity(
            subject, f"{str(text)[:80]} is larger than {MAX_AMOUNT}, the largest amount Kubernetes keeps"
        )
    return int(value)


class MemoryUnit(Enum):
    """The unit of ``aliyun.com/gpu-mem``: the value is its size in MiB."""

    GIB = 1024
    MIB_128 = 128

    @property
    def mib(self) -> int:
        """Size in MiB."""
        return self.value

    @property
    def setting(self) -> str:
        """The value in the chart's ``gpuMemoryUnit``: ``1GiB`` or ``128MiB``."""
        return "1GiB" if self is MemoryUnit.GIB else "128MiB"

    @property
    def heading(self) -> str:
        """The column header in tables: ``GiB`` or ``128MiB``."""
        return "GiB" if self is MemoryUnit.GIB else "128MiB"

    @classmethod
    def parse(cls, text: str, subject: str = "gpuMemoryUnit") -> "MemoryUnit":
        """Read ``1GiB``, ``128MiB`` or their documented synonyms ``GiB``, ``MiB``.

        Raises ``InvalidUnit`` for anything else.
        """
        try:
            return _UNITS[text]
        except (KeyError, TypeError):
            raise InvalidUnit(
                subject, f"unknown GPU memory unit {text!r}; use 1GiB (or GiB) or 128MiB (or MiB)"
            ) from None

    def count_in(self, total_mib: int) -> int:
        """Number of whole units of a GPU with ``total_mib`` MiB: 15 of 1 GiB in 16160 MiB."""
        return total_mib // self.value


_UNITS: Final = {
    "1GiB": MemoryUnit.GIB,
    "GiB": MemoryUnit.GIB,
    "128MiB": MemoryUnit.MIB_128,
    "MiB": MemoryUnit.MIB_128,
}


def granted_mib(total_mib: int, units: int, device_units: int) -> int:
    """MiB of ``units`` of a GPU's ``device_units``: ``floor(total * units / device_units)``.

    2 of 15 on 16160 MiB are 2154 MiB (spec §3, example 5). With one unit size, a set of shares fits by units exactly if it fits by MiB
    (docs/architecture.md).
    """
    return total_mib * units // device_units
