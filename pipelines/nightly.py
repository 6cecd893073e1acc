"""What takes too long for every pull request: older Kubernetes, long and random tests, and every benchmark once."""

from collections.abc import Iterator
from typing import Final

from pipelines.ci import INSTALL
from pipelines.step import ALL, Step

#: Older versions of Kubernetes, by the name of their steps; ci runs the newest.
_OLDER: Final = {"oldest": "K8S=1.28", "previous": "K8S=1.36"}
_INSTALLED: Final = ("install",)
_BUILT: Final = ("programs",)


def _alone(name: str, command: str, timeout_s: float, needs: tuple[str, ...] = _INSTALLED) -> Step:
    return Step(name, command, timeout_s, cores=ALL, needs=needs)


def _end_to_end(name: str, version: str) -> Iterator[Step]:
    """Every end-to-end test on a version."""
    for suite in ("e2e", "e2e-parts"):
        command = f"make {suite} {version} MARKS="
        yield Step(
            f"{suite}-{name}", command, 3600, needs=_BUILT, rerun=f"{command} E2E_ARGS=\"-k '{{names}}'\""
        )


STEPS: Final = (
    INSTALL,
    _alone(
        "programs",
        " && ".join(
            (
                "make e2e-programs",
                *(f"make e2e-programs {version}" for version in _OLDER.values()),
                "make e2e-programs HOST=nvidia-runtime",
                "make e2e-archives",
                "make e2e-engines",
            )
        ),
        5400,
    ),
    *(step for name, version in _OLDER.items() for step in _end_to_end(name, version)),
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
    # Cgroups of version 2, AppArmor and SELinux. An emulated machine takes a quarter of an hour.
    *(
        _alone(f"e2e-{security}", f"make e2e-virtual SECURITY={security}", 3600, needs=_BUILT)
        for security in ("apparmor", "selinux")
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
    _alone("bench-dra", "make bench-dra", 1200, needs=_BUILT),
    _alone("bench-placement", "make bench-placement", 1200),
    _alone("bench-departures", "make bench-departures", 1200),
    _alone("load", "make load", 900),
    _alone("gpu-check", "make gpu-check DRIVER=fakegpu", 900),
)
