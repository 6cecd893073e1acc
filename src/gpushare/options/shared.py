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
    absent="the files of $KUBECONFIG, the pod's account, ~/.kube/config",
)
CONTEXT: Final = Option("context", TEXT, "context of the kubeconfig", absent="its current one")
ACCESS: Final = (KUBECONFIG, CONTEXT)
LOGGING: Final = (
    Option(
        "log-format",
        CHOICE,
        "how lines of the log are written: docs/guide/logs.md",
        "text",
        choices=LAYOUTS,
        group="logs",
    ),
    Option(
        "log-level",
        CHOICE,
        "the least that is logged; debug tells each question of kube-scheduler",
        "info",
        choices=LEVELS,
        group="logs",
    ),
)
