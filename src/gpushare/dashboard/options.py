"""Options of the dashboard. Imports nothing heavy, because ``gpushare config`` imports this module only."""

from typing import Final

from gpushare.api.node.device import Placement
from gpushare.options.kinds import ADDRESS, CHOICE, FILE, INTEGER, PLACE, TEXT, TEXTS, UNIT
from gpushare.options.option import Option, Role
from gpushare.options.shared import ACCESS, LOGGING

_RIGHTS: Final = """\
rights that its account needs, and no others:
  nodes, pods                      list, watch
  leases (the one of --lease)      get           only where there are several schedulers
port: 9453 the page, and /healthz /readyz /metrics unless they have addresses of their own
needs no writable folder and no capability

example:
  gpushare dashboard --token-file token --kubeconfig ~/.kube/config   # outside the cluster; in it the chart starts it
how to reach and read it: docs/guide/dashboard.md
what each option means: docs/guide/configuration.md
"""

ROLE: Final = Role(
    "dashboard",
    "A page that shows all GPUs, who holds what, who waits and why: read-only, live, behind a token.",
    (
        *ACCESS,
        Option("token-file", FILE, "file with the access token", absent="it must be set"),
        Option("listen", ADDRESS, "where the page is; port 0: any", "127.0.0.1:9453"),
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
            "the scheduler, where there is one alone",
            "http://127.0.0.1:9451",
            metavar="URL",
        ),
        Option(
            "lease",
            PLACE,
            "the Lease by which one of several schedulers leads",
            absent="the one of --scheduler is alone",
        ),
        Option(
            "component-namespace",
            TEXTS,
            "where node agents and schedulers run, of which it asks figures",
            [],
            absent="$POD_NAMESPACE",
            metavar="NAMESPACE",
        ),
        Option(
            "agents-file",
            FILE,
            "lines NODE HOST:PORT: where node agents are that are no pods",
            absent="they are pods",
        ),
        Option("unit", UNIT, "memory unit of nodes whose agent does not say its own", "1GiB"),
        Option(
            "isolated-max-pods",
            INTEGER,
            "the most pods per GPU on nodes that isolate, as the scheduler has it",
            16,
            least=1,
            metavar="PODS",
        ),
        Option(
            "node-policy",
            CHOICE,
            "which node comes first, as the scheduler has it",
            Placement.BINPACK.value,
            choices=tuple(placement.value for placement in Placement),
        ),
        *LOGGING,
    ),
    epilog=_RIGHTS,
)
