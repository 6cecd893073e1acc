"""Exponential backoff with jitter."""

import random
from collections.abc import Callable

import msgspec

RandomFn = Callable[[], float]
chance: RandomFn = random.SystemRandom().random


class Backoff(msgspec.Struct):
    """Waits that double from ``first_s`` to ``most_s``, each reduced randomly by up to half.

    The jitter keeps a thousand node agents from retrying at the same moment.
    """

    first_s: float = 0.2
    most_s: float = 30.0
    chance: RandomFn = chance
    tries: int = 0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """The next wait in seconds, at least what the server requested."""
        full_s = min(self.first_s * 2.0 ** min(self.tries, 32), self.most_s)
        self.tries += 1
        return max(full_s * (1.0 - self.chance() / 2.0), at_least_s)

    def reset(self) -> None:
        """Start again at ``first_s``."""
        self.tries = 0
