"""``python -m tests.e2e.virtual [--security apparmor] -- COMMAND …``: runs COMMAND here, in a virtual machine."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.e2e.virtual.machine import NoMachine, run


def main() -> int:
    """The command's exit status; 125 without a machine."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.virtual", description=__doc__)
    parser.add_argument("--security", default="apparmor", choices=("apparmor", "selinux"))
    parser.add_argument("--timeout-s", type=float, default=3600.0)
    parser.add_argument("--shared", type=Path, help="folder that is /run/virtual in the machine; for results")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpushare-shared-") as scratch:
        shared = args.shared or Path(scratch)
        shared.mkdir(parents=True, exist_ok=True)
        try:
            return run(
                args.command, Path.cwd(), shared.resolve(), timeout_s=args.timeout_s, security=args.security
            )
        except NoMachine as error:
            print(f"virtual: {error}", file=sys.stderr)
            return 125


if __name__ == "__main__":
    sys.exit(main())
