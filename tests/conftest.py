"""What holds for every test."""

import os

from hypothesis import HealthCheck, settings

# Tests are about what is done, not how fast: a machine may be busy. What takes long is told by --durations.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

# A make that a test starts is a reader's own, not a part of the one that started the tests: that one's flags are not its.
for _name in ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"):
    os.environ.pop(_name, None)
