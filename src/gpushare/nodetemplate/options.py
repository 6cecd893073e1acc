"""The options of ``gpushare node-template``."""

from typing import Final

from gpushare.api.node.modes import MODES
from gpushare.api.node.node_template import FORMS
from gpushare.options.kinds import CHOICE, INTEGER, MIB, TEXT, UNIT
from gpushare.options.option import Option, Role

_EXAMPLES: Final = """\
examples:
  kubectl get node NODE -o json | gpushare node-template --node - -o aws
  gpushare node-template --gpus 4 --gpu-memory-mib 16160 --mode core_mem -o azure
what to do with it: docs/guide/autoscaling.md
"""
_NAME: Final = "node-template"
_MODES: Final = tuple(mode.value for mode in MODES.values() if mode.resources)

ROLE: Final = Role(
    _NAME,
    "Prints the template from which cluster-autoscaler or Karpenter knows the GPUs of a node group without nodes.",
    (
        Option(
            "node",
            TEXT,
            "a node of the group as JSON; - reads it from standard input",
            metavar="FILE",
            role=_NAME,
        ),
        Option(
            "gpus",
            INTEGER,
            "without --node: GPUs of a node",
            absent="those of --node",
            least=1,
            most=128,
            metavar="GPUS",
        ),
        Option(
            "gpu-memory-mib",
            MIB,
            "memory that a node offers of each GPU in MiB: the total, in modes that isolate without what the driver reserves",
            absent="that of --node",
            least=1,
            most=1 << 30,
        ),
        Option("mode", CHOICE, "label ack.node.gpu.schedule", absent="share, or --node's", choices=_MODES),
        Option("unit", UNIT, "memory unit, if it differs from that of --node", absent="1GiB, or --node's"),
        Option("group", TEXT, "name of the NodePool, for karpenter", "gpu"),
        Option(
            "output",
            CHOICE,
            "format, by autoscaler",
            "capacity",
            choices=tuple(FORMS),
            short="-o",
            role=_NAME,
        ),
    ),
    epilog=_EXAMPLES,
)
