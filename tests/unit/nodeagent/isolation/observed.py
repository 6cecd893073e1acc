"""A clock that the test advances, and events as they are recorded."""

from gpushare.api.objects import ObjectReference


class Clock:
    """Time that passes only when the test advances it."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return int(self.now_s * 1e9)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError(seconds)


class Events:
    """Recorded events: pod, reason, note."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, str, str]] = []

    def record(
        self,
        regarding: ObjectReference,
        *,
        kind: str,
        reason: str,
        action: str,
        note: str,
        cause: str = "",
        occurrence: str = "each",
    ) -> None:
        self.recorded.append((regarding.name, reason, note))

    @property
    def reasons(self) -> list[tuple[str, str]]:
        """Of all recorded events: pod, reason."""
        return [(name, reason) for name, reason, _ in self.recorded]
