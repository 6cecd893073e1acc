"""``python -m gpushare_playground.gpus``: write a preset's description to stdout, or check a file."""

import argparse
import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpushare_playground.gpus import PRESETS, preset, render

_LIBRARY: Final = Path(__file__).parents[3] / "build" / "fakegpu" / "libnvidia-ml.so.1"
#: What ``nvmlInit`` returns for a description that cannot be read (``NVML_ERROR_UNKNOWN``).
_UNREADABLE: Final = 999


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gpushare_playground.gpus",
        description="Describe a node's simulated GPUs for the fake driver (docs/developer/fakegpu.md).",
        epilog=f"presets: {', '.join(PRESETS)}",
    )
    parser.add_argument(
        "preset", nargs="?", metavar="PRESET", help="write this preset's description to stdout"
    )
    parser.add_argument(
        "--node", default="node", help="name that the UUIDs are made from (default: %(default)s)"
    )
    parser.add_argument("--count", type=int, help="number of GPUs, where PRESET is a model (default: 1)")
    parser.add_argument("--check", type=Path, metavar="FILE", help="have the fake driver read a description")
    options = parser.parse_args(arguments)
    if (options.preset is None) == (options.check is None):
        parser.error("name one PRESET, or a FILE to --check")
    return options


def _check(file: Path) -> int:
    """The exit code: 0, or 1 after the driver has reported on stderr what is wrong with the description."""
    if not file.is_file():
        print(f"{file}: no such file", file=sys.stderr)
        return 1
    if not _LIBRARY.exists():
        print(f"no fake driver in {_LIBRARY.parent}; build it with: make fakegpu", file=sys.stderr)
        return 1
    os.environ["FAKEGPU_NODE"] = str(file.absolute())
    driver = ctypes.CDLL(str(_LIBRARY))
    if driver.nvmlInit_v2() == _UNREADABLE:
        return 1
    driver.nvmlShutdown()
    print(f"{file}: good")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0, or 1 with one line on stderr."""
    options = _arguments(arguments)
    if options.check is not None:
        return _check(options.check)
    try:
        sys.stdout.write(render(preset(options.preset, options.node, count=options.count)))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
