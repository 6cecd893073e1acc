"""Options in a file, YAML or JSON: a section for each role, and in it the options by name.

``scheduler: {listen: "127.0.0.1:9451"}``. Unknown keys, duplicates and wrong types are rejected.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpushare.options.option import InvalidSettings, Option, Role, TwiceThere
from gpushare.options.reading import Setting
from gpushare.options.roles import ROLES, installed_role_of

#: Maximum size of a configuration file, in bytes.
_MOST_BYTES: Final = 1 << 20


def read_file(path: Path, role: Role, problems: list[str]) -> Mapping[str, Setting]:
    """The options of ``role`` in the file; problems of any section are added to ``problems``."""
    sections = _sections(path, problems)
    found: Mapping[str, Setting] = {}
    for name, section in sections.items():
        if name == role.name:
            found = _read_section(path, role, section, problems)
            continue
        other = installed_role_of(name)
        if other is not None:
            _read_section(path, other, section, problems)
    return found


def check_file(path: Path) -> list[str]:
    """All problems of the file, a line each."""
    problems: list[str] = []
    sections = _sections(path, problems)
    for name, section in sections.items():
        if (role := installed_role_of(name)) is not None:
            _read_section(path, role, section, problems)
    return problems


def _sections(path: Path, problems: list[str]) -> dict[str, dict[str, Any]]:
    """The readable sections by role; problems of the others are added to ``problems``."""
    try:
        whole = _parsed(path)
    except InvalidSettings as error:
        problems += error.problems
        return {}
    if whole is None:
        return {}
    if not isinstance(whole, dict):
        problems.append(f"{path}: must be a mapping with a section per role: {', '.join(ROLES)}")
        return {}
    sections: dict[str, dict[str, Any]] = {}
    for name, section in whole.items():
        if name not in ROLES:
            problems.append(f"{path}: {name}: unknown role; use one of {', '.join(ROLES)}")
        elif section is not None and not isinstance(section, dict):
            problems.append(f"{path}: {name}: must be a mapping of its options, not {_kind(section)}")
        else:
            sections[name] = section or {}
    return sections


def _parsed(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise InvalidSettings(
                [f"{path}: longer than {_MOST_BYTES} bytes; the file must contain only options"]
            )
        text = raw.decode()
        if path.suffix == ".json":
            return json.loads(text, object_pairs_hook=_once)
        # The single-file kubectl plugin runs without PyYAML.
        from gpushare.options.yaml_text import parsed

        return parsed(text)
    except OSError as error:
        raise InvalidSettings([f"{path}: cannot be read: {error.strerror}"]) from None
    except ImportError:
        raise InvalidSettings(
            [
                f"{path}: cannot be read: this Python has no PyYAML; write JSON, in a file whose name ends in .json"
            ]
        ) from None
    except (ValueError, RecursionError) as error:
        words = " ".join(str(error).split())[:300]
        raise InvalidSettings(
            [f"{path}: is no {'JSON' if path.suffix == '.json' else 'YAML'}: {words}"]
        ) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise TwiceThere(f"key {key} is there twice")
        found[key] = value
    return found


def _read_section(path: Path, role: Role, section: dict[str, Any], problems: list[str]) -> dict[str, Setting]:
    options: dict[str, Option] = {option.name: option for option in role.options}
    found = {}
    for key, raw in section.items():
        where = f"{path}: {role.name}.{key}"
        option = options.get(key)
        if option is None:
            near = _nearest(str(key), options)
            hint = f"did you mean {near}?" if near else f"use one of {', '.join(options)}"
            problems.append(f"{where}: unknown option; {hint}")
            continue
        try:
            found[option.name] = Setting(option.read(raw), where)
        except ValueError as error:
            problems.append(f"{where}: {_shown(raw)}: {error}")
    return found


def _nearest(key: str, options: Mapping[str, Option]) -> str:
    from difflib import get_close_matches

    return next(iter(get_close_matches(key, options, 1)), "")


def _shown(raw: Any) -> str:
    return f"{_kind(raw)} {json.dumps(raw, ensure_ascii=False, default=str)[:200]}"


def _kind(raw: Any) -> str:
    if raw is None:
        return "nothing"
    if isinstance(raw, bool):
        return "the truth value"
    if isinstance(raw, int | float):
        return "the number"
    if isinstance(raw, str):
        return "the text"
    return "the list" if isinstance(raw, list) else "the mapping"
