"""Options of the dashboard. Imports nothing heavy, because ``gpushare config`` imports this module only."""

from typing import Final

from gpushare.api.node.device import Placement
from gpushare.options.kinds import ADDRESS, CHOICE, FILE, INTEGER, PLACE, TEXT, TEXTS, UNIT
from gpushare.options.option import Option, Role
from gpushare.options.shared import ACCESS, LOGGING

_RIGHTS: Final = """\
permissions that its ServiceAccount needs:
  nodes, pods                      list, watch
  resourceclaims, deviceclasses    list, watch
  serviceaccounts/token            create        of gpushare-reader: reasons of pending pods
  leases (the one of --lease)      get           only with several schedulers
port: 9453 the page, and /healthz /readyz /metrics unless they have addresses of their own
needs no writable directory and no capability

example:
  gpushare dashboard --token-file token --kubeconfig ~/.kube/config   # outside the cluster (inside, the chart starts it)
how to reach and read it: docs/guide/dashboard.md
options: docs/reference/options.md; where values come from: docs/guide/configuration.md
"""

ROLE: Final = Role(
    "dashboard",
    "A web page with all GPUs, their allocations, and pending pods with reasons: read-only, live, protected by a token.",
    (
        *ACCESS,
        Option("token-file", FILE, "file with the access token", absent="it must be set"),
        Option("listen", ADDRESS, "address of the page (port 0: any free port)", "127.0.0.1:9453"),
        Option("metrics-listen", ADDRESS, "serve /metrics there", absent="at --listen"),
        Option("probes-listen", ADDRESS, "serve /healthz and /readyz there", absent="at --listen"),
        Option(
            "port-file",
            FILE,
            "write the port of --listen here once it is known, and then those of metrics and probes",
            absent="nowhere",
        ),
        Option(
            "scheduler",
            TEXT,
            "URL of a single scheduler",
            "http://127.0.0.1:9451",
            metavar="URL",
        ),
        Option(
            "lease",
            PLACE,
            "leader-election Lease of several schedulers",
            absent="--scheduler is the only one",
        ),
        Option(
            "component-namespace",
            TEXTS,
            "namespaces of the node agents and schedulers",
            [],
            absent="$POD_NAMESPACE",
            metavar="NAMESPACE",
        ),
        Option(
            "agents-file",
            FILE,
            "file with lines NODE HOST:PORT, for agents that are not pods",
            absent="they are pods",
        ),
        Option("unit", UNIT, "memory unit of nodes whose agent does not report one", "1GiB"),
        Option(
            "isolated-max-pods",
            INTEGER,
            "maximum pods per GPU on isolated nodes, as set for the scheduler",
            16,
            least=1,
            metavar="PODS",
        ),
        Option(
            "node-policy",
            CHOICE,
            "placement policy between nodes, as set for the scheduler",
            Placement.BINPACK.value,
            choices=tuple(placement.value for placement in Placement),
        ),
        *LOGGING,
    ),
    epilog=_RIGHTS,
)
