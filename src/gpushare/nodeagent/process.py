"""The node agent as a process: one event loop, ended by a signal."""

import asyncio
import signal
import sys

from gpushare.kube.access import Access
from gpushare.kube.errors import KubeError
from gpushare.kube.session import Session
from gpushare.nodeagent.agent import Agent
from gpushare.nodeagent.nvml import DriverNvml, Nvml
from gpushare.nodeagent.settings import PROGRAM, Settings

__all__ = ["DriverNvml", "run"]


def run(settings: Settings, access: Access, nvml: Nvml) -> int:
    """Run until a signal ends it; the process's exit code."""
    try:
        asyncio.run(_until_signalled(settings, access, nvml))
    except KubeError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    return 0


async def _until_signalled(settings: Settings, access: Access, nvml: Nvml) -> None:
    async with Session(access) as session:
        serving = asyncio.create_task(Agent(settings, session, nvml).run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, serving.cancel)
        try:
            await serving
        except asyncio.CancelledError:
            if not serving.cancelled():
                raise
