"""Options that many roles share."""

from typing import Final

from gpushare.options.kinds import CHOICE, TEXT
from gpushare.options.option import Option
from gpushare.process.log_setup import LAYOUTS, LEVELS

KUBECONFIG: Final = Option(
    "kubeconfig",
    TEXT,
    "kubeconfig file",
    metavar="FILE",
    absent="$KUBECONFIG, the pod's ServiceAccount, ~/.kube/config",
)
CONTEXT: Final = Option("context", TEXT, "context of the kubeconfig", absent="current-context")
ACCESS: Final = (KUBECONFIG, CONTEXT)
LOG_FORMAT: Final = Option(
    "log-format",
    CHOICE,
    "log format, see docs/guide/logs.md",
    "text",
    choices=LAYOUTS,
    group="logs",
)
LOG_LEVEL: Final = Option(
    "log-level",
    CHOICE,
    "minimum level",
    "info",
    choices=LEVELS,
    group="logs",
)
LOGGING: Final = (LOG_FORMAT, LOG_LEVEL)
