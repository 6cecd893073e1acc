"""The extender's options. Imports nothing heavy, as ``gpushare config`` imports only this module."""

from typing import Final

from msgspec import structs

from gpushare.api.node.device import Placement
from gpushare.options.kinds import ADDRESS, CHOICE, FILE, INTEGER, PLACE, PLUGINS, SECONDS, SWITCH, TEXT, UNIT
from gpushare.options.option import Option, Role
from gpushare.options.shared import ACCESS, LOG_FORMAT, LOG_LEVEL

_MOVES: Final = "defragmentation"
_SCALING: Final = "autoscaling"

_EXAMPLES: Final = """\
examples:
  gpushare scheduler --kubeconfig ~/.kube/config   # outside the cluster (inside, the chart starts it)
  gpushare scheduler --config gpushare.yaml --unit 128MiB
options: docs/reference/options.md; where values come from: docs/guide/configuration.md
how nodes and GPUs are chosen: docs/guide/placement.md
"""

ROLE: Final = Role(
    "scheduler",
    "Scheduler extender: allocates GPUs to pods that request aliyun.com/gpu-mem, and binds the pods.",
    (
        *ACCESS,
        Option("listen", ADDRESS, "address for kube-scheduler (port 0: any free port)", "127.0.0.1:9451"),
        Option(
            "health-listen",
            ADDRESS,
            "serve /metrics there, and probes and decisions unless they have their own addresses",
            absent="nowhere",
        ),
        Option("probes-listen", ADDRESS, "serve /healthz and /readyz there", absent="at --health-listen"),
        Option(
            "decisions-listen",
            ADDRESS,
            "serve decisions there; they require a token",
            absent="at --health-listen",
        ),
        Option("port-file", FILE, "write the port of --listen here once it is known", absent="nowhere"),
        Option("unit", UNIT, "memory unit of nodes whose agent does not report one", "1GiB"),
        Option(
            "isolated-max-pods",
            INTEGER,
            "maximum pods per GPU on isolated nodes",
            16,
            least=1,
            metavar="PODS",
        ),
        Option(
            "node-policy",
            CHOICE,
            "placement policy between nodes: fullest first, emptiest first, or least fragmentation",
            Placement.BINPACK.value,
            choices=tuple(one.value for one in Placement),
        ),
        Option(
            "reservation-ttl",
            SECONDS,
            "how long a share stays reserved while its Binding has not been observed",
            15.0,
            above=0,
            most=3600,
        ),
        Option(
            "lease",
            PLACE,
            "leader-election Lease of the accompanying kube-scheduler: only the leader's extender evicts pods, and writes "
            "the status and deletion costs of ResourcePolicies",
            absent="this is the only replica",
        ),
        Option(
            "defragmentation",
            SWITCH,
            "evict pods, within their PodDisruptionBudgets, so that a pending pod fits",
            False,
            group=_MOVES,
        ),
        Option(
            "defragmentation-interval",
            SECONDS,
            "minimum interval between runs",
            300.0,
            least=1,
            most=86400,
            group=_MOVES,
        ),
        Option(
            "defragmentation-min-pending",
            SECONDS,
            "how long a pod must be pending before others are evicted for it",
            120.0,
            least=0,
            most=86400,
            group=_MOVES,
        ),
        Option(
            "defragmentation-max-evictions",
            INTEGER,
            "maximum evictions per run",
            2,
            least=1,
            most=2,
            metavar="PODS",
            group=_MOVES,
        ),
        Option(
            "startup-taint",
            SWITCH,
            "remove the startup taint from nodes whose GPUs are registered",
            False,
            group=_SCALING,
        ),
        Option(
            "placeholder-pods",
            TEXT,
            "namespace in which to create placeholder pods, for pods that fit no single GPU",
            absent="none are created",
            metavar="NAMESPACE",
            group=_SCALING,
        ),
        Option(
            "placeholder-pods-group-label",
            TEXT,
            "node label whose value identifies nodes with the same GPUs",
            "node.kubernetes.io/instance-type",
            metavar="LABEL",
            group=_SCALING,
        ),
        Option(
            "placeholder-pods-min-pending",
            SECONDS,
            "how long a pod must be pending before a placeholder pod is created",
            30.0,
            least=0,
            most=86400,
            group=_SCALING,
        ),
        Option(
            "placeholder-pods-max",
            INTEGER,
            "maximum number of placeholder pods",
            10,
            least=1,
            most=100,
            metavar="PODS",
            group=_SCALING,
        ),
        Option(
            "plugins",
            PLUGINS,
            "enabled third-party scheduler plugins with their arguments, in call order",
            {},
        ),
        LOG_FORMAT,
        structs.replace(LOG_LEVEL, help=f"{LOG_LEVEL.help}; debug also logs every extender request"),
    ),
    groups={
        _MOVES: "evicting pods so that a pending pod fits",
        _SCALING: "cooperation with cluster-autoscaler",
    },
    epilog=_EXAMPLES,
)
