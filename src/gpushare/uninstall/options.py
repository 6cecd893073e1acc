"""The clean-up's options. Imports nothing heavy: ``gpushare config`` imports only this module."""

from typing import Final

from gpushare.api import names
from gpushare.options.kinds import SECONDS, TEXT
from gpushare.options.option import Option, Role
from gpushare.options.shared import ACCESS, LOGGING

_EXAMPLES: Final = """\
example:
  gpushare uninstall --namespace kube-system       # once the agents are gone; the chart starts it when it is uninstalled
what is taken away, and when: docs/guide/install.md
what each option means: docs/guide/configuration.md
"""

ROLE: Final = Role(
    "uninstall",
    "Takes from the nodes what the node agents wrote, once they are gone. Pods keep their annotations.",
    (
        *ACCESS,
        Option("namespace", TEXT, "where the agents were", absent="the access's namespace"),
        Option(
            "daemonset",
            TEXT,
            "name of the agents' DaemonSet; where one is there, in any namespace, nothing is taken away",
            names.DAEMON_SET_NAME,
        ),
        Option(
            "selector",
            TEXT,
            "labels of their pods",
            "app.kubernetes.io/name=gpushare-device-plugin",
            metavar="LABELS",
        ),
        Option(
            "self",
            TEXT,
            "name of the ClusterRole and the other objects that this process runs by; removed at the end",
        ),
        Option(
            "device-plugin-ttl",
            SECONDS,
            "how long kubelets name a resource after its plugin's end",
            310.0,
            least=0,
            most=86400,
        ),
        Option("settle-time", SECONDS, "how long a node must stay clean", 30.0, least=0, most=86400),
        Option("timeout", SECONDS, "after how long to end all the same", 1800.0, least=0, most=86400),
        *LOGGING,
    ),
    epilog=_EXAMPLES,
)
