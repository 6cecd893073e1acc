"""Which kinds of requests arrive, and how often: a bounded count with slow decay.

Counted per arrival and not by a clock, so that the same arrivals always result in the same mix.
"""

from typing import Final, NamedTuple

#: Weight of one arrival at first; halved at each decay.
ARRIVAL: Final = 1 << 4
#: Arrivals after which all counts are halved.
MOST_ARRIVALS: Final = 1 << 14
#: Up to so many arrivals the mix is renewed once it has grown by an eighth: in small clusters few pods say what is to be expected.
FEW_ARRIVALS: Final = 1 << 12
#: Number of kinds; one more halves all counts until there is room.
MOST_KINDS: Final = 256


class Kind(NamedTuple):
    """What a pod requests: ``units`` and ``core_percent`` of each of ``gpus`` GPUs, and thousandths of processors.

    ``whole``: unused GPUs, and all of each; ``units`` is the least that they must have.
    """

    gpus: int
    units: int
    core_percent: int = 0
    cpu_milli: int = 0
    whole: bool = False


class Mix:
    """Counts arrivals by kind.

    ``weights`` is the expected mix: kind → its frequency, in parts of ``ARRIVAL``. It is renewed after an
    eighth of the arrivals that went into it, later after as many or half of ``MOST_ARRIVALS``, so that results derived from it can be cached for a while. It is never
    modified in place.
    """

    def __init__(self) -> None:
        self._counts: dict[Kind, int] = {}
        self._arrivals = 0
        self._until_renewed = 1
        self.weights: dict[Kind, int] = {}

    def arrived(self, kind: Kind) -> None:
        """Count one arrival."""
        self._counts[kind] = self._counts.get(kind, 0) + ARRIVAL
        self._arrivals += 1
        while len(self._counts) > MOST_KINDS or self._arrivals > MOST_ARRIVALS:
            self._forget_half()
        self._until_renewed -= 1
        if self._until_renewed <= 0:
            self.weights = dict(self._counts)
            more = self._arrivals if self._arrivals >= FEW_ARRIVALS else max(self._arrivals // 8, 1)
            self._until_renewed = min(more, MOST_ARRIVALS // 2)

    def _forget_half(self) -> None:
        self._counts = {kind: count // 2 for kind, count in self._counts.items() if count > 1}
        self._arrivals //= 2
