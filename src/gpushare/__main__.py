"""The command line: ``gpushare ROLE …``. Each role imports only what it needs."""

import gc
import importlib
import os
import sys
from types import ModuleType
from typing import Final

from gpushare import __version__
from gpushare.process.lazy_import import deferring, initialize_later
from gpushare.process.nesting import accept_deep_json

_TOOLS: Final = "tools"
#: Role → (module with ``main(argv) -> int``, what it is), by what they are there for.
GROUPS: Final = {
    "processes, which the charts run": {
        "scheduler": ("gpushare.scheduler.__main__", "the scheduler extender, next to kube-scheduler"),
        "node-agent": ("gpushare.nodeagent.__main__", "the device plugin of one node"),
        "admission": (
            "gpushare.admission.__main__",
            "the admission webhook, for clusters without admission policies",
        ),
        "dashboard": (
            "gpushare.dashboard.__main__",
            "a web page with all GPUs, their allocations and pending pods",
        ),
        "uninstall": ("gpushare.uninstall.__main__", "removes from nodes what the node agents wrote"),
    },
    _TOOLS: {
        "inspect": ("gpushare.inspect.__main__", "shows allocations: `kubectl inspect cgpu`"),
        "doctor": ("gpushare.doctor.__main__", "checks a cluster or a node and suggests fixes"),
        "config": ("gpushare.config.__main__", "shows and validates configuration"),
        "simulate": (
            "gpushare.simulate.__main__",
            "simulates where pods would land, and how many more nodes would suffice",
        ),
        "node-template": (
            "gpushare.nodetemplate.__main__",
            "node templates for cluster-autoscaler and Karpenter, for scaling from zero",
        ),
    },
    "to try it": {
        "playground": (
            "gpushare_playground.__main__",
            "a whole cluster in one process tree, without a GPU",
        ),
    },
}
ROLES: Final = {name: role for group in GROUPS.values() for name, role in group.items()}
#: As shells say that SIGPIPE has ended a program: 128 and its number.
_PIPE_CLOSED: Final = 141
_EXAMPLES: Final = """\
examples:
  gpushare playground                        a cluster to try everything in; Ctrl-C ends it
  gpushare inspect -d                        allocations of every GPU, by pod
  gpushare doctor                            checks the cluster of your kubeconfig
  gpushare config show scheduler             its effective options, and where each value comes from

Options come from flags, the environment (GPUSHARE_…) and a file (--config).
Documentation: docs/guide/install.md, docs/guide/configuration.md, docs/guide/doctor.md, docs/guide/logs.md"""


def main(argv: list[str] | None = None) -> int:
    """Run the role named first; returns its exit code, 2 when there is no such role."""
    arguments = sys.argv[1:] if argv is None else argv
    role = arguments[0] if arguments else "--help"
    if role in ("-h", "--help"):
        print(_help())
        return 0 if arguments else 2
    if role in ("-V", "--version"):
        print(f"gpushare {__version__}")
        return 0
    if role not in ROLES:
        print(
            f"gpushare: unknown role {role!r}{_meant(role)}; use one of {', '.join(ROLES)}", file=sys.stderr
        )
        return 2
    accept_deep_json()
    try:
        module = _load(ROLES[role][0])
    except ModuleNotFoundError as missing:
        if missing.name != ROLES[role][0].partition(".")[0]:
            raise
        print(
            f"gpushare: {role} is not installed: it is part of a checkout, not of the images",
            file=sys.stderr,
        )
        return 2
    if role not in GROUPS[_TOOLS]:
        return module.main(arguments[1:]) or 0
    try:
        code: int | None = module.main(arguments[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output (head, less) has closed it. Drop what is still buffered: it would fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    return code or 0


def _meant(role: str) -> str:
    """`` (did you mean doctor?)``, or nothing where no role is near."""
    import difflib  # only for a misspelt role

    near = difflib.get_close_matches(role, ROLES, 1)
    return f" (did you mean {near[0]}?)" if near else ""


def _help() -> str:
    lines = [
        "usage: gpushare ROLE [options]    (gpushare ROLE --help says more; gpushare --version)\n",
        "Many pods on one GPU, on any Kubernetes cluster.\n",
    ]
    for group, roles in GROUPS.items():
        lines.append(f"{group}:")
        lines += [f"  {name:<13}  {text}" for name, (_, text) in roles.items()]
        lines.append("")
    return "\n".join((*lines, _EXAMPLES))


def _load(module: str) -> ModuleType:
    """Import without collecting garbage: an import makes much and leaves none, and start-up is waited for.

    Patterns, of which libraries have a hundred and use ten, are compiled when they are used, and what prometheus_client brings
    along to serve by itself is not read.
    """
    initialize_later("prometheus_client", "values")
    gc.disable()
    try:
        with deferring(patterns=True):
            return importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()


if __name__ == "__main__":
    sys.exit(main())
