"""``python -m gpushare_playground.controlplane --binaries DIR --state DIR``: a control plane as a process.

Prints ``ready KUBECONFIG`` once it accepts objects, and ends on SIGTERM and SIGINT.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from gpushare.process.signals import stop_event
from gpushare_playground.controlplane.binaries import COMPONENTS
from gpushare_playground.controlplane.errors import ControlPlaneError
from gpushare_playground.controlplane.plane import ControlPlane


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gpushare_playground.controlplane",
        description="etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback.",
    )
    parser.add_argument("--binaries", type=Path, required=True, metavar="DIR", help="folder of the binaries")
    parser.add_argument("--state", type=Path, required=True, metavar="DIR", help="empty folder for its files")
    parser.add_argument(
        "--component",
        action="append",
        choices=COMPONENTS,
        help="start this one; may be repeated (default: all)",
    )
    parser.add_argument("--scheduler-config", type=Path, metavar="FILE", help="KubeSchedulerConfiguration")
    parser.add_argument(
        "--audit-policy",
        type=Path,
        metavar="FILE",
        help="have the API server write log/audit.log by this policy",
    )
    parser.add_argument(
        "--flag",
        action="append",
        default=[],
        type=_flag,
        metavar="COMPONENT=FLAG",
        help="a further flag of a component; may be repeated",
    )
    return parser.parse_args(argv)


def _flag(text: str) -> tuple[str, str]:
    component, _, flag = text.partition("=")
    if component not in COMPONENTS:
        raise argparse.ArgumentTypeError(f"no such component: {component}; there are {', '.join(COMPONENTS)}")
    if not flag:
        raise argparse.ArgumentTypeError(f"no flag for {component}: write {component}=--v=4")
    return component, flag


def _flags(options: argparse.Namespace) -> dict[str, list[str]]:
    flags = {name: [flag for of, flag in options.flag if of == name] for name in COMPONENTS}
    flags["kube-apiserver"] += _auditing(options.audit_policy, options.state)
    return flags


def _auditing(policy: Path | None, state: Path) -> Sequence[str]:
    if policy is None:
        return ()
    return (
        f"--audit-policy-file={policy.absolute()}",
        f"--audit-log-path={state.absolute() / 'log' / 'audit.log'}",
    )


async def _serve(options: argparse.Namespace) -> None:
    stop = stop_event()
    components = options.component or COMPONENTS
    plane = ControlPlane(
        options.binaries,
        options.state,
        components=components,
        scheduler_config=options.scheduler_config,
        extra=_flags(options),
        report=lambda line: print(line, file=sys.stderr, flush=True),
    )
    async with plane:
        print(f"ready {plane.kubeconfig}", flush=True)
        await stop.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; returns 0, or 1 if it cannot start."""
    try:
        asyncio.run(_serve(_arguments(argv)))
    except ControlPlaneError as error:
        print(f"control plane: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
