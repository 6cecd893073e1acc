"""Exec probes: readiness, liveness and startup by a command beside the container's program.

Probes by HTTP, TCP or gRPC are not carried out here: such a container counts as ready once it runs.
"""

import asyncio
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpushare_playground.kubelet.containers import SHIM, Attempt, Launch
from gpushare_playground.kubelet.execsession import beside_arguments
from gpushare_playground.kubelet.podspec import Container, Probe

_SHOWN: Final = 200


@dataclass(slots=True)
class Verdict:
    """What probing has found so far about one start of a container."""

    started: bool
    ready: bool


def initial_verdict(container: Container) -> Verdict:
    """Before any probe has run: what is not probed counts as good."""
    return Verdict(
        started=not _probed(container.startup_probe),
        ready=not _probed(container.readiness_probe) and not _probed(container.startup_probe),
    )


def is_probed(container: Container) -> bool:
    """Whether there is anything to probe."""
    return any(
        _probed(one) for one in (container.startup_probe, container.readiness_probe, container.liveness_probe)
    )


async def probe(
    container: Container,
    attempt: Attempt,
    changed: Callable[[Verdict], None],
    unhealthy: Callable[[str, str], None],
    dead: Callable[[str], None],
) -> None:
    """Probe one start of a container until cancelled.

    ``changed`` is called with every new verdict, ``unhealthy`` with (kind of probe, text) at every failure,
    ``dead`` once when the liveness or startup probe has failed often enough.
    """
    launch = attempt.launch()
    verdict = initial_verdict(container)
    if launch is None:
        return
    if container.startup_probe is not None and _probed(container.startup_probe):
        if not await _until(container.startup_probe, "Startup", launch, unhealthy, wanted=True):
            dead("failed startup probe")
            return
        verdict.started = True
        verdict.ready = not _probed(container.readiness_probe)
        changed(verdict)
    tasks = []
    if container.readiness_probe is not None and _probed(container.readiness_probe):
        tasks.append(_follow(container.readiness_probe, launch, verdict, changed, unhealthy))
    if container.liveness_probe is not None and _probed(container.liveness_probe):
        tasks.append(_live(container.liveness_probe, launch, unhealthy, dead))
    await asyncio.gather(*tasks)


async def _follow(
    check: Probe,
    launch: Launch,
    verdict: Verdict,
    changed: Callable[[Verdict], None],
    unhealthy: Callable[[str, str], None],
) -> None:
    while True:
        # From not ready to ready and back, for ever.
        await _until(check, "Readiness", launch, unhealthy, wanted=not verdict.ready, endless=True)
        verdict.ready = not verdict.ready
        changed(verdict)


async def _live(
    check: Probe, launch: Launch, unhealthy: Callable[[str, str], None], dead: Callable[[str], None]
) -> None:
    await _until(check, "Liveness", launch, unhealthy, wanted=False, endless=True)
    dead("failed liveness probe")


async def _until(
    check: Probe,
    kind: str,
    launch: Launch,
    unhealthy: Callable[[str, str], None],
    *,
    wanted: bool,
    endless: bool = False,
) -> bool:
    """Probe until enough results in a row are ``wanted``; ``False`` when enough are the opposite instead."""
    await asyncio.sleep(check.initial_delay_seconds if kind != "Readiness" or wanted else 0)
    counts = {True: 0, False: 0}
    enough = {True: max(1, check.success_threshold), False: max(1, check.failure_threshold)}
    while True:
        good, text = await _once(check, launch)
        if not good:
            unhealthy(kind, text)
        counts[good] += 1
        counts[not good] = 0
        if counts[wanted] >= enough[wanted]:
            return True
        if not endless and counts[not wanted] >= enough[not wanted]:
            return False
        await asyncio.sleep(max(1, check.period_seconds))


async def _once(check: Probe, launch: Launch) -> tuple[bool, str]:
    assert check.exec is not None
    process = await asyncio.create_subprocess_exec(
        *SHIM,
        *beside_arguments(launch, check.exec.command, tty=False),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(max(1, check.timeout_seconds)):
            heard, _ = await process.communicate()
    except TimeoutError:
        return False, f"command timed out after {check.timeout_seconds}s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode == 0, heard.decode(errors="replace")[:_SHOWN].strip()


def _probed(check: Probe | None) -> bool:
    return check is not None and check.exec is not None and bool(check.exec.command)
