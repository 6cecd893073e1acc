"""make commands: the target exists, uses the variables that are set, and its program accepts ``ARGS``."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from documentation.understood import python
from documentation.understood.shell import ANYTHING, Misunderstood, filled

_RULE: Final = re.compile(r"^([a-zA-Z0-9_ -]+):(?!=)([^#\n]*)(?:#.*)?$")
_DEFINITION: Final = re.compile(r"^(\w+) *[:?]?= *(.*)$")
_USED: Final = re.compile(r"\$[({](\w+)|\$\$\{?(\w+)")
_ELSEWHERE: Final = re.compile(r" -C (\S+) ")
#: The module that a recipe runs, and the words before its ``ARGS``; the rest does not matter.
_MODULE: Final = re.compile(r"-m ([\w.]+)([^\n;]*?)\$\((?:ARGS\)|or \$\(ARGS\))")


@dataclass(frozen=True, slots=True)
class Makefile:
    """Each target's prerequisites and recipe, and each variable's value."""

    targets: dict[str, tuple[tuple[str, ...], str]]
    variables: dict[str, str]

    def recipes(self, target: str) -> Iterator[str]:
        """The recipe of a target, then those of what it needs."""
        needs, recipe = self.targets.get(target, ((), ""))
        yield recipe
        for one in needs:
            yield from self.recipes(one)

    def heeded(self, target: str) -> set[str]:
        """The variables that a target uses."""
        found: set[str] = set()
        texts = list(self.recipes(target))
        while texts:
            new = {name for pair in _USED.findall(texts.pop()) for name in pair if name} - found
            found |= new
            texts += [self.variables.get(name, "") for name in new]
        return found


def read(text: str) -> Makefile:
    """A Makefile as far as it matters here."""
    targets: dict[str, tuple[tuple[str, ...], str]] = {}
    variables: dict[str, str] = {}
    current: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("\t"):
            for name in current:
                needs, recipe = targets[name]
                targets[name] = needs, f"{recipe}{line.strip()}\n"
        elif rule := _RULE.match(line):
            current = rule[1].split()
            for name in current:
                needs, recipe = targets.get(name, ((), ""))
                targets[name] = (*needs, *rule[2].split()), recipe
        elif definition := _DEFINITION.match(line.removeprefix("export ")):
            variables[definition[1]] = definition[2]
    return Makefile(targets, variables)


@cache
def _at(folder: Path) -> Makefile:
    return read((folder / "Makefile").read_text())


def understand(words: list[str], project: Path) -> None:
    """Raises ``Misunderstood`` unless make would do what the words ask for."""
    folder = project
    if words[:1] == ["-C"]:
        folder, words = project / words[1], words[2:]
        if not (folder / "Makefile").is_file():
            raise Misunderstood(f"{folder.relative_to(project)} has no Makefile")
    makefile = _at(folder)
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    for target in (word for word in words if "=" not in word):
        if target not in makefile.targets:
            raise Misunderstood(f"no target {target} in the Makefile")
        heeded = makefile.heeded(target)
        for recipe in makefile.recipes(target):
            for inner in _ELSEWHERE.findall(recipe):
                heeded |= {
                    name for pair in _USED.findall((folder / inner / "Makefile").read_text()) for name in pair
                }
        if strange := settings.keys() - heeded:
            raise Misunderstood(f"{target} does not use {', '.join(sorted(strange))}")
        if arguments := settings.get("ARGS"):
            _arguments(makefile.targets[target][1], arguments, project)


def _arguments(recipe: str, arguments: str, project: Path) -> None:
    found = _MODULE.search(recipe)
    if found is None:
        raise Misunderstood("nothing in its recipe takes ARGS")
    # What the recipe says itself about a variable of make's is not in question.
    own = [word for word in shlex.split(found[2]) if not word.startswith("$")]
    own = [word for at, word in enumerate(own) if not (word.startswith("--") and at == len(own) - 1)]
    words = [filled(word) for word in shlex.split(arguments)]
    python.understand(["-m", found[1], *own, *(word for word in words if word != ANYTHING)], project)
