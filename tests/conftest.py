"""What holds for every test."""

import logging
import os
from collections.abc import Iterator

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


@pytest.fixture(autouse=True)
def logging_stays() -> Iterator[None]:
    """What a command sets up for its process holds until the test that tried it ends."""
    root, own = logging.getLogger(), logging.getLogger("gpushare")
    handlers, levels = root.handlers[:], (root.level, own.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])
