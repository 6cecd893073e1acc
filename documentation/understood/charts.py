"""helm commands: subcommand and flags exist, and the charts have the values that are set."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from documentation.chart_values import CHARTS
from documentation.understood.shell import ANYTHING, Misunderstood

#: The commands and flags of helm that pages use; helm may not be installed.
#: Command → number of words after its name, if typed in full.
_WORDS: Final = {
    "install": 2,
    "upgrade": 2,
    "uninstall": 1,
    "rollback": 1,
    "template": 2,
    "list": 0,
    "history": 1,
    "status": 1,
    "get values": 1,
    "get manifest": 1,
    "show values": 1,
}
_VALUED: Final = frozenset(
    {"-n", "--namespace", "-f", "--values", "--set", "--set-string", "--version", "--timeout"}
)
_SWITCHES: Final = frozenset(
    {"--install", "--reuse-values", "--reset-then-reuse-values", "--wait", "--dry-run", "--all"}
)
_SETS: Final = frozenset({"--set", "--set-string"})
#: A page's ``--set KEY=VALUE``.
_ANY_KEY: Final = "KEY"


def understand(words: list[str], project: Path) -> None:
    """Raises ``Misunderstood`` unless helm and the charts would take the words."""
    if not words or words == [ANYTHING]:
        return
    command = next((one for one in _WORDS if words[: one.count(" ") + 1] == one.split()), None)
    if command is None:
        raise Misunderstood(f"helm has no command {' '.join(words[:2])}, or none that pages use")
    plain, flags, settings = _divided(words[command.count(" ") + 1 :])
    if not plain and not flags:
        # Only the command's name, as in a sentence.
        return
    if ANYTHING not in plain and len(plain) < _WORDS[command]:
        raise Misunderstood(
            f"helm {command} takes {_WORDS[command]} words, not {len(plain)}: write … for those left out"
        )
    for word in plain:
        folder = Path(word)
        if folder.parts[:1] == ("charts",) and not (project / folder / "Chart.yaml").is_file():
            raise Misunderstood(f"there is no chart {word}")
    named = [chart for chart in CHARTS if any(Path(word).name == chart for word in plain)]
    for setting in settings:
        key = setting.partition("=")[0]
        if key != _ANY_KEY and not any(has_value(chart, key, project) for chart in named or CHARTS):
            raise Misunderstood(f"{' and '.join(named or CHARTS)} have no value {key}")


def _divided(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """The words that are no flags, the flags, and what ``--set`` is given."""
    plain, flags, settings = list[str](), list[str](), list[str]()
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            plain.append(word)
            continue
        flags.append(name)
        if name in _SWITCHES:
            continue
        if name not in _VALUED:
            raise Misunderstood(f"helm has no flag {name}, or none that pages use")
        taken = value if equals else next(rest, None)
        if taken is None:
            raise Misunderstood(f"helm {name} needs a value")
        if name in _SETS:
            if "=" not in taken:
                raise Misunderstood(f"--set {taken}: KEY=VALUE is set")
            settings += taken.split(",") if name == "--set" else [taken]
    return plain, flags, settings


@cache
def _schema(chart: str, project: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project / "charts" / chart / "values.schema.json").read_text())
    return found


def has_value(chart: str, key: str, project: Path) -> bool:
    """Whether the chart's schema, which rejects unknown values, has the value."""
    at = _schema(chart, project)
    for name in re.split(r"(?<!\\)\.", key):
        # A map whose keys are its owner's, such as labels, has none of its own.
        below = at.get("properties", {}).get(
            name.split("[")[0], at.get("additionalProperties", "properties" not in at)
        )
        if below is False:
            return False
        at = below if isinstance(below, dict) else {}
    return True
