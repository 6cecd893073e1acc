"""The reference of command lines: what each role's ``--help`` says."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpushare.__main__ import ROLES
from gpushare.options.roles import ROLES as WITH_OPTIONS
from gpushare.options.roles import role_of

_HELP_S: Final = 30.0
_WIDTH: Final = "100"
#: Where argparse lists a role's commands; their explanations are indented further.
_COMMANDS: Final = re.compile(r"^  COMMAND\n((?: {4,}\S.*\n)+)", re.MULTILINE)
#: Where argparse lists an option: its flags, before what it means.
_FLAGS: Final = re.compile(r"^  (-\S.*?)(?:  |$)", re.MULTILINE)
_HEAD: Final = """\
# Command lines

What `gpushare ROLE --help` prints, for every role, and for the commands of those that have some, without lists of options that [options](options.md) has.
This page is generated: `make docs` writes it.

The charts set these options; [values of the charts](chart-values.md) says by which value.
"""


class HelpFailed(Exception):
    """A role whose --help fails."""


def page(project: Path) -> str:
    """The page's Markdown; raises ``HelpFailed``."""
    parts = [_HEAD, _section("gpushare", _help(project))]
    for role in ROLES:
        text = _help(project, role)
        parts.append(_section(f"gpushare {role}", without_options(text, declared(role))))
        parts += [
            _section(f"gpushare {role} {command}", _help(project, role, command))
            for command in commands(text)
        ]
    return "\n".join(parts)


def commands(text: str) -> Iterator[str]:
    """The names of a role's own commands, as its help lists them."""
    for listed in _COMMANDS.findall(text):
        yield from re.findall(r"^ {4}(\S+)", listed, re.MULTILINE)


def declared(role: str) -> frozenset[str]:
    """The flags that ``reference/options.md`` explains for a role, and those of every role."""
    if role not in WITH_OPTIONS:
        return frozenset()
    names = {option.flag for option in role_of(role).options}
    return frozenset(names | {f"--no-{name[2:]}" for name in names} | {"--help", "--config"})


def without_options(text: str, known: frozenset[str]) -> str:
    """A help without lists of only ``known`` flags, and without the titles of such lists."""
    kept: list[str] = []
    for paragraph in text.split("\n\n"):
        flags = {flag for line in _FLAGS.findall(paragraph) for flag in re.findall(r"--[\w-]+", line)}
        if not flags or not flags <= known:
            kept.append(paragraph)
        elif paragraph.startswith(" ") and kept:
            kept.pop()
    return "\n\n".join(kept)


def _section(title: str, text: str) -> str:
    return f"## `{title}`\n\n```text\n{text.rstrip()}\n```\n"


def _help(project: Path, *role: str) -> str:
    environment = {**os.environ, "COLUMNS": _WIDTH, "NO_COLOR": "1", "PYTHONPATH": str(project / "src")}
    command = [sys.executable, "-m", "gpushare", *role, "--help"]
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_HELP_S, check=False
    )
    if ran.returncode or not ran.stdout.strip():
        raise HelpFailed(f"{' '.join(command[1:])} ended with {ran.returncode}: {ran.stderr.strip()}")
    return tidied(ran.stdout, project)


def tidied(text: str, project: Path) -> str:
    """``text`` without what differs between machines and Pythons: the checkout's path, how options with values are written."""
    text = text.replace(str(project) + os.sep, "")
    # Python before 3.13 repeats the value after each form of the option.
    return re.sub(r"(-\w) ([A-Z][A-Z_]*), (--[\w-]+) \2", r"\1, \3 \2", text)
