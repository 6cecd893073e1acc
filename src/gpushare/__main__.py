"""The command line: ``gpushare ROLE …``. Each role imports only what it needs."""

import gc
import importlib
import sys
from types import ModuleType
from typing import Final

from gpushare import __version__
from gpushare.putting_off import initialize_later, putting_off

#: Role → (module with ``main(argv) -> int``, what it is).
ROLES: Final = {
    "scheduler": ("gpushare.scheduler.__main__", "the extender beside kube-scheduler"),
    "node-agent": ("gpushare.nodeagent.__main__", "the device plugin of one node"),
    "admission": (
        "gpushare.admission.__main__",
        "the admission webhook, for clusters without policies of their own",
    ),
    "playground": ("gpushare.playground.__main__", "a whole cluster in one process tree, without a GPU"),
    "uninstall": ("gpushare.uninstall.__main__", "takes from the nodes what the node agents wrote"),
    "node-template": (
        "gpushare.nodetemplate.__main__",
        "what cluster-autoscaler or Karpenter must know of nodes that are not there yet",
    ),
    "inspect": ("gpushare.inspect.__main__", "who holds what: `kubectl inspect cgpu`"),
}


def main(argv: list[str] | None = None) -> int:
    """Run the role named first; returns its exit code, 2 when there is no such role."""
    arguments = sys.argv[1:] if argv is None else argv
    role = arguments[0] if arguments else "--help"
    if role in ("-h", "--help"):
        print("usage: gpushare ROLE [options]    (gpushare ROLE --help says more)\n")
        for name, (_, text) in ROLES.items():
            print(f"  {name:<13} {text}")
        return 0 if arguments else 2
    if role in ("-V", "--version"):
        print(f"gpushare {__version__}")
        return 0
    if role not in ROLES:
        print(f"gpushare: no role {role!r}; there are {', '.join(ROLES)}", file=sys.stderr)
        return 2
    code: int | None = _load(ROLES[role][0]).main(arguments[1:])
    return code or 0


def _load(module: str) -> ModuleType:
    """Import without collecting garbage: an import makes much and leaves none, and start-up is waited for.

    Patterns, of which libraries have a hundred and use ten, are compiled when they are used, and what prometheus_client brings
    along to serve by itself is not read.
    """
    initialize_later("prometheus_client", "values")
    gc.disable()
    try:
        with putting_off(patterns=True):
            return importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()


if __name__ == "__main__":
    sys.exit(main())
