"""What holds for every test."""

import logging
import os
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

# Tests are about what is done, not how fast: a machine may be busy. What takes long is told by --durations.
_busy = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
# A tree passes or it does not: the same examples each time, everywhere. Others are looked for by ``make soak``.
settings.register_profile("the same each time", _busy, derandomize=True)
settings.register_profile("soak", _busy, derandomize=False, print_blob=True)
settings.load_profile("soak" if os.environ.get("GPUSHARE_SOAK") else "the same each time")

# A make that a test starts is a reader's own, not a part of the one that started the tests: that one's flags are not its.
for _name in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"):
    os.environ.pop(_name, None)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Nothing is measured in a test with ``no_cover``: xdist's workers start two measurements, of which pytest-cov 7.1 pauses one."""
    tracer = sys.gettrace() if item.get_closest_marker("no_cover") else None
    if tracer is not None:
        sys.settrace(None)
    try:
        return (yield)
    finally:
        if tracer is not None:
            sys.settrace(tracer)


@pytest.fixture(autouse=True)
def logging_stays() -> Iterator[None]:
    """What a command sets up for its process holds until the test that tried it ends."""
    root, own = logging.getLogger(), logging.getLogger("gpushare")
    handlers, levels = root.handlers[:], (root.level, own.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])
