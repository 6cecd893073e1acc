"""Time and waits."""

import time

import pytest

from gpushare.kube.backoff import Backoff
from gpushare.kube.clock import SYSTEM_CLOCK


async def test_the_system_clock_agrees_with_the_system() -> None:
    assert abs(SYSTEM_CLOCK.monotonic() - time.monotonic()) < 1.0
    assert abs(SYSTEM_CLOCK.time_ns() - time.time_ns()) < 10**9
    await SYSTEM_CLOCK.sleep(0)


@pytest.mark.parametrize(
    ("chance", "waits"), [(0.0, [1.0, 2.0, 4.0, 5.0, 5.0]), (1.0, [0.5, 1.0, 2.0, 2.5, 2.5])]
)
def test_waits_double_up_to_a_limit_and_are_shortened_by_up_to_half(
    chance: float, waits: list[float]
) -> None:
    backoff = Backoff(1.0, 5.0, chance=lambda: chance)
    assert [backoff.next_s() for _ in range(5)] == waits
    assert backoff.next_s(9.0) == 9.0
    backoff.reset()
    assert backoff.next_s() == waits[0]


def test_waits_differ() -> None:
    assert len({Backoff().next_s() for _ in range(20)}) > 1


def test_waits_stay_bounded_after_many_tries() -> None:
    backoff = Backoff(tries=10_000)
    assert backoff.next_s() <= 30.0
