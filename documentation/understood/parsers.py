"""Parses words with a module's own parser, without running anything."""

import argparse
import contextlib
import io
import runpy
import sys
import warnings
from typing import Any, NoReturn
from unittest.mock import patch

from documentation.understood.shell import Misunderstood


class _Taken(Exception):
    """Raised when a parser has accepted the words, so that nothing is run."""

    def __init__(self, found: argparse.Namespace, rest: list[str]) -> None:
        super().__init__()
        self.found = found
        self.rest = rest


def parsed(module: str, words: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The result of the module's own parser, and unused words; raises ``Misunderstood``.

    The module runs only until its parser returns.
    """
    real = argparse.ArgumentParser.parse_known_args
    depth = 0

    def taken(self: argparse.ArgumentParser, *arguments: Any, **more: Any) -> Any:
        nonlocal depth
        depth += 1
        try:
            found, rest = real(self, *arguments, **more)
        finally:
            depth -= 1
        if depth:
            # One of its subcommands.
            return found, rest
        raise _Taken(found, rest)

    said = io.StringIO()
    try:
        with (
            patch.object(argparse.ArgumentParser, "parse_known_args", taken),
            patch.object(sys, "argv", [module, *words]),
            contextlib.redirect_stderr(said),
            contextlib.redirect_stdout(io.StringIO()),
            warnings.catch_warnings(),
        ):
            # It may have been imported before.
            warnings.simplefilter("ignore")
            runpy.run_module(module, run_name="__main__")
    except _Taken as it:
        return it.found, it.rest
    except SystemExit as end:
        if end.code in (0, None):
            return argparse.Namespace(), []
        _refused(module, said.getvalue())
    raise Misunderstood(f"{module} did not parse its words: {' '.join(words)}")


def _refused(module: str, said: str) -> NoReturn:
    lines = said.strip().splitlines()
    raise Misunderstood(lines[-1] if lines else f"{module} refuses the words")
