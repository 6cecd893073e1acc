"""Settings for all tests."""

import gc
import logging
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from scripts.coverage_floor import FLOORS

_TESTS: Final = Path(__file__).parent
_WHOLE: Final = _TESTS / "integration" / "whole"

# Tests check results, not speed: a machine may be busy. --durations shows slow tests.
_busy = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
# Results are reproducible: the same examples each time, everywhere. ``make soak`` tries others.
settings.register_profile("the same each time", _busy, derandomize=True)
settings.register_profile("soak", _busy, derandomize=False, print_blob=True)
settings.load_profile("soak" if os.environ.get("GPUSHARE_SOAK") else "the same each time")

# A make started by a test is independent of the one that started the tests and must not inherit its flags.
for _name in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"):
    os.environ.pop(_name, None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of whole clusters, which wait half of their time, start first: others compute meanwhile."""
    whole = f"{_WHOLE}{os.sep}"
    items.sort(key=lambda item: not str(item.path).startswith(whole))


def pytest_collection_finish() -> None:
    """Thousands of tests live as long as the process: the garbage collector need not scan them repeatedly."""
    gc.freeze()


def _is_measured(item: pytest.Item) -> bool:
    """Whether the lines that a test runs count for the coverage floors.

    Tracing doubles the time. Only tests of a folder with a floor are traced, and none with random examples: a line
    reached only by chance is not tested.
    """
    if item.get_closest_marker("no_cover") or item.get_closest_marker("hypothesis"):
        return False
    return not FLOORS.keys().isdisjoint(item.path.relative_to(_TESTS).parts)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Trace only measured tests, also in xdist's workers, which start two measurements, of which pytest-cov 7.1 pauses one."""
    tracer = None if _is_measured(item) else sys.gettrace()
    if tracer is not None:
        sys.settrace(None)
    try:
        return (yield)
    finally:
        if tracer is not None:
            sys.settrace(tracer)


@pytest.fixture(autouse=True)
def logging_stays() -> Iterator[None]:
    """Undo a command's changes to logging at the end of the test."""
    root, own = logging.getLogger(), logging.getLogger("gpushare")
    handlers, levels = root.handlers[:], (root.level, own.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])
