"""Requests of GPU memory in MiB or in percent of a reference GPU, and their conversion to units.

MiB are rounded up, so that a pod never gets less than it requested. Percentages are rounded down, so that four pods with 25% fit one
GPU; with 4 of 15 units each, they would not. Admission converts both to ``aliyun.com/gpu-mem`` when a pod is created, so that all other
components read units, and records the original request on the pod (docs/decisions/0021).
"""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from gpushare.api import names
from gpushare.api.errors import InvalidQuantity, InvalidRequest
from gpushare.api.objects import Pod
from gpushare.api.quantity import MAX_AMOUNT, MemoryUnit, Quantity, parse_quantity

#: Our resources for GPU memory in bytes and in percent.
CONVERTED_RESOURCES: Final = (names.GPU_MEMORY, names.GPU_MEMORY_PERCENT)
#: 16 TiB, more than any GPU has. CEL cannot check whether much larger quantities are whole numbers.
MOST_MIB: Final = 1 << 24
_MIB: Final = 1 << 20


class Counting(msgspec.Struct, frozen=True):
    """A cluster's memory unit, and the MiB of the reference GPU for percentages, 0 if there is none."""

    unit: MemoryUnit = MemoryUnit.GIB
    reference_mib: int = 0

    @property
    def reference_units(self) -> int:
        """Units of the reference GPU."""
        return self.unit.count_in(self.reference_mib)

    @property
    def least_percent(self) -> int:
        """The smallest percentage that yields a unit; above 100 if the reference GPU has none."""
        return -(-100 // self.reference_units) if self.reference_units else 101

    def units_of_mib(self, mib: int, gpus: int = 1) -> int:
        """Units for ``mib`` over ``gpus`` GPUs, rounded up to equal parts per GPU."""
        return gpus * -(-mib // (gpus * self.unit.mib))

    def units_of_percent(self, percent: int, gpus: int = 1) -> int:
        """Units for ``percent`` of each of ``gpus`` GPUs, rounded down."""
        return gpus * (self.reference_units * percent // 100)


def mib_of(text: Quantity) -> int | None:
    """MiB of an amount of ``gpushare.dev/gpu-memory``; ``None`` if it is not a whole number from 1 to ``MOST_MIB``."""
    bytes_ = _whole(text)
    if bytes_ is None or bytes_ % _MIB or not 0 < bytes_ // _MIB <= MOST_MIB:
        return None
    return bytes_ // _MIB


def percent_of(text: Quantity) -> int | None:
    """An amount of ``gpushare.dev/gpu-memory.percentage``; ``None`` if it is not a whole number from 1 to 100."""
    percent = _whole(text)
    return percent if percent is not None and 1 <= percent <= 100 else None


def _whole(text: Quantity) -> int | None:
    try:
        value = parse_quantity(text)
    except InvalidQuantity:
        return None
    return int(value) if value.denominator == 1 and abs(value) <= MAX_AMOUNT else None


class Requested(msgspec.Struct, frozen=True, rename="camel"):
    """The value of ``gpushare.dev/requested``: ``6144Mi`` or ``25%`` by container, and the units used for the conversion."""

    # Users can write the annotation themselves: Python refuses to print integers of thousands of digits.
    unit_mib: Annotated[int, msgspec.Meta(gt=0, le=MOST_MIB)]
    reference_mib: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = msgspec.field(name="cardMib")
    containers: dict[str, str]


_REQUESTED: Final = msgspec.json.Decoder(Requested)


def requested_text(counting: Counting, containers: Mapping[str, str]) -> str:
    """The annotation's value, which ``read_requested`` reads."""
    note = Requested(counting.unit.mib, counting.reference_mib, dict(containers))
    return msgspec.json.encode(note).decode()


def read_requested(pod: Pod) -> Requested | None:
    """The pod's original MiB or percentage request; ``None`` if it requested units, or nothing.

    Raises ``InvalidRequest`` if the annotation is malformed.
    """
    text = (pod.metadata.annotations or {}).get(names.ANN_REQUESTED)
    if text is None:
        return None
    try:
        return _REQUESTED.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"pod {pod.key}",
            f"annotation {names.ANN_REQUESTED} cannot be read: {error}; it is written by admission: remove it from the manifest",
        ) from None
