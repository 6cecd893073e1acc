"""``gpushare config``: the schema of a file, the effective values and their sources, and validation of a file."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gpushare.options.option import PREFIX, InvalidSettings, Role
from gpushare.options.reading import CONFIG, gather
from gpushare.options.roles import ROLES, installed_role_of
from gpushare.options.usage_error import refuse
from gpushare.options.variables import unread

_PROGRAM: Final = "gpushare config"
_EPILOG: Final = """\
Options come from flags, then the environment, then the file, then their defaults.

examples:
  gpushare config check gpushare.yaml             # reports every mistake; exit code 2 if there is one
  gpushare config show scheduler --config gpushare.yaml --unit 128MiB
  gpushare config schema node-agent > node-agent.schema.json
options: docs/reference/options.md; where values come from: docs/guide/configuration.md
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Shows the options of a role and where their values come from, and validates configuration files.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    one = commands.add_parser(
        "schema", help="the JSON Schema of a file with options of ROLE, or of all roles"
    )
    one.add_argument(
        "role", nargs="?", choices=tuple(ROLES), metavar="ROLE", help=f"one of {', '.join(ROLES)}"
    )
    one = commands.add_parser(
        "show", help="the effective values of ROLE with these options, and where each comes from"
    )
    one.add_argument("role", choices=tuple(ROLES), metavar="ROLE", help=f"one of {', '.join(ROLES)}")
    one = commands.add_parser("check", help="validate FILE")
    one.add_argument("file", type=Path, metavar="FILE", help="YAML or JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 after reporting problems line by line."""
    options, rest = _parser().parse_known_args(argv)
    if rest and options.command != "show":
        return refuse(_PROGRAM, InvalidSettings([f"unrecognized arguments: {' '.join(rest)}"]))
    try:
        if options.command == "schema":
            print(_schema(options.role))
        elif options.command == "show":
            role = installed_role_of(options.role)
            if role is None:
                raise InvalidSettings(
                    [f"{options.role} is not installed: it is part of a checkout, not of the images"]
                )
            print(_shown(role, rest, os.environ))
        else:
            return _check(options.file)
    except InvalidSettings as error:
        return refuse(_PROGRAM, error)
    return 0


def _schema(name: str | None) -> str:
    from gpushare.options.schema import schema_of

    wanted = tuple(ROLES) if name is None else (name,)
    roles = [role for role in map(installed_role_of, wanted) if role is not None]
    return json.dumps(schema_of(roles, ROLES), indent=2, ensure_ascii=False)


def _shown(role: Role, argv: Sequence[str], environ: Mapping[str, str]) -> str:
    settings = gather(role, argv, environ)
    rows = [("OPTION", "VALUE", "FROM")]
    for option in role.options:
        value, source = settings[option.name]
        rows.append((option.name, option.default_words if value is None else option.kind.show(value), source))
    widths = [max(len(row[at]) for row in rows) for at in range(2)]
    lines = [f"{name:<{widths[0]}}  {value:<{widths[1]}}  {source}" for name, value, source in rows]
    known = {one.variable for one in (*role.options, CONFIG)}
    unknown = unread(environ)
    others = sorted(
        one for one in environ if one.startswith(PREFIX) and one not in known and one not in unknown
    )
    if others or unknown:
        lines.append("")
    if others:
        lines.append(f"not read by this role: {', '.join(others)}")
    if unknown:
        lines.append(f"unknown variables: {_with_meant(unknown)}")
    return "\n".join(lines)


def _with_meant(variables: Mapping[str, str]) -> str:
    return ", ".join(
        f"{one} (did you mean {meant}?)" if meant else one for one, meant in sorted(variables.items())
    )


def _check(file: Path) -> int:
    from gpushare.options.file import check_file

    problems = check_file(file)
    if problems:
        return refuse(_PROGRAM, InvalidSettings(problems))
    print(f"{file}: valid")
    unknown = unread(os.environ)
    if unknown:
        print(f"{_PROGRAM}: unknown variables: {_with_meant(unknown)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
