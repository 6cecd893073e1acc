"""Runs every step on one cluster, and records the results."""

import asyncio
import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.e2e.parity.steps import Step
from tests.integration.whole.world import until
from tests.patience import SLOWNESS

AnswersByPath = dict[str, tuple[int, str]]
"""By step: exit code and output."""
_STATE_S = 60.0
_COMMAND_S = 90.0 * SLOWNESS


async def answers(kubeconfig: Path, steps: Iterable[Step]) -> AnswersByPath:
    """kubectl's output, step by step; raises ``AssertionError`` where a state is not reached."""
    results: AnswersByPath = {}
    for step in steps:
        wanted = (step.until,) if isinstance(step.until, str) else step.until

        async def reached(step: Step = step, wanted: tuple[str, ...] = wanted) -> bool:
            results[step.name] = await _kubectl(kubeconfig, step)
            return all(text in results[step.name][1] for text in wanted)

        await until(reached, f"{step.name}: {step.until}", _STATE_S, lambda step=step: results[step.name][1])
    return results


async def _kubectl(kubeconfig: Path, step: Step) -> tuple[int, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    process = await asyncio.create_subprocess_exec(
        *("kubectl", *shlex.split(step.command)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": path},
    )
    try:
        async with asyncio.timeout(_COMMAND_S):
            out, _ = await process.communicate(step.sent.encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        raise AssertionError(f"kubectl {step.command} did not end within {_COMMAND_S:.0f} s") from None
    return process.returncode or 0, out.decode()
