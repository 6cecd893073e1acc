"""``gpushare scheduler``: the command line of the extender."""

import argparse
import sys
from pathlib import Path
from typing import Final

from gpushare import logs
from gpushare.kube.access import load_access
from gpushare.kube.errors import KubeconfigError
from gpushare.model.device import Placement
from gpushare.model.errors import InvalidUnit
from gpushare.model.quantity import MemoryUnit
from gpushare.scheduler.bind import RESERVATION_TTL_S
from gpushare.scheduler.limits import Limits
from gpushare.scheduler.process import Settings, serve
from gpushare.serving.command import address, run

_LIMITS: Final = {
    "interval": "seconds between two acts at the least (default %(default)s)",
    "wait": "seconds that a pod waits before others move for it (default %(default)s)",
    "moves": "pods that move in one act at most (default %(default)s)",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpushare scheduler",
        description="Scheduler extender: finds one GPU for each pod that asks for aliyun.com/gpu-mem.",
    )
    parser.add_argument(
        "--kubeconfig", help="kubeconfig file (default: $KUBECONFIG, the pod's account, ~/.kube/config)"
    )
    parser.add_argument("--context", help="context of the kubeconfig (default: its current one)")
    parser.add_argument(
        "--listen", default="127.0.0.1:9451", metavar="HOST:PORT", help="default %(default)s; port 0: any"
    )
    parser.add_argument(
        "--health-listen",
        metavar="HOST:PORT",
        help="serve /healthz, /readyz and /metrics there too, and nothing else (default: nowhere)",
    )
    parser.add_argument("--port-file", type=Path, help="write the port here once it is known")
    parser.add_argument(
        "--unit", default="1GiB", help="unit of nodes whose agent does not say its own: 1GiB or 128MiB"
    )
    parser.add_argument(
        "--isolated-max-pods",
        type=int,
        default=16,
        help="pods per GPU on isolated nodes (default %(default)s)",
    )
    parser.add_argument(
        "--node-policy",
        choices=[one.value for one in Placement],
        default="binpack",
        help="default %(default)s",
    )
    parser.add_argument(
        "--reservation-ttl",
        type=float,
        default=RESERVATION_TTL_S,
        metavar="SECONDS",
        help="default %(default)s",
    )
    parser.add_argument(
        "--lease",
        metavar="NAMESPACE/NAME",
        help="the Lease by which the kube-scheduler beside this extender leads: only the leader's writes status and"
        " deletion costs of ResourcePolicies (default: there is one alone)",
    )
    moving = parser.add_argument_group("defragmentation", "pods that move so that one fits that waits")
    moving.add_argument(
        "--defragmentation",
        action="store_true",
        help="evict pods for it, as their budgets allow (default: never)",
    )
    limits = Limits()
    for option, value, kind, what in (
        ("interval", limits.interval_s, float, "SECONDS"),
        ("wait", limits.wait_s, float, "SECONDS"),
        ("moves", limits.most_moves, int, "PODS"),
    ):
        moving.add_argument(
            f"--defragmentation-{option}", type=kind, default=value, metavar=what, help=_LIMITS[option]
        )
    parser.add_argument("--log-format", choices=logs.LAYOUTS, default="text")
    parser.add_argument("--log-level", choices=logs.LEVELS, default="info")
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    host, port = address("--listen", options.listen, "127.0.0.1:9451")
    health = options.health_listen
    if options.isolated_max_pods < 1:
        raise ValueError(f"--isolated-max-pods {options.isolated_max_pods}: at least 1")
    if not 0 < options.reservation_ttl <= 3600:
        raise ValueError(f"--reservation-ttl {options.reservation_ttl}: above 0 and at most 3600 seconds")
    lease = None
    if options.lease is not None:
        namespace, slash, name = options.lease.partition("/")
        if not (namespace and slash and name) or "/" in name:
            raise ValueError(f"--lease {options.lease}: write NAMESPACE/NAME")
        lease = (namespace, name)
    limits = Limits(
        options.defragmentation_interval, options.defragmentation_wait, options.defragmentation_moves
    )
    return Settings(
        host=host,
        port=port,
        port_file=options.port_file,
        health=None if health is None else address("--health-listen", health, "0.0.0.0:9452"),
        unit=MemoryUnit.parse(options.unit, "--unit"),
        isolated_cap=options.isolated_max_pods,
        node_policy=Placement(options.node_policy),
        reservation_ttl_s=options.reservation_ttl,
        lease=lease,
        defragmentation=limits if options.defragmentation else None,
    )


def main(argv: list[str] | None = None) -> int:
    """Run the extender; 0 after SIGTERM, 2 on bad input, 1 when a part of it failed."""
    options = _parser().parse_args(argv)
    logs.configure(options.log_level, options.log_format)
    try:
        settings = _settings(options)
        access = load_access(options.kubeconfig, options.context)
    except (ValueError, InvalidUnit, KubeconfigError) as error:
        print(f"gpushare scheduler: {error}", file=sys.stderr)
        return 2
    return run("gpushare scheduler", serve(access, settings))


if __name__ == "__main__":
    sys.exit(main())
