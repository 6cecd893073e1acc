"""Reporting of invalid options."""

import sys


def refuse(program: str, error: Exception) -> int:
    """Print each line of ``error`` on stderr, prefixed with the program; returns the exit code for invalid input."""
    for line in str(error).splitlines():
        print(f"{program}: {line}", file=sys.stderr)
    return 2
