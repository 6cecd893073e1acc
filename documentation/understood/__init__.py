"""Whether a command is valid: by the product's own parsers, the Makefiles, the charts' values, kubectl's help.

Nothing is run except ``kubectl VERB --help``. ``fault`` returns what is wrong with a command; empty if it is valid.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from documentation.understood import charts, curl, kubectl, make, node, ours, pip, python
from documentation.understood.shell import Misunderstood, parts

_READERS: Final[dict[str, Callable[[list[str], Path], None]]] = {
    "make": make.understand,
    "gpushare": ours.understand,
    "kubectl-inspect-cgpu": ours.inspect,
    "kubectl": kubectl.understand,
    "helm": charts.understand,
    "python": python.understand,
    "pip": pip.understand,
    "curl": curl.understand,
    **node.READERS,
}
#: Prefix of what runs in a container: ``kubectl exec POD -- PROGRAM``.
_INSIDE: Final = "--"


def fault(command: str, project: Path) -> str:
    """What is wrong with a command; empty if it is valid. ``project`` is the checkout's root."""
    try:
        for part in parts(command):
            for variable in part.variables:
                ours.variable(variable, project)
            _understood(part.program, part.words, project)
    except Misunderstood as error:
        return str(error)
    return ""


def _understood(program: str, words: list[str], project: Path) -> None:
    if reader := _READERS.get(program):
        reader(words, project)
    if program == "kubectl" and _INSIDE in words:
        inner = words[words.index(_INSIDE) + 1 :]
        _understood(inner[0] if inner else "", inner[1:], project)
