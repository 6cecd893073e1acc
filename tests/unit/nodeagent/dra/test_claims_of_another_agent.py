"""Two agents on one node, as during a rolling update: each follows the claims that the other prepares."""

import asyncio
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gpushare.api.node.device import Device
from gpushare.nodeagent.allocate.container_response import Injection, NoIsolation
from gpushare.nodeagent.dra.claim_files import ClaimedShare, ClaimFiles, PreparedClaim
from gpushare.nodeagent.dra.claim_instances import ClaimInstances
from gpushare.nodeagent.dra.claims import ClaimReference
from gpushare.nodeagent.dra.preparer import ClaimPreparer
from gpushare.nodeagent.driver.discovery import DivisibleGpu
from gpushare.nodeagent.driver.nvml import Hardware
from gpushare.nodeagent.driver.placements import Placement, PlacementTaken
from gpushare.nodeagent.runtime.cdi.gpu_access import Access
from tests.integration.nodeagent.node.scripted_dra_kubelet import allocated
from tests.integration.nodeagent.scripted_nvml import divisible, gpu

WHOLE = gpu(0).uuid.lower()
PLACEMENTS = divisible(1).placements
INSTANCE = PLACEMENTS[0].name


class Node:
    """A whole GPU and one in MIG mode, and the agents that prepare claims on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.instances: set[str] = set()
        self.claims: dict[str, dict[str, Any]] = {}
        self.changes = 0

    def agent(self) -> ClaimPreparer:
        """Another agent of this node."""
        files = ClaimFiles(self.folder)
        return ClaimPreparer(
            "n1",
            files,
            ClaimInstances(self, files, divisible=self._divisible, gpus=self._gpus),
            read_claim=self._read_claim,
            gpus=self._gpus,
            backend_of=lambda mode: NoIsolation(),
            give=lambda uuids, *, in_place=False: Access(),
            release=lambda uid: asyncio.sleep(0),
            on_change=self._changed,
        )

    def claim(self, name: str, device: str) -> ClaimReference:
        """A claim on all of that device."""
        self.claims[name] = allocated(name, (device, "9728Mi", 0))
        return ClaimReference("default", name, f"uid-of-{name}")

    def file(self, claim: ClaimReference) -> Path:
        return self.folder / f"gpushare.dev-claim-{claim.uid}.json"

    async def create_instance(self, placement: Placement, *, ours: bool) -> None:
        if placement.name in self.instances and not ours:
            raise PlacementTaken(str(placement))
        self.instances.add(placement.name)

    async def destroy_instance(self, placement: Placement) -> None:
        self.instances.discard(placement.name)

    async def _read_claim(self, claim: ClaimReference) -> bytes:
        return json.dumps(self.claims[claim.name]).encode()

    def _gpus(self) -> list[Device]:
        there = [one for one in PLACEMENTS if one.name in self.instances]
        instances = [
            Device(23 + one.start, f"MIG-{one.name}", one.mib, claim_device=one.name) for one in there
        ]
        return [Device(0, gpu(0).uuid, 15360), *instances]

    def _divisible(self) -> list[DivisibleGpu]:
        there = tuple(one for one in PLACEMENTS if one.name in self.instances)
        return [DivisibleGpu(Device(1, divisible(1).uuid, 81920), Hardware(), PLACEMENTS, there)]

    def _changed(self) -> None:
        self.changes += 1


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "cdi")


async def test_an_agent_follows_what_the_other_prepares_and_unprepares(node: Node) -> None:
    old, new = node.agent(), node.agent()
    await new.adopt()
    claim = node.claim("a", WHOLE)
    await old.prepare(claim)
    node.changes = 0
    await new.refresh()
    assert dict(new.prepared) == dict(old.prepared)
    assert (list(new.prepared), node.changes) == ([claim.uid], 1)
    await new.refresh()
    assert node.changes == 1, "nothing has changed since"
    await new.unprepare(claim)
    await old.refresh()
    assert not old.prepared


async def test_an_instance_that_the_other_agent_created_is_destroyed_after_its_last_claim(node: Node) -> None:
    old, new = node.agent(), node.agent()
    await new.adopt()
    first, second = node.claim("a", INSTANCE), node.claim("b", INSTANCE)
    await old.prepare(first)
    # The kubelet, which has registered the new one meanwhile, does not prepare the first claim again.
    await new.prepare(second)
    await new.unprepare(second)
    assert node.instances == {INSTANCE}
    await new.unprepare(first)
    assert node.instances == set()


@pytest.mark.parametrize("broken", ["", "{}", '{"annotations": {"gpushare.dev/claim": "default/a"}}'])
async def test_a_claim_whose_file_cannot_be_read_stays_known(
    node: Node, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    agent = node.agent()
    claim = node.claim("a", WHOLE)
    await agent.prepare(claim)
    before = dict(agent.prepared)
    node.file(claim).write_text(broken)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            await agent.refresh()
    assert dict(agent.prepared) == before
    assert len(caplog.messages) == 1, "each is reported once"


def test_a_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    files, claim = ClaimFiles(tmp_path), ClaimReference("default", "a", "u-a")
    for mib in (1024, 2048, 2048):
        prepared = PreparedClaim(claim, (ClaimedShare("GPU-a", mib, 0),))
        files.write(prepared, Injection())
        assert files.read() == {claim.uid: prepared}


async def test_claims_stay_known_while_their_folder_cannot_be_listed(node: Node) -> None:
    agent = node.agent()
    await agent.prepare(node.claim("a", WHOLE))
    before = dict(agent.prepared)
    node.folder.rename(node.folder.with_name("away"))
    node.folder.write_text("not a folder")
    await agent.refresh()
    assert dict(agent.prepared) == before


async def test_a_new_agent_leaves_the_file_that_the_other_is_writing(node: Node) -> None:
    node.folder.mkdir()
    young, old = (node.folder / f".gpushare.dev-claim-{name}.json.7" for name in ("young", "old"))
    for path in (young, old):
        path.write_text("half")
    hour_ago_s = time.time() - 3600
    os.utime(old, (hour_ago_s, hour_ago_s))
    await node.agent().adopt()
    assert [*node.folder.iterdir()] == [young]
