"""What the scheduler tells Prometheus."""

from typing import Final

from prometheus_client.metrics import Counter, Histogram

from gpushare.serving.probes import Exposition

_BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics(Exposition):
    """The scheduler's metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.verb_seconds = Histogram(
            "gpushare_scheduler_verb_duration_seconds",
            "Time from a verb's body being read to its answer being ready.",
            ["verb"],
            registry=self.registry,
            buckets=_BUCKETS_S,
        )
        self.binds = Counter(
            "gpushare_scheduler_binds", "Bind calls by result.", ["result"], registry=self.registry
        )
        self.errors = Counter(
            "gpushare_scheduler_refused_bodies",
            "Bodies that could not be read.",
            ["verb"],
            registry=self.registry,
        )
        self.moved = Counter(
            "gpushare_scheduler_defragmentations",
            "Times that pods were to be moved for one that waited, by what came of it.",
            ["result"],
            registry=self.registry,
        )
