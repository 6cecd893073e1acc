"""The value of each option: from a flag, else the environment, else a file, else its default.

All errors in them are reported at once, and then nothing is used. What a process does not need is not imported: it
reads its options before it can serve.
"""

import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from gpushare.options.kinds import FILE, Text
from gpushare.options.option import InvalidSettings, Option, Role

#: The option that every role has.
CONFIG: Final = Option(
    "config", FILE, "file with options of this role and of others, YAML or JSON: docs/guide/configuration.md"
)
DEFAULT: Final = "default"


class Setting(NamedTuple):
    """An option's value and its source: a flag, a variable, ``FILE: KEY`` or ``default``."""

    value: Any
    source: str


def read(role: Role, argv: Sequence[str] | None, environ: Mapping[str, str]) -> SimpleNamespace:
    """The values of all options of ``role``, as attributes; raises ``InvalidSettings``.

    ``argv``: arguments without program and role; ``None``: those of this process.
    """
    settings = gather(role, argv, environ)
    return SimpleNamespace(**{name.replace("-", "_"): one.value for name, one in settings.items()})


def gather(role: Role, argv: Sequence[str] | None, environ: Mapping[str, str]) -> dict[str, Setting]:
    """The setting of each option of ``role`` by name; raises ``InvalidSettings``."""
    problems: list[str] = []
    words = sys.argv[1:] if argv is None else argv
    flags = _plain(role, words)
    if flags is None:
        # argparse takes longer to import and set up than all of this.
        from gpushare.options.parser import parsed

        flags = parsed(role, words, problems)
    filed: Mapping[str, Setting] = {}
    config = _of_flag_or_variable(CONFIG, flags, environ, problems)
    if config is not None:
        # YAML is imported only if there is a file.
        from gpushare.options.file import read_file

        filed = read_file(config.value, role, problems)
    settings = {}
    for option in role.options:
        setting = _of_flag_or_variable(option, flags, environ, problems)
        if setting is None:
            setting = filed.get(option.name) or Setting(option.default, DEFAULT)
        settings[option.name] = setting
    if problems:
        raise InvalidSettings(problems)
    return settings


def _of_flag_or_variable(
    option: Option, flags: Mapping[str, Any], environ: Mapping[str, str], problems: list[str]
) -> Setting | None:
    raw: Any = flags.get(option.attribute)
    if isinstance(raw, bool):
        return Setting(raw, option.flag)
    if raw is not None:
        if option.kind.several:
            return _read(option, list(raw), option.flag, ",".join(raw), problems)
        return _read(option, Text(raw), option.flag, raw, problems)
    for variable in (option.variable, *option.variables):
        # Manifests leave a variable empty to mean unset.
        text = environ.get(variable)
        if text:
            return _read(option, Text(text), variable, text, problems)
    return None


def _read(option: Option, raw: Any, source: str, shown: str, problems: list[str]) -> Setting:
    try:
        return Setting(option.read(raw), source)
    except ValueError as error:
        problems.append(f"{source} {shown[:200]!s}: {error}")
        return Setting(option.default, source)


def _plain(role: Role, words: Sequence[str]) -> dict[str, Any] | None:
    """The flags of a command line that consists of known ones with values; ``None`` if it needs the full parser."""
    known = {option.flag: option for option in (*role.options, CONFIG)}
    known |= {f"--no-{option.name}": option for option in role.options if option.kind.is_switch}
    found: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        option = known.get(flag)
        if option is None or (equals and option.kind.is_switch):
            return None
        if option.kind.is_switch:
            found[option.attribute] = flag == option.flag
            continue
        if not equals:
            value = next(rest, "-")
            if value.startswith("-"):
                return None
        if option.kind.several:
            found.setdefault(option.attribute, []).append(value)
        else:
            found[option.attribute] = value
    return found
