"""GPU usage of containers over time, in a form common to all sources."""

from typing import Final, NamedTuple

#: Ratio of samples that may lack a memory figure: a process that has just started has none for a moment.
MAX_UNKNOWN_RATIO: Final = 0.05


class Used(NamedTuple):
    """What one container used of one GPU (UUID) over ``seen_s`` seconds, in MiB and in percent of the GPU's time.

    Quantiles of MiB are over the samples in which it ran, those of percent over the samples in which it computed. ``container`` is empty
    where the containers of a pod cannot be distinguished.
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
    """Ratio of its busy time in which its threads waited for their share of compute: 0 to 1."""
    uid: str = ""
    """UID of the pod; empty where the source knows pods by name only. A pod that is created again under the same name is another pod."""
    memory_known: bool = True
    """Whether the driver reports the container's memory; if not, it uses more than the figures show."""


class Figures(NamedTuple):
    """The figures of a source. ``source`` is its name in output; ``missing``: messages about figures that it lacks.

    ``since``: the latest start of any record (seconds since 1970; ``None``: long ago). ``begins``: the earliest start, if known.
    """

    source: str
    used: tuple[Used, ...]
    missing: tuple[str, ...] = ()
    since: int | None = None
    begins: int | None = None
