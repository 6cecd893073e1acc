"""One fault of a GPU is one event, however its signs follow each other."""

from typing import Any

import msgspec
import pytest

from gpushare.model.device import Device
from gpushare.nodeagent.metrics import Metrics
from gpushare.nodeagent.news import NodeNews
from gpushare.nodeagent.nvml import NOT_FOUND

SOUND = Device(0, "GPU-a", 16384)


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def record(self, regarding: Any, *, reason: str, note: str, **_: Any) -> None:
        self.told.append(f"{reason}: {note}")


def sick(reason: str) -> Device:
    return msgspec.structs.replace(SOUND, healthy=False, reason=reason)


@pytest.mark.parametrize(
    ("states", "events"),
    [
        (["GPU is lost"], ["GPU is lost"]),
        (["GPU is lost", "GPU is lost"], ["GPU is lost"]),
        (["GPU is lost", NOT_FOUND], ["GPU is lost"]),
        ([NOT_FOUND, NOT_FOUND], [NOT_FOUND]),
        (["GPU is lost", NOT_FOUND, "", NOT_FOUND], ["GPU is lost", "", NOT_FOUND]),
        (["XID 79", "GPU is lost"], ["XID 79", "GPU is lost"]),
    ],
)
def test_a_lost_gpu_that_is_then_not_found_is_told_once(states: list[str], events: list[str]) -> None:
    recorder = Recorder()
    news = NodeNews("n", recorder, Metrics(), acts=lambda: True)
    before = SOUND
    for state in states:
        now = sick(state) if state else SOUND
        news.health(now, before, 60.0)
        before = now
    assert [one.rpartition(": ")[2] if "Unhealthy" in one else "" for one in recorder.told] == events
