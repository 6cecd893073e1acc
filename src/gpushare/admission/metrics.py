"""The webhook's metrics."""

from typing import Final

from prometheus_client.metrics import Counter, Histogram

from gpushare.httpserver.probes import Exposition

_BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics(Exposition):
    """The webhook's metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.review_seconds = Histogram(
            "gpushare_admission_review_duration_seconds",
            "Time from the first byte of a review's body to the response.",
            ["path"],
            registry=self.registry,
            buckets=_BUCKETS_S,
        )
        self.reviews = Counter(
            "gpushare_admission_reviews",
            "Reviews by path and HTTP status.",
            ["path", "code"],
            registry=self.registry,
        )
