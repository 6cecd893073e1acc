"""How long tests of random examples run: briefly in ``make test``, at length in ``make soak``.

Hypothesis marks its own tests, others are marked ``randomized``; ``make soak`` runs both.
"""

import os
import random

#: Whether this is a round of ``make soak``: with new examples, and more of them.
SOAK = bool(os.environ.get("GPUSHARE_SOAK"))


def rounds(test: int, *, soak: int) -> int:
    """How many examples to try: enough in ``make test`` to find the faults that the test was written for."""
    return soak if SOAK else test


def seeds(count: int) -> range:
    """As many seeds: the same ones in every ``make test``, others in each round of ``make soak``."""
    first = random.SystemRandom().randrange(1 << 32) if SOAK else 0
    print(f"seeds from {first} on")  # pytest shows it if the test fails
    return range(first, first + count)
