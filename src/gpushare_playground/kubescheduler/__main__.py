"""``python -m gpushare_playground.kubescheduler --kubeconfig FILE --extender URL``."""

import argparse
import os
import sys
from collections.abc import Sequence

import aiohttp
import uvloop

from gpushare.api.names import SCHEDULER_NAME
from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import KubeError
from gpushare.kube.client.session import Session
from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.kube.event_recorder import EventRecorder
from gpushare.process import log_setup
from gpushare_playground.cache import Cache
from gpushare_playground.informer_caches import informer_of
from gpushare_playground.kubescheduler.extender import Extender
from gpushare_playground.kubescheduler.leader_election import Lead, LeadLost, identity
from gpushare_playground.kubescheduler.running import DEFAULT_SCHEDULER, KubeScheduler
from gpushare_playground.objects import NODES, PODS, Objects
from gpushare_playground.supervised import announce_when_synced, run_together, until_stopped


async def serve(
    kubeconfig: str | None,
    extender_url: str,
    name: str,
    ignored: Sequence[str] = (),
    *,
    lease_s: float = 0.0,
) -> None:
    """Schedule until SIGTERM or SIGINT; ``name`` is the profile with the extender, which alone counts ``ignored``.

    With ``lease_s`` only while the lease of that name is held, for that many seconds at a time; raises ``LeadLost``.
    """
    async with Session(load_access(kubeconfig)) as session, aiohttp.ClientSession() as http:
        recorders = {
            profile: EventRecorder(session, controller=profile, instance=f"{profile}-{os.getpid()}")
            for profile in (DEFAULT_SCHEDULER, name)
        }
        pods, nodes = Cache(), Cache()
        extender = Extender(extender_url, http)
        scheduler = KubeScheduler(
            Objects(session),
            pods,
            nodes,
            {DEFAULT_SCHEDULER: None, name: extender},
            recorders.__getitem__,
            ignored=ignored,
        )
        announce_when_synced([pods, nodes])
        parts = [
            informer_of(session, NODES, nodes).run(),
            informer_of(session, PODS, pods).run(),
            *(recorder.run() for recorder in recorders.values()),
            _while_leading(Lead(session, name, identity(), SYSTEM_CLOCK, duration_s=lease_s), scheduler)
            if lease_s
            else scheduler.run(),
        ]
        await run_together([until_stopped(), *parts])


async def _while_leading(lead: Lead, scheduler: KubeScheduler) -> None:
    await lead.acquire()
    await run_together([lead.renew(), scheduler.run()])


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m gpushare_playground.kubescheduler",
        description="kube-scheduler's part in the playground: default-scheduler, and a profile with an extender.",
    )
    parser.add_argument("--kubeconfig", help="file that says where the API server is")
    parser.add_argument(
        "--extender",
        required=True,
        metavar="URL",
        help="URL prefix of the extender (http://HOST:PORT/gpushare)",
    )
    parser.add_argument(
        "--scheduler-name",
        default=SCHEDULER_NAME,
        metavar="NAME",
        help="spec.schedulerName of the profile with the extender (default: %(default)s)",
    )
    parser.add_argument(
        "--ignored-resource",
        action="append",
        default=[],
        metavar="NAME",
        help="a resource that the extender alone counts (may be repeated)",
    )
    parser.add_argument(
        "--lease-seconds",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="schedule only while holding the lease of the scheduler's name, for so long at a time (default: alone, without)",
    )
    options = parser.parse_args(argv)
    log_setup.configure()
    try:
        uvloop.run(
            serve(
                options.kubeconfig,
                options.extender,
                options.scheduler_name,
                options.ignored_resource,
                lease_s=options.lease_seconds,
            )
        )
    except (KubeError, LeadLost) as error:
        print(f"kubescheduler: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
