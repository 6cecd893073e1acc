"""Whether a command would be understood as it stands: by the product's own parsers, the Makefiles, the charts' values, kubectl's help.

Nothing of it is run, but for ``kubectl VERB --help``. ``fault`` says what is wrong with a command, and nothing where it is right.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from documentation.understood import charts, curl, kubectl, make, ours, pip, python
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
}


def fault(command: str, project: Path) -> str:
    """What is wrong with a command; empty where it would be understood. ``project`` is the checkout's root."""
    try:
        for part in parts(command):
            for variable in part.variables:
                ours.variable(variable, project)
            if reader := _READERS.get(part.program):
                reader(part.words, project)
    except Misunderstood as error:
        return str(error)
    return ""
