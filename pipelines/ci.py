"""The checks of a pull request; installs what they need on a bare Debian 12."""

from typing import Final

from pipelines.step import ALL, Step

#: All installations in one step: neither two makes of .venv nor two apt-get may run in parallel.
INSTALL: Final = Step(
    "install",
    " && ".join(
        (
            "scripts/install-system-packages",
            "scripts/install-browser",
            "scripts/install-e2e-packages",
            "scripts/install-c-tools",
            "scripts/unpack-docker",
            "make build/stamps/test build/stamps/docs fakegpu isolation lookahead proto",
        )
    ),
    timeout_s=900,
    cores=ALL,
)

#: One CPU each, although some have more workers: they are idle about half of the time. The longest come first.
STEPS: Final = (
    INSTALL,
    # The real components, from Go modules (built once, then cached), and the images.
    Step("programs", "make e2e-programs e2e-archives", 2400, cores=ALL, needs=("install",)),
    Step("check", "make check", 600, needs=("install",)),
    Step("e2e", "make e2e", 2700, needs=("programs",), rerun="make e2e E2E_ARGS=\"-k '{names}'\""),
    Step("test", "make test", 1800, needs=("install",), rerun='make test PYTEST_ARGS="-n0 {ids}"'),
    Step(
        "e2e-parts",
        "make e2e-parts",
        2700,
        needs=("programs",),
        rerun="make e2e-parts E2E_ARGS=\"-k '{names}'\"",
    ),
    Step(
        "docs-test",
        "make docs-test",
        1800,
        needs=("install",),
        rerun="make docs-test DOCS_ARGS=\"-k '{names}'\"",
    ),
    Step("bench-smoke", "make bench-smoke", 900, needs=("programs",)),
    Step("run", "make run ARGS=--exit", 600, needs=("install",)),
    Step("docs", "make docs", 600, needs=("install",)),
)
