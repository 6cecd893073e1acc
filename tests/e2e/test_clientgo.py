"""The real client-go (typed clients, informer, leader election) against the playground's API server."""

import asyncio
from pathlib import Path

import pytest

from gpushare_playground.apiserver import ApiServer
from tests.e2e.cluster.gomodules import built
from tests.e2e.cluster.programs import Program
from tests.integration.apiserver.conftest import connect, pod
from tests.patience import SLOWNESS

CLIENT = Program("clientgo", "clientgo", "gpushare.dev/clientgo")
RUN_S = 120 * SLOWNESS


@pytest.fixture(scope="module")
def program() -> Path:
    """The program, built or from the cache."""
    return built([CLIENT], print)[CLIENT.name]


async def test_client_go_writes_watches_through_a_gap_and_elects_leaders(
    program: Path, tmp_path: Path
) -> None:
    async with ApiServer(tmp_path / "state") as server, connect(server) as api:
        process = await asyncio.create_subprocess_exec(
            program,
            str(server.kubeconfig_path),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(RUN_S):
                assert process.stdin is not None
                assert process.stdout is not None
                assert process.stderr is not None
                line = await process.stdout.readline()
                assert line == b"written\n", (await process.stderr.read()).decode()
                # Cut all watches, change objects in the gap, and expire the watches before anyone can reconnect.
                server.cut_watches()
                server.store.remove("pods", "default", "json-2")
                await api("POST", "/api/v1/namespaces/default/pods", pod("in-the-gap"), code=201)
                server.store.forget("pods")
                process.stdin.write(b"\n")
                rest, errors = await process.communicate()
                assert (process.returncode, rest) == (0, b"done\n"), errors.decode()
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
