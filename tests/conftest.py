"""What holds for every test."""

from hypothesis import HealthCheck, settings

# Tests are about what is done, not how fast: a machine may be busy. What takes long is told by --durations.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")
