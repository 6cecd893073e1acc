"""``python -m gpushare_playground.kubelet --node NAME --kubeconfig FILE --root FOLDER --token T …``.

Ends on SIGTERM and SIGINT, leaving its containers to the next start; ``--stop-leftovers`` ends those of a
folder instead of starting anything.
"""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import KubeError
from gpushare.kube.client.session import Session
from gpushare.process import log_setup
from gpushare.process.signals import stop_event
from gpushare_playground.images.errors import ImageError
from gpushare_playground.kubelet.agent import Kubelet
from gpushare_playground.kubelet.cleanup import stop_containers
from gpushare_playground.kubelet.errors import BadSettings, KubeletError
from gpushare_playground.kubelet.settings import Settings, read_settings


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code (2 for invalid options)."""
    options = sys.argv[1:] if arguments is None else arguments
    if options[:1] == ["--stop-leftovers"]:
        return _stop_leftovers(options[1:])
    log_setup.configure()
    try:
        asyncio.run(_run(read_settings(options)))
    except (KubeletError, KubeError, ImageError) as error:
        print(f"kubelet: {error}", file=sys.stderr)
        return 2
    return 0


async def _run(settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    stop = stop_event()
    access = load_access(settings.kubeconfig or None)
    lifeline = _watch_lifeline(settings.lifeline, stop)
    try:
        async with Session(access) as session, Kubelet(settings, session) as kubelet:
            scheme = "http" if settings.tls is None else "https"
            print(f"kubelet of {settings.node}: {scheme}://{settings.node_ip}:{kubelet.port}", flush=True)
            running = asyncio.create_task(kubelet.run())
            ending = asyncio.create_task(stop.wait())
            await asyncio.wait({running, ending}, return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            if running.done():
                running.result()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
    finally:
        if lifeline >= 0:
            loop.remove_reader(lifeline)
            os.close(lifeline)


def _watch_lifeline(pid: int, stop: asyncio.Event) -> int:
    """End with that process; returns the descriptor that is watched, -1 for none."""
    if not pid:
        return -1
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        raise BadSettings("--lifeline", f"there is no process {pid}: {error.strerror}") from None
    asyncio.get_running_loop().add_reader(fd, stop.set)
    return fd


def _stop_leftovers(folders: list[str]) -> int:
    if not folders:
        print("kubelet: --stop-leftovers: name the folders of the nodes", file=sys.stderr)
        return 2
    for folder in folders:
        print(f"{folder}: {stop_containers(Path(folder))} containers stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
