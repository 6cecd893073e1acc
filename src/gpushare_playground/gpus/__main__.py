"""``python -m gpushare_playground.gpus``: write a preset's description to stdout, or check a file."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gpushare_playground.gpus import PRESETS, preset, read, render


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gpushare_playground.gpus",
        description="Describe a node's simulated GPUs for the stand-in driver (docs/developer/fakegpu.md).",
        epilog=f"presets: {', '.join(PRESETS)}",
    )
    parser.add_argument(
        "preset", nargs="?", metavar="PRESET", help="write this preset's description to stdout"
    )
    parser.add_argument(
        "--node", default="node", help="name that the UUIDs are made from (default: %(default)s)"
    )
    parser.add_argument("--count", type=int, help="number of GPUs, where PRESET is a model (default: 1)")
    parser.add_argument(
        "--check", type=Path, metavar="FILE", help="read a description and say whether it is good"
    )
    given = parser.parse_args(arguments)
    if (given.preset is None) == (given.check is None):
        parser.error("name one PRESET, or a FILE to --check")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 1 with one line on stderr."""
    given = _arguments(arguments)
    try:
        if given.check is not None:
            node = read(given.check)
            print(f"{given.check}: good; GPUs described: {len(node.gpus)}")
        else:
            sys.stdout.write(render(preset(given.preset, given.node, count=given.count)))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
