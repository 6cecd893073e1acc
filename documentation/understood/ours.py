"""Commands of the product's own: each role's parser takes the words."""

import contextlib
import io
import re
from functools import cache
from pathlib import Path
from typing import Final

from documentation.understood.parsers import parsed
from documentation.understood.shell import ANYTHING, Misunderstood
from gpushare.__main__ import ROLES
from gpushare.inspect import arguments as inspect_arguments
from gpushare.inspect import completion
from gpushare.inspect.errors import UsageError
from gpushare.options.option import InvalidSettings
from gpushare.options.reading import gather
from gpushare.options.roles import role_of
from gpushare.simulate import arguments as simulate_arguments
from gpushare.simulate.errors import SimulateError

_CONFIG: Final = "gpushare.config"
_CONFIGS: Final = ("check", "schema", "show")


def understand(words: list[str], project: Path) -> None:
    """``gpushare WORDS``; raises ``Misunderstood`` unless the role's parser takes them."""
    if not words or words[0] in (ANYTHING, "-h", "--help", "-V", "--version"):
        return
    name, arguments = words[0], [word for word in words[1:] if word != ANYTHING]
    if name not in ROLES:
        raise Misunderstood(f"gpushare has no role {name}")
    if name == "inspect":
        inspect(arguments, project)
    elif name == "config":
        _config(arguments)
    elif arguments:
        _role(name, arguments)


def _role(name: str, words: list[str]) -> None:
    if name == "doctor" and words[0] == "node":
        words = words[1:]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            if name == "simulate":
                simulate_arguments.parse(words)
            else:
                gather(role_of(name), words, {})
    except (InvalidSettings, SimulateError) as error:
        raise Misunderstood(str(error)) from None
    except SystemExit as end:
        # It has shown its help.
        if end.code:
            raise Misunderstood(f"gpushare {name} refuses {' '.join(words)}") from None


def _config(words: list[str]) -> None:
    # Named alone, as the name of a command, each of them is right.
    if not words or (len(words) == 1 and words[0] in _CONFIGS):
        return
    found, rest = parsed(f"{_CONFIG}.__main__", words)
    if getattr(found, "command", "") == "show" and rest:
        _role(found.role, rest)
    elif rest:
        raise Misunderstood(f"gpushare config does not know {' '.join(rest)}")


def inspect(words: list[str], project: Path) -> None:
    """``kubectl inspect cgpu WORDS``."""
    arguments = [word for word in words if word != ANYTHING]
    try:
        if arguments[:1] == ["completion"]:
            completion.script(arguments[1:])
        else:
            inspect_arguments.parse(arguments)
    except UsageError as error:
        raise Misunderstood(str(error)) from None


@cache
def _sources(project: Path) -> frozenset[str]:
    """Names of variables in the sources and tests."""
    files = [path for folder in ("src", "tests") for path in (project / folder).rglob("*.py")]
    return frozenset(
        name for path in files for name in re.findall(r"\"([A-Z][A-Z0-9_]{3,})\"", path.read_text())
    )


def variable(name: str, project: Path) -> None:
    """Raises ``Misunderstood`` unless something reads the environment's variable of that name."""
    if name not in _sources(project):
        raise Misunderstood(f"nothing reads ${name}")
