"""Runs the check named on the command line, and prints its result as a line of JSON."""

import json
import sys
from collections.abc import Callable, Mapping

MIB = 1 << 20
#: Without a limit: enough to see that allocations succeed.
UNLIMITED = 8192 * MIB


def main(checks: Mapping[str, Callable[[int], str]]) -> None:
    """Each check takes the limit in bytes (0: none), asserts its expectations, and returns a description of the result."""
    name, limit = sys.argv[1], int(sys.argv[2])
    try:
        result = {"good": True, "got": checks[name](limit)}
    except Exception as problem:  # any problem is reported in the line
        result = {"good": False, "got": f"{type(problem).__name__}: {problem}"}
    print(json.dumps(result), flush=True)


def holds(condition: bool, got: str) -> None:
    """Fail the check with ``got`` unless the condition holds."""
    if not condition:
        raise AssertionError(got)


def reported(free: int, total: int, limit: int) -> str:
    """Memory as a client sees it: the limit's, if there is one."""
    got = f"{free // MIB} of {total // MIB} MiB free"
    holds(0 < free < total and (not limit or total == limit), got)
    return got
