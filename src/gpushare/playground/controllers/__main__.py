"""``python -m gpushare.playground.controllers --kubeconfig FILE``."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence

from gpushare import logs
from gpushare.kube.access import load_access
from gpushare.kube.errors import KubeError
from gpushare.kube.events import EventRecorder
from gpushare.kube.session import Session
from gpushare.playground.cache import Cache
from gpushare.playground.controllers.running import WATCHED, Controllers
from gpushare.playground.following import informer_of
from gpushare.playground.objects import Objects


async def serve(kubeconfig: str | None) -> None:
    """Run all controllers until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with Session(load_access(kubeconfig)) as session:
        caches = {kind: Cache() for kind in WATCHED}
        recorders: dict[str, EventRecorder] = {}

        def recorder(name: str) -> EventRecorder:
            if name not in recorders:
                recorders[name] = EventRecorder(session, controller=name, instance=f"{name}-{os.getpid()}")
            return recorders[name]

        controllers = Controllers(Objects(session), caches, recorder)
        parts = [
            *(informer_of(session, kind, cache).run() for kind, cache in caches.items()),
            *(recorder.run() for recorder in recorders.values()),
            controllers.run(),
        ]
        tasks = [asyncio.create_task(part) for part in parts]
        stopped = asyncio.create_task(ended.wait())
        done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in (stopped, *tasks):
            task.cancel()
        await asyncio.gather(stopped, *tasks, return_exceptions=True)
        for task in done - {stopped}:
            with contextlib.suppress(asyncio.CancelledError):
                task.result()


def main(argv: Sequence[str] | None = None) -> int:
    """The command; gives the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m gpushare.playground.controllers",
        description="Controllers of the playground: Job, StatefulSet, Deployment, ReplicaSet.",
    )
    parser.add_argument("--kubeconfig", help="file that says where the API server is")
    options = parser.parse_args(argv)
    logs.configure()
    try:
        asyncio.run(serve(options.kubeconfig))
    except KubeError as error:
        print(f"controllers: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
