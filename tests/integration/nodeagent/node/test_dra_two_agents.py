"""A node in mode ``dra`` during a rolling update, while the kubelet still calls another agent."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.nodeagent.allocate.container_response import Injection
from gpushare.nodeagent.deviceplugin.handover import Handover
from gpushare.nodeagent.dra import plugin
from gpushare.nodeagent.dra.claim_files import ClaimedShare, ClaimFiles, PreparedClaim
from gpushare.nodeagent.dra.claims import ClaimReference
from gpushare.nodeagent.isolation.storage.directories import Directories
from gpushare.nodeagent.isolation.storage.files import Claimed
from tests.integration.nodeagent.conftest import QUICK, World
from tests.integration.nodeagent.isolation.isolating import directories
from tests.integration.nodeagent.node.test_dra import started
from tests.integration.nodeagent.scripted_nvml import gpu

CLAIM = ClaimReference("default", "share", "uid-of-share")


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_LOOK_S", 0.02)


def make_directory(world: World, claim: ClaimReference) -> None:
    claimed = Claimed(claim.key, claim.uid, "", gpu(0).uuid, 1024, claim.uid)
    Directories(world.settings.isolation.folder).make(claimed, "hard", claim.uid)


def prepare_elsewhere(world: World) -> None:
    """Another agent prepares the claim."""
    make_directory(world, CLAIM)
    share = ClaimedShare(gpu(0).uuid, 1024, 0)
    ClaimFiles(world.settings.cdi_folders[-1]).write(PreparedClaim(CLAIM, (share,)), Injection())


async def test_the_directory_of_a_claim_that_another_agent_prepared_stays(world: World) -> None:
    await started(world)
    prepare_elsewhere(world)
    # Younger, so it is removed last.
    unused = ClaimReference("default", "unused", "uid-of-no-claim")
    make_directory(world, unused)
    await world.changes.until(lambda: unused.uid not in directories(world), "what is unused is removed")
    assert CLAIM.uid in directories(world)


async def test_what_another_agent_prepared_is_known_when_the_kubelet_has_registered_this_one(
    world: World,
) -> None:
    world.use(pace=replace(QUICK, sweep_s=1000.0))
    kubelet = await started(world)
    prepare_elsewhere(world)
    await kubelet.register()
    await world.changes.until(lambda: CLAIM.uid in world.agent._dra.claims, "it is known")


async def test_what_another_agent_prepared_is_known_when_it_comes_or_leaves(world: World) -> None:
    world.use(pace=replace(QUICK, sweep_s=1000.0))
    await started(world)
    older = Handover(
        world.settings.kubelet_dir,
        1,
        clock=SYSTEM_CLOCK,
        on_change=lambda unsettled: None,
        may_take_over=lambda: False,
    )
    running = asyncio.create_task(older.run())
    await world.changes.until(lambda: world.agent._handover.others, "both know each other")
    prepare_elsewhere(world)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await world.changes.until(lambda: CLAIM.uid in world.agent._dra.claims, "it is known")
