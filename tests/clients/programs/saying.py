"""Runs the check that the command line names, and says how it went as a line of JSON."""

import json
import sys
from collections.abc import Callable, Mapping

MIB = 1 << 20
#: Without a limit: enough to see that allocations succeed.
UNLIMITED = 8192 * MIB


def main(checks: Mapping[str, Callable[[int], str]]) -> None:
    """Each check takes the limit in bytes (0: none), asserts what must hold, and says what it saw."""
    name, limit = sys.argv[1], int(sys.argv[2])
    try:
        said = {"good": True, "got": checks[name](limit)}
    except Exception as problem:  # whatever it is, the line says so
        said = {"good": False, "got": f"{type(problem).__name__}: {problem}"}
    print(json.dumps(said), flush=True)


def holds(condition: bool, got: str) -> None:
    """What must hold; otherwise the check fails with what was there instead."""
    if not condition:
        raise AssertionError(got)


def reported(free: int, total: int, limit: int) -> str:
    """Memory as a client reads it: of the limit, if there is one."""
    got = f"{free // MIB} of {total // MIB} MiB free"
    holds(0 < free < total and (not limit or total == limit), got)
    return got
