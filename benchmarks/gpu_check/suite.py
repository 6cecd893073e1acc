"""The tests of the isolation libraries on this machine's driver, without those about the fake driver's sizes and speeds."""

import importlib.util
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator

from benchmarks.gpu_check.building import HERE, ROOT
from benchmarks.gpu_check.lab import Lab
from benchmarks.gpu_check.report import Row, not_run, promise
from benchmarks.gpu_check.running import Outcome

TITLE = "The tests of isolation"

TESTS = ROOT / "tests" / "integration" / "isolation"
NEEDED = ("pytest", "hypothesis")
ENDED = re.compile(
    r"^\S+::(?P<name>\S.*?) (?P<how>PASSED|FAILED|ERROR|SKIPPED)(?: \((?P<why>.*?)\.*\)?)?(?: +\[ *\d+%\])?$"
)


def judged(outcome: Outcome) -> Iterator[Row]:
    """Rows from pytest's output, which may be incomplete."""
    lines = outcome.out.splitlines()
    tests = [found for found in map(ENDED.match, lines) if found]
    passed = sum(test["how"] == "PASSED" for test in tests)
    failures = re.findall(
        r"^(?:FAILED|ERROR) (\S+?\.py)(?:::(\S+(?:\[.*?\])?))? - (.*)$", outcome.out, re.MULTILINE
    )
    whys = {name: why for _, name, why in failures}
    for file in (file for file, name, _ in failures if not name):
        yield promise(file.rpartition("/")[2], "can be read", whys[""], False)
    for test in tests:
        if test["how"] in {"FAILED", "ERROR"}:
            yield promise(test["name"], "passes", whys.get(test["name"], test["how"].lower()), False)
    skipped = Counter(test["why"] or "skipped" for test in tests if test["how"] == "SKIPPED")
    for why, count in skipped.items():
        yield not_run(f"{count} tests", why)
    if outcome.status is None and passed:
        # Each test bounds its own programs: the machine is slow.
        yield not_run("the rest of the tests", f"{passed} had passed when the section's time was over")
    elif outcome.status in (0, 1):
        yield promise("tests", "pass", f"{passed} passed", passed > 0)
    else:
        yield promise("tests", "come to their end", f"{passed} passed, then: {outcome.trouble()}", False)


def rows(lab: Lab) -> Iterator[Row]:
    """A row for each test that failed, one for each reason to skip some, and one for all."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        yield not_run("tests/integration/isolation", f"not installed: {', '.join(missing)}")
        return
    # Third-party packages may contain a folder `tests`, which would take precedence over ours, as ours is no package.
    ours = lab.folder / "ours" / "tests"
    ours.mkdir(parents=True)
    (ours / "__init__.py").write_text(f"__path__ = [{str(ROOT / 'tests')!r}]\n")
    path = [str(ours.parent), str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH")]
    settings = {
        "GPUSHARE_TEST_DRIVER": f"{lab.driver.cuda}:{lab.driver.management}",
        "GPUSHARE_TEST_GPU": f"{lab.uuid}:{lab.total_mib}:{lab.context_mib()}",
        "PYTHONPATH": ":".join(filter(None, path)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "400",
    }
    pytest = [sys.executable, "-m", "pytest", "-c", str(HERE / "pytest.ini"), f"--rootdir={ROOT}"]
    quiet = [
        "-p",
        "no:cacheprovider",
        "--continue-on-collection-errors",
        "-v",
        "-rfE",
        "--tb=line",
        f"--basetemp={lab.folder / 'pytest'}",
    ]
    yield from judged(lab.run(None, *pytest, *quiet, TESTS, timeout_s=1000, **settings))
