"""The options of roles as JSON Schema and as Markdown tables."""

from collections.abc import Iterable
from typing import Any, Final

from gpushare.options.option import Option, Role

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_of(roles: Iterable[Role], others: Iterable[str] = ()) -> dict[str, Any]:
    """The JSON Schema of a file with sections for ``roles``; sections of ``others`` are not validated."""
    sections: dict[str, Any] = {name: {"type": ["object", "null"]} for name in others}
    sections |= {role.name: _section(role) for role in roles}
    return {
        "$schema": _DRAFT,
        "title": "Options of gpushare",
        "type": "object",
        "properties": sections,
        "additionalProperties": False,
    }


def _section(role: Role) -> dict[str, Any]:
    return {
        "description": " ".join(role.about.split()),
        "type": ["object", "null"],
        "properties": {option.name: _property(option) for option in role.options},
        "additionalProperties": False,
    }


def _property(option: Option) -> dict[str, Any]:
    found: dict[str, Any] = {"description": f"{option.help} ({option.allowed})", **option.kind.schema}
    if option.choices and option.kind.several:
        found["items"] = {"enum": list(option.choices)}
    elif option.choices:
        found["enum"] = list(option.choices)
    bounds = {"minimum": option.least, "exclusiveMinimum": option.above, "maximum": option.most}
    found |= {key: bound for key, bound in bounds.items() if bound is not None}
    if option.default is not None:
        plain = isinstance(option.default, bool | int | float | list)
        found["default"] = option.default if plain else str(option.default)
    return found


def table_of(role: Role) -> str:
    """The options of a role as a Markdown table."""
    rows = ["| option | what | may be | default | variables |", "|---|---|---|---|---|"]
    for option in role.options:
        cells = (
            f"`{option.name}`",
            option.help,
            option.allowed,
            option.default_words,
            ", ".join(f"`{one}`" for one in (option.variable, *option.variables)),
        )
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)
