"""``gpushare dashboard``: the command line."""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from gpushare import logs
from gpushare.dashboard.errors import InvalidSetting
from gpushare.dashboard.process import Settings, serve
from gpushare.kube.access import load_access
from gpushare.kube.errors import KubeconfigError
from gpushare.model.device import Placement
from gpushare.model.errors import InvalidUnit
from gpushare.model.quantity import MemoryUnit
from gpushare.serving.command import InvalidAddress, address, run

_PROGRAM: Final = "gpushare dashboard"
_LISTEN: Final = "127.0.0.1:9453"
_RIGHTS: Final = """\
rights that its account needs, and no others:
  nodes, pods                      list, watch
  leases (the one of --lease)      get           only where there are several schedulers
port: 9453 the page, and /healthz /readyz /metrics
needs no writable folder and no capability
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise InvalidSetting(f"{message}; {_PROGRAM} --help tells the options")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=_PROGRAM,
        description="A page that shows all GPUs, who holds what, who waits and why: read-only, live, behind a token.",
        epilog=_RIGHTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--kubeconfig", help="kubeconfig file (default: $KUBECONFIG, the pod's account, ~/.kube/config)")
    add("--context", help="context of the kubeconfig (default: its current one)")
    add(
        "--token-file",
        type=Path,
        required=True,
        metavar="FILE",
        help="file with the token that lets people in",
    )
    add("--listen", default=_LISTEN, metavar="HOST:PORT", help="default %(default)s; port 0: any")
    add("--port-file", type=Path, help="write the port here once it is known")
    add(
        "--scheduler",
        default="http://127.0.0.1:9451",
        metavar="URL",
        help="the extender beside it (%(default)s)",
    )
    add(
        "--lease",
        metavar="NAMESPACE/NAME",
        help="Lease by which one of several schedulers leads; without it the one beside is alone",
    )
    add(
        "--pod",
        metavar="NAMESPACE/NAME",
        help="with --lease: the pod that this runs in (default: $POD_NAMESPACE/$POD_NAME)",
    )
    add(
        "--parts-in",
        action="append",
        default=[],
        metavar="NAMESPACE",
        help="where node agents and schedulers run, of which it asks figures; may be repeated (default: $POD_NAMESPACE)",
    )
    add(
        "--agents-file",
        type=Path,
        metavar="FILE",
        help="lines NODE HOST:PORT: where node agents are that are no pods",
    )
    add(
        "--unit",
        default="1GiB",
        help="unit of nodes whose agent names none, as the scheduler's (%(default)s)",
    )
    add("--isolated-max-pods", type=int, default=16, metavar="N", help="as the scheduler's (%(default)s)")
    add(
        "--node-policy",
        choices=[one.value for one in Placement],
        default="binpack",
        help="as the scheduler's",
    )
    add("--log-format", choices=logs.LAYOUTS, default="text")
    add("--log-level", choices=logs.LEVELS, default="info")
    return parser


def _settings(options: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    namespace = environ.get("POD_NAMESPACE", "")
    lease = None if options.lease is None else _pair("--lease", options.lease)
    pod = options.pod or (f"{namespace}/{environ['POD_NAME']}" if namespace and "POD_NAME" in environ else "")
    if lease is not None:
        if not pod:
            raise InvalidSetting(
                "--lease: say with --pod NAMESPACE/NAME which pod this is, or set POD_NAMESPACE and POD_NAME"
            )
        _pair("--pod", pod)
    if options.isolated_max_pods < 1:
        raise InvalidSetting(f"--isolated-max-pods {options.isolated_max_pods}: give 1 or more")
    if not options.scheduler.startswith(("http://", "https://")):
        raise InvalidSetting(f"--scheduler {options.scheduler}: write a URL, such as http://127.0.0.1:9451")
    host, port = address("--listen", options.listen, _LISTEN)
    return Settings(
        token_file=options.token_file,
        host=host,
        port=port,
        port_file=options.port_file,
        scheduler=options.scheduler,
        lease=lease,
        pod=pod,
        namespaces=tuple(dict.fromkeys(options.parts_in)) or ((namespace,) if namespace else ()),
        agents_file=options.agents_file,
        unit=MemoryUnit.parse(options.unit, "--unit"),
        isolated_cap=options.isolated_max_pods,
        node_policy=Placement(options.node_policy),
    )


def _pair(option: str, text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise InvalidSetting(f"{option} {text}: write NAMESPACE/NAME")
    return namespace, name


def main(argv: list[str] | None = None) -> int:
    """Run the dashboard; 0 after SIGTERM, 2 on bad input, 1 when a part of it failed."""
    try:
        options = _parser().parse_args(argv)
        settings = _settings(options, os.environ)
        access = load_access(options.kubeconfig, options.context)
        logs.configure(options.log_level, options.log_format)
        return run(_PROGRAM, serve(access, settings))
    except (InvalidSetting, InvalidAddress, InvalidUnit, KubeconfigError) as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
