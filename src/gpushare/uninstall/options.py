"""The clean-up's options. Imports nothing heavy: ``gpushare config`` imports only this module."""

from typing import Final

from gpushare.api import names
from gpushare.options.kinds import SECONDS, TEXT
from gpushare.options.option import Option, Role
from gpushare.options.shared import ACCESS, LOGGING

_EXAMPLES: Final = """\
example:
  gpushare uninstall --namespace kube-system       # once the agents are gone; the chart starts it when it is uninstalled
what is removed, and when: docs/guide/install.md
options: docs/reference/options.md; where values come from: docs/guide/configuration.md
"""

ROLE: Final = Role(
    "uninstall",
    "Removes what the node agents wrote on nodes, once the agents are gone. Pods keep their annotations.",
    (
        *ACCESS,
        Option("namespace", TEXT, "namespace of the agents", absent="the context's namespace"),
        Option(
            "daemonset",
            TEXT,
            "name of the agents' DaemonSet; if one exists in any namespace, nothing is removed",
            names.DAEMON_SET_NAME,
        ),
        Option(
            "selector",
            TEXT,
            "labels of the agents' pods",
            "app.kubernetes.io/name=gpushare-device-plugin",
            metavar="LABELS",
        ),
        Option(
            "self",
            TEXT,
            "name of this process's own ClusterRole and other objects; removed at the end",
        ),
        Option(
            "device-plugin-ttl",
            SECONDS,
            "how long kubelets report a resource after its device plugin has ended",
            310.0,
            least=0,
            most=86400,
        ),
        Option(
            "settle-time",
            SECONDS,
            "how long a node must stay clean before the clean-up is done",
            30.0,
            least=0,
            most=86400,
        ),
        Option("timeout", SECONDS, "overall timeout", 1800.0, least=0, most=86400),
        *LOGGING,
    ),
    epilog=_EXAMPLES,
)
