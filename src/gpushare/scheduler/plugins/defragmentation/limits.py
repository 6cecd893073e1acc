"""Limits of defragmentation, as set on the command line. Separate from the plugin, which is imported only if it is enabled."""

import msgspec

from gpushare.planning.defragmentation import MOST_MOVES


class Limits(msgspec.Struct, frozen=True):
    """At most ``most_moves`` pods are moved every ``interval_s`` seconds, for a pod that has been pending for ``wait_s`` seconds."""

    interval_s: float = 300.0
    wait_s: float = 120.0
    most_moves: int = MOST_MOVES

    def __post_init__(self) -> None:
        """Raises ``ValueError`` with the name of the option."""
        if not 1 <= self.interval_s <= 86400:
            raise ValueError(f"--defragmentation-interval {self.interval_s}: from 1 to 86400 seconds")
        if not 0 <= self.wait_s <= 86400:
            raise ValueError(f"--defragmentation-min-pending {self.wait_s}: from 0 to 86400 seconds")
        if not 1 <= self.most_moves <= MOST_MOVES:
            raise ValueError(f"--defragmentation-max-evictions {self.most_moves}: from 1 to {MOST_MOVES}")
