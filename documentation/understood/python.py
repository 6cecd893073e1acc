"""Commands for ``python -m``: there is such a module, and its own parser takes the words."""

import importlib.util
from pathlib import Path
from typing import Final

from documentation.understood import ours
from documentation.understood.parsers import parsed
from documentation.understood.shell import Misunderstood

#: Modules that say which of their own words there are after their parser has taken any.
_WORDS: Final = {"benchmarks": ("parts", "PARTS")}
_THEIRS: Final = "gpushare"


def understand(words: list[str], project: Path) -> None:
    """Raises ``Misunderstood`` unless the module is there and takes the words."""
    if not words:
        return
    if words[0] != "-m" or len(words) < 2:
        raise Misunderstood("python is called with -m MODULE")
    module, arguments = words[1], words[2:]
    if module == _THEIRS:
        ours.understand(arguments, project)
        return
    where = _source(module)
    if not arguments or where is None:
        return
    if "ArgumentParser(" not in where.read_text():
        raise Misunderstood(f"{module} takes no words: {' '.join(arguments)}")
    found, rest = parsed(module, arguments)
    if rest:
        raise Misunderstood(f"{module} does not know {' '.join(rest)}")
    if known := _WORDS.get(module):
        names = getattr(importlib.import_module(f"{module}.__main__"), known[1])
        if strange := set(getattr(found, known[0])) - set(names):
            raise Misunderstood(f"{module} has no part {', '.join(sorted(strange))}")


def _source(module: str) -> Path | None:
    """The file that ``python -m`` would run; ``None`` for one of Python's own."""
    try:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{module}.__main__")
    except ImportError:
        spec = None
    if spec is None:
        raise Misunderstood(f"there is no module {module}")
    return Path(spec.origin) if spec.origin else None
