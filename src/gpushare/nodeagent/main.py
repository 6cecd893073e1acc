"""The node agent as a process: one event loop, ended by a signal."""

import asyncio
import logging
import os
import signal
import sys

from gpushare.kube.auth.access import Access
from gpushare.kube.client.errors import KubeError
from gpushare.kube.client.session import Session
from gpushare.nodeagent.agent import Agent
from gpushare.nodeagent.driver.nvml import DriverNvml, Nvml
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
        agent = Agent(settings, session, nvml)
        serving = asyncio.create_task(agent.run())
        loop = asyncio.get_running_loop()
        ending: list[asyncio.Task[bool]] = []

        def end() -> None:
            if not ending:
                ending.append(asyncio.create_task(_end(agent, serving)))

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        try:
            await serving
        except asyncio.CancelledError:
            if not serving.cancelled():
                raise
    if ending and await ending[0]:
        # The event loop's own end would end the device lists, which the next agent keeps open.
        logging.shutdown()
        os._exit(0)


async def _end(agent: Agent, serving: asyncio.Task[None]) -> bool:
    """End the agent; whether another keeps its connections with the kubelet."""
    try:
        return await agent.leave()
    finally:
        serving.cancel()
