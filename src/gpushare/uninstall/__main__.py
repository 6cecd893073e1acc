"""``gpushare uninstall``: the command line of what runs after ``helm uninstall``."""

import argparse
import asyncio
import logging
import sys
from typing import Final

from gpushare import logs
from gpushare.kube.access import Access, load_access
from gpushare.kube.backoff import Backoff
from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.kube.errors import KubeconfigError, KubeError
from gpushare.kube.session import Session
from gpushare.model import names
from gpushare.signals import told_to_end
from gpushare.uninstall.cleaning import Cleaner, Outcome, Pace
from gpushare.uninstall.cluster import Agents, ApiCluster, OwnObjects

PROGRAM: Final = "gpushare uninstall"
logger = logging.getLogger(PROGRAM)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Takes from the nodes what the node agents wrote, once they are gone. Pods keep their annotations.",
    )
    parser.add_argument(
        "--kubeconfig", help="kubeconfig file (default: $KUBECONFIG, the pod's account, ~/.kube/config)"
    )
    parser.add_argument("--context", help="context of the kubeconfig (default: its current one)")
    parser.add_argument("--namespace", help="where the agents were (default: the access's namespace)")
    parser.add_argument("--daemonset", default=names.DAEMON_SET_NAME, help="theirs (%(default)s)")
    parser.add_argument(
        "--selector",
        default="app.kubernetes.io/name=gpushare-device-plugin",
        help="labels of their pods (%(default)s)",
    )
    parser.add_argument(
        "--own",
        metavar="NAME",
        help="name of the ClusterRole and the other objects that this process runs by; removed at the end",
    )
    pace = Pace()
    for option, seconds, text in (
        ("--kubelet-memory", pace.kubelet_s, "how long kubelets name a resource after its plugin's end"),
        ("--quiet", pace.quiet_s, "how long a node must stay clean"),
        ("--patience", pace.patience_s, "after how long to end all the same"),
    ):
        parser.add_argument(
            option, type=float, default=seconds, metavar="SECONDS", help=f"{text} (%(default)g)"
        )
    parser.add_argument("--log-format", choices=logs.LAYOUTS, default="text")
    parser.add_argument("--log-level", choices=logs.LEVELS, default="info")
    return parser


def _pace(options: argparse.Namespace) -> Pace:
    for option in ("kubelet_memory", "quiet", "patience"):
        seconds = getattr(options, option)
        if not 0 <= seconds <= 86400:
            raise ValueError(f"--{option.replace('_', '-')} {seconds:g}: give seconds from 0 to 86400")
    look_s = min(Pace().look_s, max(options.quiet / 3, 0.1))
    return Pace(
        look_s=look_s, kubelet_s=options.kubelet_memory, quiet_s=options.quiet, patience_s=options.patience
    )


async def clean(access: Access, agents: Agents, pace: Pace, own: str | None) -> Outcome:
    """Clean, and remove what this process runs by; raises ``KubeError`` where the latter cannot be done."""
    async with Session(access) as session:
        objects = OwnObjects(session, agents.namespace, own) if own else None
        if objects is not None:
            await objects.tie()
        outcome = await Cleaner(ApiCluster(session, agents), SYSTEM_CLOCK, pace).run()
        logger.info("done: %s", outcome.value)
        if objects is not None:
            await objects.remove()
    return outcome


async def _until_signalled(access: Access, agents: Agents, pace: Pace, own: str | None) -> int:
    stop = told_to_end()
    stopping = asyncio.create_task(stop.wait())
    backoff = Backoff()
    while True:
        cleaning = asyncio.create_task(clean(access, agents, pace, own))
        await asyncio.wait([cleaning, stopping], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            cleaning.cancel()
            await asyncio.gather(cleaning, return_exceptions=True)
            return 0
        try:
            outcome = cleaning.result()
        except KubeError as error:
            if own is None:
                raise
            # Rights and objects of a hook come one after the other.
            logger.warning("%s", error)
            await asyncio.wait([stopping], timeout=backoff.next_s())
            continue
        if own is not None:
            await stopping  # what runs us would start us again until it is gone itself
        else:
            stopping.cancel()
        return 1 if outcome is Outcome.UNFINISHED else 0


def main(argv: list[str] | None = None) -> int:
    """Run to the end; 0, 1 when nodes are not clean, 2 on bad input."""
    options = _parser().parse_args(argv)
    logs.configure(options.log_level, options.log_format)
    try:
        pace = _pace(options)
        access = load_access(options.kubeconfig, options.context)
    except (ValueError, KubeconfigError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    agents = Agents(options.namespace or access.namespace, options.daemonset, options.selector)
    try:
        return asyncio.run(_until_signalled(access, agents, pace, options.own))
    except KubeError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
