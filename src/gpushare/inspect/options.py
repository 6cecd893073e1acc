"""Options that can also be set by environment variable or configuration file, as with the daemons.

Imported only where one of them is set, to keep the start fast.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from gpushare.inspect.arguments import (
    HEADROOM,
    INTERVAL_S,
    LENGTH,
    LONGEST_INTERVAL_S,
    MIN_HISTORY,
    MOST_HEADROOM,
    PROMETHEUS,
    SCHEDULER,
    SERVICE,
    SHORTEST_INTERVAL_S,
    WINDOW,
)
from gpushare.inspect.errors import UsageError
from gpushare.options.kinds import INTEGER, SECONDS, Kind
from gpushare.options.option import InvalidSettings, Option, Role
from gpushare.options.reading import DEFAULT, gather
from gpushare.options.variables import warn_of_misspelled_variables

_NAME: Final = "inspect"


def _matching(pattern: str) -> Callable[[Any], str]:
    def read(raw: Any) -> str:
        if not isinstance(raw, str) or not re.fullmatch(pattern, raw, re.ASCII):
            raise ValueError
        return str(raw)

    return read


def _kind(metavar: str, words: str, pattern: str) -> Kind:
    return Kind(metavar, words, _matching(pattern), {"type": "string", "pattern": f"^(?:{pattern})$"})


_SERVICE: Final = _kind("NAMESPACE/NAME", "NAMESPACE/NAME of a Service", SERVICE)
_PROMETHEUS: Final = _kind("URL", "http://HOST:PORT, or a path of the API server's proxy", PROMETHEUS)
_LENGTH: Final = _kind("TIME", "a duration, such as 90s, 30m or 1d", LENGTH)
_WINDOW: Final = _kind("TIME", "a duration, such as 12h or 7d", WINDOW)

ROLE: Final = Role(
    _NAME,
    "Shows GPU allocations: kubectl inspect cgpu. Its other flags exist on the command line only.",
    (
        Option("scheduler", _SERVICE, "the Service of the scheduler", SCHEDULER, role=_NAME),
        Option("interval", SECONDS, "refresh interval of --watch and --top", INTERVAL_S,
               least=SHORTEST_INTERVAL_S, most=LONGEST_INTERVAL_S, role=_NAME),
        Option("headroom", INTEGER, "percent that --recommend adds to the usage", HEADROOM,
               least=0, most=MOST_HEADROOM, metavar="PERCENT", role=_NAME),
        Option("min-history", _LENGTH, "minimum history of a pod for --recommend",
               MIN_HISTORY, role=_NAME),
        Option("prometheus", _PROMETHEUS, "Prometheus from which --recommend reads usage", absent="the node agents", role=_NAME),
        Option("window", _WINDOW, "length of the usage history for --recommend",
               absent="all that agents have; 7d with Prometheus", role=_NAME),
    ),
)  # fmt: skip


def configured_values(config: "str | None", environ: Mapping[str, str]) -> "dict[str, str]":
    """Settings of environment and file (``config``: as typed) by flag; raises ``UsageError`` with every problem.

    Prints a warning on stderr about variables that look like misspellings of ours.
    """
    try:
        settings = gather(ROLE, [] if config is None else [f"--config={config}"], environ)
    except InvalidSettings as error:
        raise UsageError("", "\nerror: ".join(error.problems)) from None
    warn_of_misspelled_variables(ROLE, environ, "warning")
    return {
        option.flag: option.kind.show(settings[option.name].value)
        for option in ROLE.options
        if settings[option.name].source != DEFAULT
    }
