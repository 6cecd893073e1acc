"""``python -m gpushare_playground.controllers --kubeconfig FILE``."""

import argparse
import os
import sys
from collections.abc import Sequence

import uvloop

from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import KubeError
from gpushare.kube.client.session import Session
from gpushare.kube.event_recorder import EventRecorder
from gpushare.process import log_setup
from gpushare_playground.cache import Cache
from gpushare_playground.controllers.running import WATCHED, Controllers
from gpushare_playground.informer_caches import informer_of
from gpushare_playground.objects import Objects
from gpushare_playground.supervised import announce_when_synced, run_together, until_stopped


async def serve(kubeconfig: str | None) -> None:
    """Run all controllers until SIGTERM or SIGINT."""
    async with Session(load_access(kubeconfig)) as session:
        caches = {kind: Cache() for kind in WATCHED}
        recorders: dict[str, EventRecorder] = {}

        def recorder(name: str) -> EventRecorder:
            if name not in recorders:
                recorders[name] = EventRecorder(session, controller=name, instance=f"{name}-{os.getpid()}")
            return recorders[name]

        controllers = Controllers(Objects(session), caches, recorder)
        announce_when_synced(list(caches.values()))
        parts = [
            *(informer_of(session, kind, cache).run() for kind, cache in caches.items()),
            *(recorder.run() for recorder in recorders.values()),
            controllers.run(),
        ]
        await run_together([until_stopped(), *parts])


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m gpushare_playground.controllers",
        description="Controllers of the playground: Job, StatefulSet, Deployment, ReplicaSet.",
    )
    parser.add_argument("--kubeconfig", help="file that says where the API server is")
    options = parser.parse_args(argv)
    log_setup.configure()
    try:
        uvloop.run(serve(options.kubeconfig))
    except KubeError as error:
        print(f"controllers: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
