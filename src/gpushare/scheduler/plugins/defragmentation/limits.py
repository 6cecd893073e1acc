"""Limits of defragmentation, as set on the command line. Separate from the plugin, which is imported only if it is enabled."""

import msgspec

from gpushare.planning.defragmentation import MOST_MOVES


class Limits(msgspec.Struct, frozen=True):
    """At most ``most_moves`` pods are moved every ``interval_s`` seconds, for a pod that has been pending for ``wait_s`` seconds."""

    interval_s: float = 300.0
    wait_s: float = 120.0
    most_moves: int = MOST_MOVES
