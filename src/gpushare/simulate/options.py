"""What can be said to a simulation. Imports nothing heavy: ``gpushare config`` reads this alone."""

from typing import Any, Final

import msgspec

from gpushare.api.node.device import Placement
from gpushare.options.kinds import CHOICE, FILE, FILES, FOLDER, INTEGER, MIB, SWITCH, TEXT, UNIT, Kind, Text
from gpushare.options.option import Option, Role
from gpushare.options.shared import ACCESS

_EXAMPLES: Final = """\
exit code: 0 all have a place, 3 pods wait, 2 wrong input, 1 the cluster or a file cannot be read

examples:
  gpushare simulate -f deployment.yaml                    # on the cluster of your kubeconfig, which is only read
  gpushare simulate -f deployment.yaml --min-nodes           # how many more nodes, of each kind that is there
  gpushare simulate -f big.yaml --min-nodes --node-shape gpus=8,memory=81920,mode=cgpu
  gpushare simulate --reschedule-all --policy fragmentation         # all that runs, placed anew by another policy
  gpushare simulate --save cluster.json                   # keep the cluster's state, without commands and environment
  gpushare simulate --snapshot cluster.json -f a.yaml --plot given.svg
  gpushare simulate --trace DIR --list default            # a list of pods in the form of the openb traces
  gpushare simulate --trace DIR --policy spread --min-nodes  # how many nodes like the list's drop none of its pods
  gpushare simulate --trace DIR --times --plot time.svg   # the same by the list's own times: pods end, too
more: docs/guide/simulate.md
"""
_COMES: Final = "what comes"
_WHERE: Final = "where to"
_TRACE: Final = "a trace"
_NODES: Final = "how many nodes"
_TOLD: Final = "what is told"
_HOW: Final = "how the cluster's own settings are"


def _shapes(raw: Any) -> list[str]:
    # Shapes have commas of their own.
    listed = raw.split(";") if isinstance(raw, Text) else raw
    if not isinstance(listed, list) or not all(isinstance(one, str) and one.strip() for one in listed):
        raise ValueError
    return [str(one).strip() for one in listed]


def _ratio(raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float | Text):
        raise ValueError
    return float(raw)


_SHAPES: Final = Kind(
    "SHAPE", "shapes (a list in a file; in a variable with semicolons)", _shapes,
    {"type": "array", "items": {"type": "string", "minLength": 1}}, several=True, show=lambda value: ";".join(value) or "none",
)  # fmt: skip
_RATIO: Final = Kind("RATIO", "a number", _ratio, {"type": "number"}, number=True)

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
            "how nodes are chosen",
            absent="binpack; with --trace each of them",
            choices=tuple(one.value for one in Placement),
            group=_COMES,
        ),
        Option(
            "reschedule-all",
            SWITCH,
            "take off what holds GPUs, and place it anew with all the rest",
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
        Option("trace", FOLDER, "a folder with lists of nodes and pods in openb's form", group=_TRACE),
        Option("list", TEXT, "the list of pods", absent="default, or the only one", group=_TRACE),
        Option(
            "ratio",
            _RATIO,
            "how much arrives, in parts of what the GPUs have",
            absent="1.3",
            above=0,
            most=10,
            group=_TRACE,
        ),
        Option(
            "times",
            SWITCH,
            "by the list's own times: pods come, wait for room, and end",
            False,
            group=_TRACE,
        ),
        Option(
            "trace-nodes",
            INTEGER,
            "on so many nodes like the list's, drawn by --seed; the same pods come",
            absent="all of the list's",
            least=1,
            most=1_000_000,
            group=_TRACE,
        ),
        Option(
            "min-nodes",
            SWITCH,
            "find the smallest number of more nodes that lets all in; with --trace of nodes in all",
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
        Option("details", SWITCH, "a row for each pod", False, short="-d", group=_TOLD),
        Option(
            "output",
            CHOICE,
            "tables for people, or JSON",
            absent="table",
            choices=("table", "json"),
            short="-o",
            group=_TOLD,
        ),
        Option(
            "plot",
            FILE,
            "draw what is given over the pods that come, or over time: .svg, or .png",
            group=_TOLD,
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
