"""How a role says that it cannot use what it was given."""

import sys


def refuse(program: str, error: Exception) -> int:
    """Say each line of ``error`` on stderr, with the program before it; returns the exit code of bad input."""
    for line in str(error).splitlines():
        print(f"{program}: {line}", file=sys.stderr)
    return 2
