"""``gpushare admission``: the command line of the webhook."""

import argparse
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final, NoReturn

from gpushare import logs
from gpushare.admission.errors import InvalidSetting
from gpushare.admission.keeper import Pace
from gpushare.admission.process import Settings, serve
from gpushare.admission.rotation import Policy
from gpushare.admission.writes import Writers
from gpushare.kube.access import load_access
from gpushare.kube.errors import KubeconfigError
from gpushare.model import names
from gpushare.model.errors import InvalidUnit
from gpushare.model.quantity import MemoryUnit
from gpushare.model.requested import Counting
from gpushare.serving.command import InvalidAddress, address, run

_PROGRAM: Final = "gpushare admission"
_RIGHTS: Final = """\
rights that its account needs, and no others:
  Role in its namespace:
    secrets                          get, patch   the one of --secret; the chart makes it, empty
    pods                             get          only before Kubernetes 1.30: node of a node agent's pod
  ClusterRole:
    admissionregistration.k8s.io
      mutatingwebhookconfigurations  get, patch   the one of --configuration
      validatingwebhookconfigurations get, patch  the one of --configuration
ports: 9443 reviews (TLS), 9452 /healthz /readyz /metrics
needs no writable folder and no capability
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise InvalidSetting(f"{message}; {_PROGRAM} --help tells the options")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=_PROGRAM,
        description="Admission webhook for clusters without the policy APIs: points GPU pods to our scheduler, refuses "
        "what can never be served, guards the records of who holds what. Makes and renews its own certificate.",
        epilog=_RIGHTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--kubeconfig", help="kubeconfig file (default: $KUBECONFIG, the pod's account, ~/.kube/config)"
    )
    parser.add_argument("--context", help="context of the kubeconfig (default: its current one)")
    parser.add_argument(
        "--namespace", help="namespace of Secret and Service (default: $POD_NAMESPACE, the account's)"
    )
    parser.add_argument(
        "--listen", default="0.0.0.0:9443", metavar="HOST:PORT", help="reviews, TLS (%(default)s)"
    )
    parser.add_argument(
        "--metrics-listen",
        default="0.0.0.0:9452",
        metavar="HOST:PORT",
        help="probes and metrics (%(default)s)",
    )
    parser.add_argument("--ports-file", type=Path, help="write both ports here once they are known")
    parser.add_argument("--service", default="gpushare-admission", help="name of the Service (%(default)s)")
    parser.add_argument(
        "--server-name",
        action="append",
        default=[],
        metavar="NAME",
        help="further DNS name or address to be valid for, where API servers call by URL; repeatable",
    )
    parser.add_argument("--secret", default="gpushare-admission", help="name of the Secret (%(default)s)")
    parser.add_argument(
        "--configuration",
        default="gpushare-admission",
        help="name of both webhook configurations (%(default)s)",
    )
    parser.add_argument("--scheduler-name", default=names.SCHEDULER_NAME, help="default %(default)s")
    parser.add_argument(
        "--writer",
        action="append",
        default=[],
        metavar="USER",
        help="user that writes records of who holds what; repeatable (default: the accounts ack-co-scheduler and "
        "gpushare-device-plugin of the namespace)",
    )
    parser.add_argument(
        "--node-agent",
        metavar="USER",
        help="user of the node agents (default: gpushare-device-plugin of the namespace)",
    )
    parser.add_argument(
        "--node-binding",
        choices=("auto", "never"),
        default="auto",
        help="auto: a node agent writes on its own node alone, by its token or the pod that the token names; "
        "default %(default)s",
    )
    parser.add_argument(
        "--unit",
        default=MemoryUnit.GIB.setting,
        help=f"unit of {names.GPU_MEM}, 1GiB or 128MiB, as the node agents have it (%(default)s)",
    )
    parser.add_argument(
        "--card-memory-mib",
        type=int,
        default=0,
        metavar="MIB",
        help=f"memory of the card of which {names.GPU_MEMORY_PERCENT} is percent; 0: it is refused (%(default)s)",
    )
    parser.add_argument(
        "--valid-for",
        type=float,
        default=90 * 24,
        metavar="HOURS",
        help="life of a certificate (%(default)s)",
    )
    parser.add_argument(
        "--renew-before",
        type=float,
        metavar="HOURS",
        help="left when it is renewed (default: a third of its life)",
    )
    parser.add_argument(
        "--overlap",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long an authority is trusted before it is served, and after (%(default)s)",
    )
    parser.add_argument(
        "--period",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="between looks at the certificates (%(default)s)",
    )
    parser.add_argument(
        "--drain",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="how long to answer on after SIGTERM, unready, until no API server is sent here (%(default)s)",
    )
    parser.add_argument("--log-format", choices=logs.LAYOUTS, default="text")
    parser.add_argument("--log-level", choices=logs.LEVELS, default="info")
    return parser


def _settings(options: argparse.Namespace, environ: Mapping[str, str], account_namespace: str) -> Settings:
    namespace = options.namespace or environ.get("POD_NAMESPACE") or account_namespace
    renew_before = options.valid_for / 3 if options.renew_before is None else options.renew_before
    for option, value, least, most in (
        ("--valid-for", options.valid_for, 0.001, 24 * 3650),
        ("--overlap", options.overlap, 0, 86400),
        ("--period", options.period, 0.05, 3600),
        ("--drain", options.drain, 0, 300),
        ("--card-memory-mib", options.card_memory_mib, 0, 1 << 30),
    ):
        if not least <= value <= most:
            raise InvalidSetting(f"{option} {value}: give a number from {least} to {most}")
    if not 0 < renew_before < options.valid_for:
        raise InvalidSetting(f"--renew-before {renew_before}: give hours above 0 and below --valid-for")
    if options.overlap + 2 * options.period >= renew_before * 3600:
        raise InvalidSetting(
            f"--overlap {options.overlap}: a certificate would end before the next one is served; "
            "give less, or a greater --renew-before"
        )
    agent = options.node_agent or f"system:serviceaccount:{namespace}:gpushare-device-plugin"
    writers = options.writer or [f"system:serviceaccount:{namespace}:ack-co-scheduler", agent]
    service = f"{options.service}.{namespace}.svc"
    return Settings(
        namespace=namespace,
        policy=Policy(
            frozenset({service, f"{service}.cluster.local", *options.server_name}),
            timedelta(hours=options.valid_for),
            timedelta(hours=renew_before),
        ),
        writers=Writers(frozenset(writers), agent),
        listen=address("--listen", options.listen, "0.0.0.0:9443"),
        metrics_listen=address("--metrics-listen", options.metrics_listen, "0.0.0.0:9452"),
        secret=options.secret,
        configuration=options.configuration,
        scheduler=options.scheduler_name,
        bind_agents=options.node_binding != "never",
        counting=Counting(MemoryUnit.parse(options.unit, "--unit"), options.card_memory_mib),
        pace=Pace(period_s=options.period, overlap_s=options.overlap),
        drain_s=options.drain,
        ports_file=options.ports_file,
    )


def main(argv: list[str] | None = None) -> int:
    """Run the webhook; 0 after SIGTERM, 2 on bad input, 1 when a part of it failed."""
    try:
        options = _parser().parse_args(argv)
        access = load_access(options.kubeconfig, options.context)
        settings = _settings(options, os.environ, access.namespace)
    except (InvalidSetting, InvalidAddress, InvalidUnit, KubeconfigError) as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return 2
    logs.configure(options.log_level, options.log_format)
    return run(_PROGRAM, serve(access, settings))


if __name__ == "__main__":
    sys.exit(main())
