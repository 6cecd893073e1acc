"""What containers have used of their GPUs, from whoever knows it: one form for all sources."""

from typing import Final, NamedTuple

#: Part of the looks that may have been without a word of memory: a process that has only begun has no figure for a moment.
FEW_UNTOLD: Final = 0.05


class Used(NamedTuple):
    """What one container used of one GPU (UUID) over ``seen_s`` seconds. MiB, and percent of the GPU's time.

    Quantiles of MiB are those of the moments in which it was there, of percent those in which it computed. ``container`` is empty where those of a pod cannot be told apart.
    """

    namespace: str
    pod: str
    container: str
    gpu: str
    seen_s: float
    peak_mib: int
    p95_mib: int
    last_mib: int
    peak_percent: int
    p95_percent: int
    throttled: float = 0.0
    """For how much of the time in which it computed its threads waited for their share of compute: 0 to 1."""
    uid: str = ""
    """Of the pod; empty where the source knows pods by name alone. A pod that is made again has its name again, and is another."""
    memory_told: bool = True
    """Whether the driver tells how much memory it holds; else it is more than the figures say."""


class Figures(NamedTuple):
    """All that a source told. ``source`` names it for people; ``missing`` says what it could not tell, a text each.

    ``since`` is when its memory begins at the latest (seconds since 1970; ``None``: long ago), ``begins`` from when on figures are at
    the earliest, as far as that is known.
    """

    source: str
    used: tuple[Used, ...]
    missing: tuple[str, ...] = ()
    since: int | None = None
    begins: int | None = None
