"""``gpushare node-template``: what to tell an autoscaler of a group's nodes, from a living one or from its GPUs."""

import argparse
import sys
from collections.abc import Sequence
from typing import Final, NoReturn, TextIO

import msgspec

from gpushare.model.device import NodeMode
from gpushare.model.errors import ModelError
from gpushare.model.node_template import FORMS, InvalidTemplate, NodeTemplate, template_of, written
from gpushare.model.objects import decode_node
from gpushare.model.quantity import MemoryUnit

_PROGRAM: Final = "gpushare node-template"
_EXAMPLES: Final = """\
examples:
  kubectl get node NODE -o json | gpushare node-template --node - -o aws
  gpushare node-template --gpus 4 --gpu-memory-mib 16160 --mode core_mem -o azure
what to do with it: docs/guide/autoscaling.md
"""
_MODES: Final = tuple(mode.value for mode in NodeMode if mode is not NodeMode.DEFAULT)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise InvalidTemplate("", f"{message}; {_PROGRAM} --help tells the options")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=_PROGRAM,
        description="Prints what cluster-autoscaler or Karpenter must know of the nodes of a group, to make the first one.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--node", metavar="FILE", help="a node of the group as JSON; - reads it from standard input"
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="without --node: GPUs of a node")
    parser.add_argument(
        "--gpu-memory-mib", type=int, metavar="MIB", help="memory of each, as nvidia-smi shows it"
    )
    parser.add_argument("--mode", choices=_MODES, help="label ack.node.gpu.schedule (share)")
    parser.add_argument(
        "--unit", help="memory unit, 1GiB (default) or 128MiB; with --node: another than the node's"
    )
    parser.add_argument(
        "--group", default="gpu", metavar="NAME", help="name of the NodePool, for karpenter (%(default)s)"
    )
    parser.add_argument("-o", "--output", choices=tuple(FORMS), default="capacity", help="(%(default)s)")
    return parser


def _template(options: argparse.Namespace, stdin: TextIO) -> NodeTemplate:
    unit = None if options.unit is None else MemoryUnit.parse(options.unit, "--unit")
    if options.node is not None:
        if options.gpus is not None or options.gpu_memory_mib is not None or options.mode is not None:
            raise InvalidTemplate(
                "", "--node says what the GPUs are: leave out --gpus, --gpu-memory-mib and --mode"
            )
        template = template_of(decode_node(_read(options.node, stdin)))
        return template if unit is None else msgspec.structs.replace(template, unit=unit)
    if options.gpus is None or options.gpu_memory_mib is None:
        raise InvalidTemplate("", "give --node, or --gpus and --gpu-memory-mib")
    for option, value, most in (
        ("--gpus", options.gpus, 128),
        ("--gpu-memory-mib", options.gpu_memory_mib, 1 << 30),
    ):
        if not 0 < value <= most:
            raise InvalidTemplate("", f"{option} {value}: give a number from 1 to {most}")
    gpus = (options.gpu_memory_mib,) * options.gpus
    return NodeTemplate(gpus, NodeMode(options.mode or "share"), unit or MemoryUnit.GIB)


def _read(name: str, stdin: TextIO) -> bytes:
    if name == "-":
        return stdin.read().encode()
    with open(name, "rb") as file:
        return file.read()


def main(argv: Sequence[str] | None = None) -> int:
    """Print it as JSON, which is YAML too; 0, or 2 on bad input."""
    try:
        options = _parser().parse_args(argv)
        told = written(_template(options, sys.stdin), options.output, options.group)
    except (ModelError, msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return 2
    print(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
