"""The simulation's options. Imports nothing heavy: ``gpushare config`` reads this module only."""

from typing import Any, Final

import msgspec

from gpushare.api.node.device import Placement
from gpushare.options.kinds import CHOICE, FILE, FILES, INTEGER, MIB, SWITCH, TEXT, UNIT, Kind, Text
from gpushare.options.option import Option, Role
from gpushare.options.shared import ACCESS
from gpushare.simulate.peers.names import PEERS

_EXAMPLES: Final = """\
exit code: 0 all have a place, 3 pods wait, 2 wrong input, 1 the cluster or a file cannot be read

examples:
  gpushare simulate -f deployment.yaml                    # on the cluster of your kubeconfig, which is only read
  gpushare simulate -f deployment.yaml --min-nodes           # how many more nodes, of each kind that is there
  gpushare simulate -f big.yaml --min-nodes --node-shape gpus=8,memory=81920,mode=cgpu
  gpushare simulate --reschedule-all --policy fragmentation         # all that runs, placed again by another policy
  gpushare simulate --reschedule-all --compare            # the same by every policy, also by HAMi's and KAI's
  gpushare simulate --save cluster.json                   # keep the cluster's state, without commands and environment
  gpushare simulate --snapshot cluster.json -f a.yaml
more: docs/guide/simulate.md
"""
_COMES: Final = "workloads"
_WHERE: Final = "cluster"
_NODES: Final = "how many nodes"
_OUTPUT: Final = "output"
_HOW: Final = "settings of the cluster"


def _shapes(raw: Any) -> list[str]:
    # Shapes contain commas.
    listed = raw.split(";") if isinstance(raw, Text) else raw
    if not isinstance(listed, list) or not all(isinstance(one, str) and one.strip() for one in listed):
        raise ValueError
    return [str(one).strip() for one in listed]


_SHAPES: Final = Kind(
    "SHAPE", "shapes (a list in a file; in a variable with semicolons)", _shapes,
    {"type": "array", "items": {"type": "string", "minLength": 1}}, several=True, show=lambda value: ";".join(value) or "none",
)  # fmt: skip

ROLE: Final = Role(
    "simulate",
    "Says where pods would land, what would wait and why, who would be evicted, and how many more nodes would be enough. Writes nothing to a cluster.",
    (
        Option(
            "filename",
            FILES,
            "manifests, YAML or JSON, or a folder of such; - reads standard input",
            [],
            short="-f",
            group=_COMES,
        ),
        Option("namespace", TEXT, "of manifests that name none", "default", short="-n", group=_COMES),
        Option(
            "policy",
            CHOICE,
            "how nodes and GPUs are chosen; hami-NODES-GPUS and kai-STRATEGY: by the rules of those projects",
            absent="binpack",
            choices=(*(one.value for one in Placement), *PEERS),
            group=_COMES,
        ),
        Option(
            "compare",
            SWITCH,
            "run under every policy, and show the outcomes side by side",
            False,
            group=_COMES,
        ),
        Option(
            "reschedule-all",
            SWITCH,
            "remove everything that holds GPUs, and place it again with the rest",
            False,
            group=_COMES,
        ),
        Option(
            "preemption",
            SWITCH,
            "more important pods have others evicted, as on the cluster",
            True,
            group=_COMES,
        ),
        Option(
            "snapshot",
            FILE,
            "what --save, or kubectl get nodes,pods -A -o json, has written",
            group=_WHERE,
        ),
        *(msgspec.structs.replace(one, group=_WHERE) for one in ACCESS),
        Option(
            "save",
            FILE,
            "write the cluster's state there, and simulate only where something else asks for it",
            group=_WHERE,
        ),
        Option(
            "min-nodes",
            SWITCH,
            "find the smallest number of more nodes that lets all in",
            False,
            group=_NODES,
        ),
        Option(
            "node-shape",
            _SHAPES,
            "what they are like: the name of a node that is there, or gpus=N,memory=MIB[,mode=share][,unit=1GiB][,cpu=…][,ram=…]"
            "[,pods=…][,label.NAME=VALUE]",
            [],
            absent="each kind that is there",
            group=_NODES,
        ),
        Option("details", SWITCH, "a row for each pod", False, short="-d", group=_OUTPUT),
        Option(
            "output",
            CHOICE,
            "tables for people, or JSON",
            absent="table",
            choices=("table", "json"),
            short="-o",
            group=_OUTPUT,
        ),
        Option("seed", INTEGER, "decides between equal nodes", 0, group=_HOW),
        Option(
            "isolated-max-pods",
            INTEGER,
            "pods per GPU on isolated nodes",
            16,
            least=1,
            most=1_000_000,
            group=_HOW,
        ),
        Option(
            "ignored-by-scheduler",
            SWITCH,
            "kube-scheduler does not count our resources (extender.ignoredByScheduler)",
            True,
            group=_HOW,
        ),
        Option("unit", UNIT, "memory unit", absent="that of the nodes", group=_HOW),
        Option(
            "reference-gpu-memory-mib",
            MIB,
            "of which percent is meant",
            absent="the smallest GPU that is there",
            least=0,
            most=1 << 30,
            group=_HOW,
        ),
    ),
    epilog=_EXAMPLES,
    groups={_WHERE: "without --snapshot: the cluster of your kubeconfig"},
)
