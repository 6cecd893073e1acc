"""The simulation's options. Imports nothing heavy: ``gpushare config`` reads this module only."""

from typing import Any, Final

import msgspec

from gpushare.api.node.device import Placement
from gpushare.options.kinds import CHOICE, FILE, FILES, INTEGER, MIB, SWITCH, TEXT, UNIT, Kind, Text
from gpushare.options.option import Option, Role
from gpushare.options.shared import ACCESS
from gpushare.simulate.peers.names import PEERS

_EXAMPLES: Final = """\
exit code: 0 all pods placed, 3 pods pending, 2 invalid input, 1 the cluster or a file cannot be read

examples:
  gpushare simulate -f deployment.yaml                    # on the cluster of your kubeconfig, which is only read
  gpushare simulate -f deployment.yaml --min-nodes        # how many more nodes, of each existing shape
  gpushare simulate -f big.yaml --min-nodes --node-shape gpus=8,memory=81920,mode=cgpu
  gpushare simulate --reschedule-all --policy fragmentation  # reschedule everything with another policy
  gpushare simulate --reschedule-all --compare            # the same with every policy, including HAMi's and KAI's
  gpushare simulate --save cluster.json                   # save the cluster's state, without commands and environment
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
    "Simulates scheduling: where pods would be placed, which would be pending and why, which would be evicted, and how many more nodes would suffice. Changes nothing in the cluster.",
    (
        Option(
            "filename",
            FILES,
            "manifests (YAML or JSON), or a directory of them; - for standard input",
            [],
            short="-f",
            group=_COMES,
        ),
        Option(
            "namespace", TEXT, "namespace of manifests that name none", "default", short="-n", group=_COMES
        ),
        Option(
            "policy",
            CHOICE,
            "placement policy; hami-NODES-GPUS and kai-STRATEGY use the rules of those projects",
            absent="binpack",
            choices=(*(one.value for one in Placement), *PEERS),
            group=_COMES,
        ),
        Option(
            "compare",
            SWITCH,
            "simulate every policy, and compare the results",
            False,
            group=_COMES,
        ),
        Option(
            "reschedule-all",
            SWITCH,
            "unschedule all pods with GPUs, and schedule them again with the others",
            False,
            group=_COMES,
        ),
        Option(
            "preemption",
            SWITCH,
            "higher-priority pods evict others, as on the cluster",
            True,
            group=_COMES,
        ),
        Option(
            "snapshot",
            FILE,
            "output of --save, or of kubectl get nodes,pods -A -o json",
            group=_WHERE,
        ),
        *(msgspec.structs.replace(one, group=_WHERE) for one in ACCESS),
        Option(
            "save",
            FILE,
            "save the cluster's state to this file; simulates only if another option requests it",
            group=_WHERE,
        ),
        Option(
            "min-nodes",
            SWITCH,
            "find the smallest number of additional nodes with which all pods fit",
            False,
            group=_NODES,
        ),
        Option(
            "node-shape",
            _SHAPES,
            "shape of the additional nodes: the name of an existing node, or gpus=N,memory=MIB[,mode=share][,unit=1GiB][,cpu=…][,ram=…]"
            "[,pods=…][,label.NAME=VALUE]",
            [],
            absent="each existing shape",
            group=_NODES,
        ),
        Option("details", SWITCH, "a row for each pod", False, short="-d", group=_OUTPUT),
        Option(
            "output",
            CHOICE,
            "tables, or JSON",
            absent="table",
            choices=("table", "json"),
            short="-o",
            group=_OUTPUT,
        ),
        Option("seed", INTEGER, "random seed that decides between equal nodes", 0, group=_HOW),
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
            "memory of the GPU to which percent requests refer",
            absent="the smallest GPU",
            least=0,
            most=1 << 30,
            group=_HOW,
        ),
    ),
    epilog=_EXAMPLES,
    groups={_WHERE: "without --snapshot: the cluster of your kubeconfig"},
)
