"""``kubectl inspect cgpu``: kubectl finds this as ``kubectl-inspect-cgpu`` on PATH and passes the remaining arguments."""

import sys

from gpushare.inspect.lazy_sigint import held_back
from gpushare.process.nesting import accept_deep_json

INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run with ``argv`` (default: the process's arguments); returns the exit status."""
    accept_deep_json()
    try:
        with held_back():
            from gpushare.inspect.command import run
        return run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return INTERRUPTED


def complete(argv: "list[str] | None" = None) -> int:
    """Complete for kubectl, which runs this as ``kubectl_complete-inspect-cgpu``; the last line is its completion directive."""
    code = main(["__complete", *(sys.argv[1:] if argv is None else argv)])
    print(":4")
    return code


if __name__ == "__main__":
    sys.exit(main())
