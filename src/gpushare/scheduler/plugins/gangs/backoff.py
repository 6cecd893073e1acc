"""Backoff of namespaces whose gangs reserved room and did not use it. Pure: the caller passes times, in seconds."""

from typing import Final

#: Seconds without reservations after a gang did not use its room. Doubled after each failure in a row.
REST_S: Final = 10.0
MOST_REST_S: Final = 600.0
#: Seconds for which a namespace is remembered after its backoff.
_REMEMBERED_S: Final = 600.0


class Rests:
    """Counts for each namespace how often in a row a gang's reserved room was not used.

    It counts by namespace and not by gang, as a user who wants to block room could create a new gang each time.
    """

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, float]] = {}

    def record_failure(self, namespace: str, now_s: float) -> float:
        """A gang did not use its reserved room; returns until when the namespace gets no reservations."""
        times, _ = self._failures.get(namespace, (0, 0.0))
        self._failures[namespace] = (times + 1, now_s)
        return self.until_s(namespace)

    def until_s(self, namespace: str) -> float:
        """Until when gangs of the namespace get no reservations; 0 without failures."""
        times, last_s = self._failures.get(namespace, (0, 0.0))
        return last_s + min(REST_S * 2.0 ** min(times - 1, 16), MOST_REST_S) if times else 0.0

    def requires_every_request(self, namespace: str) -> bool:
        """Whether a gang of the namespace gets room only after kube-scheduler has filtered every pod that needs it."""
        return namespace in self._failures

    def forget(self, now_s: float) -> None:
        """Forget namespaces whose last backoff ended long ago."""
        for namespace in [name for name in self._failures if now_s > self.until_s(name) + _REMEMBERED_S]:
            del self._failures[namespace]
