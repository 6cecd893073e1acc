"""What is expected to arrive: sequences of requests drawn from the mix."""

from collections.abc import Mapping
from random import Random
from typing import Final, NamedTuple, Self

from gpushare.ledger.placement.fragmentation.workload_mix import Kind

#: Sequences of offers, and the offers of each.
SEQUENCES: Final = 24
OFFERS: Final = 64
_SEED: Final = 20231
"""Any number: equal mixes must give equal sequences."""


class Outlook(NamedTuple):
    """``offers`` are ``SEQUENCES`` sequences of ``OFFERS`` places in ``kinds``, one behind the other."""

    kinds: tuple[Kind, ...]
    offers: tuple[int, ...]

    @classmethod
    def of(cls, mix: Mapping[Kind, int]) -> Self:
        """Draw from the kinds that request a GPU, each as often as its frequency says to within one."""
        wanted = sorted((kind, weight) for kind, weight in mix.items() if kind.gpus)
        if not wanted:
            return cls((), ())
        kinds, weights = zip(*wanted, strict=True)
        total, drawn = sum(weights), SEQUENCES * OFFERS
        offers: list[int] = []
        covered = 0
        for place, weight in enumerate(weights):
            covered += weight
            # The offers number 0.5, 1.5, … of ``drawn`` that are covered by the kinds up to this one.
            upto = (2 * covered * drawn + total) // (2 * total)
            offers += [place] * (upto - len(offers))
        Random(_SEED).shuffle(offers)  # noqa: S311 # no secret
        return cls(kinds, tuple(offers))
