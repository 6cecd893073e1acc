"""The command line of ``gpushare simulate``, with checks of conflicting options."""

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Final

from gpushare.options.option import InvalidSettings
from gpushare.options.reading import read
from gpushare.simulate.errors import SimulateError
from gpushare.simulate.options import ROLE

PROGRAM: Final = ROLE.program
_UNKNOWN: Final = "unrecognized arguments: "


def parse(arguments: Sequence[str] | None) -> SimpleNamespace:
    """The options; raises ``InvalidSettings``, and ``SimulateError`` for conflicting ones."""
    try:
        options = read(ROLE, arguments, os.environ)
    except InvalidSettings as error:
        raise InvalidSettings([_with_flag(one) for one in error.problems]) from None
    if options.node_shape and not options.min_nodes:
        raise SimulateError("--node-shape", "goes with --min-nodes")
    return options


def _with_flag(problem: str) -> str:
    """The hint how to pass files that were named without their flag."""
    words = problem.removeprefix(_UNKNOWN).partition(";")[0].split()
    if not problem.startswith(_UNKNOWN) or any(one.startswith("-") for one in words):
        return problem
    head, end = f"{_UNKNOWN}{' '.join(words)}", problem.partition(";")[2]
    return f"{head} (did you mean {' '.join(f'-f {one}' for one in words)}?);{end}"
