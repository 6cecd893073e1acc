"""Where the time of a test run goes: `pytest -p tests.where_time_goes`, then `python -m tests.where_time_goes`.

Each process writes build/profile/PID.jsonl: a line for each phase of a test and each set-up of a fixture, with its wall seconds and
the processor seconds of this process and of those of its children that ended meanwhile. The rest of the wall time is waiting.
"""

import collections
import json
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any

import pytest

FOLDER = Path("build/profile")

_file: IO[str] | None = None


def pytest_configure(config: pytest.Config) -> None:
    global _file
    if hasattr(config, "workerinput") or config.getoption("numprocesses", default=None) in (None, 0):
        FOLDER.mkdir(parents=True, exist_ok=True)
        _file = (FOLDER / f"{os.getpid()}.jsonl").open("w", buffering=1)


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _write(kind: str, where: str, wall_s: float, cpu_s: float) -> None:
    if _file is not None:
        _file.write(json.dumps([kind, where, round(wall_s, 4), round(cpu_s, 4)]) + "\n")


def _measured(kind: str, where: str) -> Generator[None, Any, Any]:
    wall, cpu = time.monotonic(), _cpu_s()
    result = yield
    _write(kind, where, time.monotonic() - wall, _cpu_s() - cpu)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _measured("setup", item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _measured("call", item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _measured("teardown", item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, Any, Any]:
    return (yield from _measured("fixture", f"{fixturedef.baseid}::{fixturedef.argname}"))


def main() -> None:
    """Print seconds by test file, by fixture and by test, the most first."""
    rows = [json.loads(line) for file in FOLDER.glob("*.jsonl") for line in file.open()]
    tables: dict[str, dict[str, list[float]]] = {
        name: collections.defaultdict(lambda: [0.0, 0.0, 0.0]) for name in ("file", "fixture", "test")
    }
    for kind, where, wall, cpu in rows:
        names = (
            [("fixture", where)] if kind == "fixture" else [("test", where), ("file", where.split("::")[0])]
        )
        for table, key in names:
            sums = tables[table][key]
            sums[0] += wall
            sums[1] += cpu
            sums[2] += kind in ("call", "fixture")
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    for name, table in tables.items():
        wall, cpu = (sum(row[i] for row in table.values()) for i in (0, 1))
        print(f"\nby {name}: {wall:.0f} s, of which processors {cpu:.0f} s")
        print(f"{'wall s':>8} {'cpu s':>8} {'wait s':>8} {'times':>6}  {name}")
        for key, (wall, cpu, times) in sorted(table.items(), key=lambda row: -row[1][0])[:most]:
            print(f"{wall:8.1f} {cpu:8.1f} {max(0.0, wall - cpu):8.1f} {times:6.0f}  {key}")


if __name__ == "__main__":
    main()
