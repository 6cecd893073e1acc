"""The extender's options. Imports nothing heavy, as ``gpushare config`` imports only this module."""

from typing import Final

from gpushare.api.node.device import Placement
from gpushare.options.kinds import ADDRESS, CHOICE, FILE, INTEGER, PLACE, PLUGINS, SECONDS, SWITCH, TEXT, UNIT
from gpushare.options.option import Option, Role
from gpushare.options.shared import ACCESS, LOGGING

_MOVES: Final = "defragmentation"
_SCALING: Final = "autoscaling"

_EXAMPLES: Final = """\
examples:
  gpushare scheduler --kubeconfig ~/.kube/config   # outside the cluster; in it the chart starts it
  gpushare scheduler --config gpushare.yaml --unit 128MiB
what each option means: docs/guide/configuration.md
how nodes and GPUs are chosen: docs/guide/placement.md
"""

ROLE: Final = Role(
    "scheduler",
    "Scheduler extender: finds the GPUs for each pod that asks for aliyun.com/gpu-mem, and binds it.",
    (
        *ACCESS,
        Option("listen", ADDRESS, "where kube-scheduler asks; port 0: any", "127.0.0.1:9451"),
        Option(
            "health-listen",
            ADDRESS,
            "serve /metrics there too, and of probes and decisions what has no address of its own",
            absent="nowhere",
        ),
        Option("probes-listen", ADDRESS, "serve /healthz and /readyz there", absent="at --health-listen"),
        Option(
            "decisions-listen",
            ADDRESS,
            "serve decisions there, for those who show a token",
            absent="at --health-listen",
        ),
        Option("port-file", FILE, "write the port of --listen here once it is known", absent="nowhere"),
        Option("unit", UNIT, "memory unit of nodes whose agent does not report one", "1GiB"),
        Option(
            "isolated-max-pods",
            INTEGER,
            "the most pods per GPU on nodes that isolate",
            16,
            least=1,
            metavar="PODS",
        ),
        Option(
            "node-policy",
            CHOICE,
            "which node comes first: the fullest, the emptiest, or the one of which most is left to what comes",
            Placement.BINPACK.value,
            choices=tuple(one.value for one in Placement),
        ),
        Option(
            "reservation-ttl",
            SECONDS,
            "how long a share stays reserved for a Binding that is not seen",
            15.0,
            above=0,
            most=3600,
        ),
        Option(
            "lease",
            PLACE,
            "the Lease by which the kube-scheduler beside this extender leads: only the leader's ends or moves pods for "
            "others, and writes status and deletion costs of ResourcePolicies",
            absent="there is one alone",
        ),
        Option(
            "defragmentation",
            SWITCH,
            "evict pods for one that waits, as their budgets allow",
            False,
            group=_MOVES,
        ),
        Option(
            "defragmentation-interval",
            SECONDS,
            "between two acts at the least",
            300.0,
            least=1,
            most=86400,
            group=_MOVES,
        ),
        Option(
            "defragmentation-min-pending",
            SECONDS,
            "how long a pod waits before others move for it",
            120.0,
            least=0,
            most=86400,
            group=_MOVES,
        ),
        Option(
            "defragmentation-max-evictions",
            INTEGER,
            "pods that move in one act at most",
            2,
            least=1,
            most=2,
            metavar="PODS",
            group=_MOVES,
        ),
        Option(
            "startup-taint",
            SWITCH,
            "take the startup taint from nodes whose GPUs are registered",
            False,
            group=_SCALING,
        ),
        Option(
            "placeholder-pods",
            TEXT,
            "the namespace in which placeholder pods are made for pods that no single GPU holds",
            absent="none are made",
            metavar="NAMESPACE",
            group=_SCALING,
        ),
        Option(
            "placeholder-pods-group-label",
            TEXT,
            "node label of which equal values mean equal GPUs",
            "node.kubernetes.io/instance-type",
            metavar="LABEL",
            group=_SCALING,
        ),
        Option(
            "placeholder-pods-min-pending",
            SECONDS,
            "how long a pod waits before it gets a placeholder pod",
            30.0,
            least=0,
            most=86400,
            group=_SCALING,
        ),
        Option(
            "placeholder-pods-max",
            INTEGER,
            "placeholder pods at one time at most",
            10,
            least=1,
            most=100,
            metavar="PODS",
            group=_SCALING,
        ),
        Option(
            "plugins",
            PLUGINS,
            "scheduler plugins of others that are enabled, in the order in which they are called, with their arguments",
            {},
        ),
        *LOGGING,
    ),
    groups={
        _MOVES: "pods that move so that one fits that waits",
        _SCALING: "what cluster-autoscaler cannot know by itself",
    },
    epilog=_EXAMPLES,
)
