"""Command lines that the fast parser in ``reading`` does not handle: help, one-letter flags, and mistakes."""

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from gpushare.options.option import InvalidSettings, Option, Role
from gpushare.options.reading import CONFIG


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports mistakes in one line."""

    def error(self, message: str) -> NoReturn:
        raise InvalidSettings([f"{message}; {self.prog} --help lists the options"])


def parsed(role: Role, argv: Sequence[str], problems: list[str]) -> dict[str, Any]:
    """The flags of the command line, as texts by attribute; unknown ones are added to ``problems``.

    Raises ``InvalidSettings`` if parsing fails, and ``SystemExit`` after showing the help.
    """
    found, unknown = parser_of(role).parse_known_args(argv)
    if unknown:
        problems.append(
            f"unrecognized arguments: {' '.join(unknown)}; {role.program} --help lists the options"
        )
    return vars(found)


def parser_of(role: Role) -> argparse.ArgumentParser:
    """A parser for the flags of ``role``; values stay texts."""
    parser = _Parser(
        prog=role.program,
        description=role.about,
        epilog=role.epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {"": parser}
    for option in (*role.options, CONFIG):
        group = groups.get(option.group)
        if group is None:
            group = groups[option.group] = parser.add_argument_group(
                option.group, role.groups.get(option.group)
            )
        _add(group, option)
    return parser


def _add(group: Any, option: Option) -> None:
    # argparse interpolates percent signs.
    words = f"{option.help} [{_facts(option)}]".replace("%", "%%")
    flags = (option.short, option.flag) if option.short else (option.flag,)
    if option.kind.is_switch:
        group.add_argument(*flags, action=argparse.BooleanOptionalAction, help=words)
        return
    group.add_argument(
        *flags,
        dest=option.attribute,
        action="append" if option.kind.several else "store",
        metavar=option.metavar or "|".join(option.choices) or option.kind.metavar,
        help=words,
    )


def _facts(option: Option) -> str:
    variables = ", ".join(f"${one}" for one in (option.variable, *option.variables))
    repeated = "repeatable; " if option.kind.several else ""
    return f"{repeated}default: {option.default_words}; {variables}"
