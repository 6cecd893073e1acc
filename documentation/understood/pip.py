"""Commands for pip: what is installed from the checkout has the extra that is named."""

import re
import tomllib
from pathlib import Path

from documentation.understood.shell import Misunderstood


def understand(words: list[str], project: Path) -> None:
    """Raises ``Misunderstood`` unless pip would find what the words name."""
    if not words:
        return
    if words[0] != "install":
        raise Misunderstood(f"pip {words[0]}: pages only install")
    extras = tomllib.loads((project / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words[1:]:
        found = re.fullmatch(r"(?:\.|gpushare)(?:\[(\w+)\])?", word)
        if found is None or (found[1] and found[1] not in extras):
            raise Misunderstood(f"pip install {word}: it is neither this project nor an extra of it")
