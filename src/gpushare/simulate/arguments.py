"""The command line of ``gpushare simulate``."""

import argparse
from pathlib import Path
from typing import Final, NoReturn

from gpushare.model.device import Placement
from gpushare.simulate.errors import SimulateError

PROGRAM: Final = "gpushare simulate"
_EXAMPLES: Final = """\
examples:
  gpushare simulate -f deployment.yaml                    # on the cluster of your kubeconfig, which is only read
  gpushare simulate -f deployment.yaml --enough           # how many more nodes, of each kind that is there
  gpushare simulate -f big.yaml --enough --shape gpus=8,memory=81920,mode=cgpu
  gpushare simulate --anew --policy fragmentation         # all that runs, placed anew by another policy
  gpushare simulate --save cluster.json                   # keep the cluster's state, without commands and environment
  gpushare simulate --snapshot cluster.json -f a.yaml --plot given.svg
  gpushare simulate --trace DIR --list default            # a list of pods in the form of the openb traces
more: docs/guide/simulate.md
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise SimulateError("", f"{message}; {PROGRAM} --help tells the options")


def parser() -> argparse.ArgumentParser:
    """Its parser; raises ``SimulateError`` on what cannot be understood."""
    made = _Parser(
        prog=PROGRAM,
        description="Says where pods would land, what would wait and why, and how many more nodes would be enough. Writes nothing to a cluster.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = made.add_argument_group("what comes")
    what.add_argument(
        "-f",
        "--filename",
        action="append",
        default=[],
        metavar="FILE",
        help="manifests, YAML or JSON; - reads standard input",
    )
    what.add_argument(
        "-n", "--namespace", default="default", help="of manifests that name none (%(default)s)"
    )
    what.add_argument(
        "--policy", choices=[one.value for one in Placement], help="how nodes are chosen (default: binpack)"
    )
    what.add_argument(
        "--anew", action="store_true", help="take off what holds GPUs, and place it anew with all the rest"
    )
    what.add_argument(
        "--preemption",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="more important pods have others evicted, as on the cluster",
    )
    where = made.add_argument_group("where to (without one of them: the cluster of your kubeconfig)")
    where.add_argument(
        "--snapshot", metavar="FILE", help="what --save, or kubectl get nodes,pods -A -o json, has written"
    )
    where.add_argument(
        "--kubeconfig", help="kubeconfig file (default: $KUBECONFIG, the pod's account, ~/.kube/config)"
    )
    where.add_argument("--context", help="context of the kubeconfig (default: its current one)")
    where.add_argument("--save", type=Path, metavar="FILE", help="write the cluster's state there")
    where.add_argument(
        "--trace", type=Path, metavar="DIR", help="a folder with lists of nodes and pods in openb's form"
    )
    where.add_argument(
        "--list", dest="trace_list", metavar="NAME", help="with --trace: the list of pods (default: default)"
    )
    where.add_argument(
        "--ratio",
        type=float,
        default=1.3,
        help="with --trace: how much arrives, in parts of what the GPUs have (%(default)s)",
    )
    nodes = made.add_argument_group("how many nodes")
    nodes.add_argument(
        "--enough", action="store_true", help="find the smallest number of more nodes that lets all in"
    )
    nodes.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="SHAPE",
        help="what they are like: the name of a node that is there, or gpus=N,memory=MIB[,mode=share][,unit=1GiB][,cpu=…][,ram=…]"
        "[,pods=…][,label.NAME=VALUE] (default: each kind that is there)",
    )
    told = made.add_argument_group("what is told")
    told.add_argument("-d", "--details", action="store_true", help="a row for each pod")
    told.add_argument("-o", "--output", choices=("json",), help="for programs")
    told.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw what is given over the pods that come: .svg, or .png"
    )
    how = made.add_argument_group("how the cluster's own settings are")
    how.add_argument("--seed", type=int, default=0, help="decides between equal nodes (%(default)s)")
    how.add_argument(
        "--isolated-max-pods", type=int, default=16, help="pods per GPU on isolated nodes (%(default)s)"
    )
    how.add_argument(
        "--counts-alone",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="kube-scheduler does not count our resources (extender.countsAlone)",
    )
    how.add_argument("--unit", help="memory unit, 1GiB or 128MiB (default: that of the nodes)")
    how.add_argument(
        "--card-memory-mib",
        type=int,
        metavar="MIB",
        help="of which percent is meant (default: the smallest GPU that is there)",
    )
    return made


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The options; raises ``SimulateError`` where they do not go together."""
    options = parser().parse_args(arguments)
    if options.trace is not None:
        given = {
            "-f": options.filename,
            "--snapshot": options.snapshot,
            "--save": options.save,
            "--anew": options.anew,
            "--enough": options.enough,
            "--shape": options.shape,
        }
        if wrong := [name for name, value in given.items() if value]:
            raise SimulateError("", f"--trace goes without {', '.join(wrong)}: a list of its own is replayed")
        if not 0 < options.ratio <= 10:
            raise SimulateError(f"--ratio {options.ratio}", "above 0 and at most 10")
    elif options.trace_list is not None:
        raise SimulateError("--list", "goes with --trace")
    if options.shape and not options.enough:
        raise SimulateError("--shape", "goes with --enough")
    if options.isolated_max_pods < 1:
        raise SimulateError(f"--isolated-max-pods {options.isolated_max_pods}", "at least 1")
    if options.card_memory_mib is not None and not 0 <= options.card_memory_mib <= 1 << 30:
        raise SimulateError(f"--card-memory-mib {options.card_memory_mib}", "a number of MiB from 0 on")
    if options.plot is not None and options.plot.suffix not in (".svg", ".png"):
        raise SimulateError(f"--plot {options.plot}", "write to a file that ends with .svg or .png")
    return options
