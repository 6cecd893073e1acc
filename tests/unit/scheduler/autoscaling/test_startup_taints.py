"""A node loses its startup taint when it has its GPUs, no earlier, and keeps everything else."""

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.node.device import Device, devices_annotation
from gpushare.api.node.hosting import TaintedNode, decode_tainted
from gpushare.api.node.modes import NodeMode
from gpushare.api.node.startup_taint import STARTUP_TAINT
from gpushare.api.quantity import MemoryUnit
from gpushare.kube.client.errors import ApiError
from gpushare.scheduler.leader.lease import Leading
from gpushare.scheduler.plugins.autoscaling.startup_taints import StartupTaints
from tests.unit.scheduler.world import TurnedClock

OURS = {"key": STARTUP_TAINT, "effect": "NoSchedule", "timeAdded": "2026-11-22T10:00:00Z"}
OTHER = {"key": "gpu", "value": "yes", "effect": "NoSchedule", "timeAdded": "2026-11-22T10:00:00Z"}


def node(*taints: dict[str, str], units: int = 15) -> dict[str, Any]:
    described = devices_annotation(NodeMode.SHARE, MemoryUnit.GIB, (Device(0, "GPU-1", 16160),))
    return {
        "metadata": {
            "name": "n",
            "resourceVersion": "7",
            "labels": {names.LABEL_MODE: "share"},
            "annotations": {names.ANN_DEVICES: described},
        },
        "spec": {"taints": list(taints)},
        "status": {"allocatable": {names.GPU_MEM: str(units), names.GPU_COUNT: "1"}},
    }


class Api:
    """One node, and the leader."""

    def __init__(self, *taints: dict[str, str]) -> None:
        self.nodes = [node(*taints)]
        self.written: list[tuple[str, list[dict[str, Any]], str]] = []
        self.failing: list[ApiError] = []
        self.holder = ""

    async def list_tainted(self, name: str) -> list[TaintedNode]:
        return [decode_tainted(msgspec.json.encode(one)) for one in self.nodes]

    async def set_taints(self, name: str, taints: list[dict[str, Any]], *, resource_version: str) -> None:
        if self.failing:
            raise self.failing.pop(0)
        self.written.append((name, taints, resource_version))

    async def lease_holder(self, namespace: str, name: str) -> str:
        return self.holder


class Tainted:
    """Runs for a while."""

    def __init__(self, api: Api, lease: tuple[str, str] | None = None) -> None:
        self.api = api
        self.clock = TurnedClock()
        self.taints = StartupTaints(api, self.clock, Leading(api, lease))

    def see(self, one: dict[str, Any]) -> None:
        self.taints.node_seen("n", msgspec.json.encode(one))

    async def run(self, *seconds: float) -> None:
        running = asyncio.create_task(self.taints.run())
        for turn_s in (0.0, *seconds):
            for _ in range(20):
                await asyncio.sleep(0)
            await self.clock.turn(turn_s)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not running.done()
        running.cancel()


async def test_it_is_removed_once_the_gpus_are_there_and_other_taints_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tainted = Tainted(Api(OTHER, OURS))
    with caplog.at_level("INFO"):
        for _ in range(3):
            tainted.see(node(OURS, units=0))
    assert caplog.text.count("node n keeps its startup taint: its kubelet does not offer") == 1
    await tainted.run(5.0)
    assert not tainted.api.written
    tainted.see(node(OURS))
    await tainted.run(5.0)
    assert tainted.api.written == [("n", [OTHER], "7")]
    tainted.see(node(OTHER))
    assert not tainted.taints._lacking


async def test_a_node_that_lost_its_gpus_or_is_gone_is_left_alone() -> None:
    for change in ("seen", "gone", "read", "absent", "clean"):
        tainted = Tainted(Api(OURS))
        tainted.see(node(OURS))
        if change == "seen":
            tainted.see(node(OURS, units=0))
        elif change == "gone":
            tainted.taints.forget("n")
        elif change == "read":
            tainted.api.nodes = [node(OURS, units=0)]
        elif change == "clean":
            tainted.api.nodes = [node(OTHER)]
        else:
            tainted.api.nodes = []
        await tainted.run(5.0)
        assert not tainted.api.written, change
        assert not tainted.taints._ready


async def test_gpus_that_come_back_during_a_read_of_the_node_without_them_are_not_missed() -> None:
    tainted = Tainted(Api(OURS))
    read = tainted.api.list_tainted
    reads = 0

    async def slowly(name: str) -> list[TaintedNode]:
        nonlocal reads
        reads += 1
        tainted.api.nodes = [node(OURS, units=0 if reads == 1 else 15)]
        found = await read(name)
        if reads == 1:
            # Its kubelet is back before the answer arrives.
            tainted.see(node(OURS, units=0))
            tainted.see(node(OURS))
        return found

    tainted.api.list_tainted = slowly  # type: ignore[method-assign]
    tainted.see(node(OURS))
    await tainted.run(5.0, 5.0)
    assert tainted.api.written == [("n", [], "7")]


async def test_only_the_replica_with_the_leading_kube_scheduler_writes() -> None:
    tainted = Tainted(Api(OURS), ("kube-system", "co"))
    tainted.api.holder = "somebody_else"
    tainted.see(node(OURS))
    await tainted.run(5.0, 5.0)
    assert not tainted.api.written
    tainted.api.holder = f"{socket.gethostname()}_1"
    await tainted.run(5.0)
    assert tainted.api.written


@pytest.mark.parametrize("status", [403, 422])
async def test_a_node_that_may_not_be_changed_does_not_hold_up_others(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    tainted = Tainted(Api(OURS))
    write = tainted.api.set_taints

    async def admitted(name: str, taints: list[dict[str, Any]], *, resource_version: str) -> None:
        if name == "node-a":
            raise ApiError(status, "Invalid", "denied by a policy", "/api/v1/nodes/node-a")
        await write(name, taints, resource_version=resource_version)

    tainted.api.set_taints = admitted  # type: ignore[method-assign]
    for name in ("node-a", "node-b"):
        tainted.taints.node_seen(name, msgspec.json.encode(node(OURS)))
    await tainted.run(5.0)
    assert tainted.api.written == [("node-b", [], "7")]
    assert "startup taints: /api/v1/nodes/node-a: " in caplog.text
    assert tainted.taints._ready == {"node-a"}, "it is tried again"


@pytest.mark.parametrize("status", [409, 404, 500])
async def test_a_failed_write_is_repeated_on_the_current_state(status: int) -> None:
    tainted = Tainted(Api(OURS))
    tainted.api.failing.append(ApiError(status, "Failed", "no", ""))
    tainted.see(node(OURS))
    await tainted.run(5.0, 5.0)
    assert tainted.api.written == [("n", [], "7")]
