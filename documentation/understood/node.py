"""Commands for programs of a node, which are not installed here: checked against the words and flags that pages use."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from documentation.understood.shell import Misunderstood

#: Program → what its words must be, all of them; the name alone is right, too.
_SHAPES: Final = {
    "systemctl": r"(?:status|start|restart|enable --now)(?: [\w@.-]+)+",
    "journalctl": r"-u [\w@.-]+(?: -f| -b| -n \d+)*",
    "dmesg": r"(?:-T)?",
    "lspci": r"(?:-v)?",
    "grep": r"(?:-\w+ )?\S+",
    "nvidia-smi": r"(?:-q|-L|-r|-r -i \S+|-q -i \S+|-i \S+ -mig [01])",
    "nvidia-ctk": r"(?:cdi generate(?: --output=/\S+\.yaml)?|runtime configure(?: --runtime=\w+)?(?: --set-as-default)?)",
    "nvidia-modprobe": r"(?:-u|-c \d+|-c \d+ -u)",
}


def understand(program: str, words: list[str], project: Path) -> None:
    """Raises ``Misunderstood`` unless the words are of a shape that the program takes."""
    said = " ".join(words)
    if said and not re.fullmatch(_SHAPES[program], said):
        raise Misunderstood(f"{program} {said}: unknown words")


READERS: Final[dict[str, Callable[[list[str], Path], None]]] = {
    program: partial(understand, program) for program in _SHAPES
}
