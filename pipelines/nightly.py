"""What takes too long for every pull request: the oldest Kubernetes, long and random tests, and every benchmark once."""

from typing import Final

from pipelines.ci import INSTALL
from pipelines.step import ALL, Step

OLDEST: Final = "K8S=1.28"
_INSTALLED: Final = ("install",)
_BUILT: Final = ("programs",)


def _alone(name: str, command: str, timeout_s: float, needs: tuple[str, ...] = _INSTALLED) -> Step:
    return Step(name, command, timeout_s, cores=ALL, needs=needs)


STEPS: Final = (
    INSTALL,
    _alone(
        "programs",
        f"make e2e-programs && make e2e-programs {OLDEST} && make e2e-archives && make e2e-engines",
        3600,
    ),
    Step(
        "e2e-oldest",
        f"make e2e {OLDEST} MARKS=",
        3600,
        needs=_BUILT,
        rerun=f"make e2e {OLDEST} MARKS= E2E_ARGS=\"-k '{{names}}'\"",
    ),
    Step(
        "e2e-parts-oldest",
        f"make e2e-parts {OLDEST} MARKS=",
        3600,
        needs=_BUILT,
        rerun=f"make e2e-parts {OLDEST} MARKS= E2E_ARGS=\"-k '{{names}}'\"",
    ),
    # What ci leaves out, on the newest Kubernetes.
    Step(
        "e2e-nightly",
        "make e2e MARKS=nightly",
        3600,
        needs=_BUILT,
        rerun="make e2e MARKS=nightly E2E_ARGS=\"-k '{names}'\"",
    ),
    Step(
        "e2e-parts-nightly",
        "make e2e-parts MARKS=nightly",
        3600,
        needs=_BUILT,
        rerun="make e2e-parts MARKS=nightly E2E_ARGS=\"-k '{names}'\"",
    ),
    _alone("soak", "make soak MINUTES=5", 1200),
    _alone("soak-slow", "make soak-slow", 1800),
    _alone("race-isolation", "make race-isolation", 600),
    _alone("sanitize", "make sanitize", 1200),
    _alone("valgrind", "make valgrind", 1200),
    _alone("fuzz", "make fuzz FUZZ_SECONDS=60", 600),
    _alone("clients", "make clients", 3600),
    _alone("bench", "make bench", 1800),
    # With $HAMI (the folder of HAMi-core's library, which is not part of the project) compared with it, which takes twice as long.
    _alone("bench-isolation", "make bench-isolation", 3600),
    _alone("bench-cluster", 'make bench-cluster ARGS="--repeats 2"', 2400, needs=_BUILT),
    _alone("bench-placement", "make bench-placement", 1200),
    _alone("load", "make load", 900),
    _alone("gpu-check", "make gpu-check DRIVER=fakegpu", 900),
)
