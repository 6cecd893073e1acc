"""Transient states are no fault, and what may recover by itself is waited for."""

import time

import pytest

from gpushare.api import names
from gpushare.api.node.device import Device
from gpushare.doctor.cluster.facts import ClusterFacts, SeenNode
from gpushare.doctor.cluster.registry import CHECKS
from gpushare.doctor.findings import Unread, examine
from gpushare.doctor.retry_checks import settled
from tests.unit.doctor.healthy_cluster import node_of, sound

BEHIND = node_of(allocatable={names.GPU_MEM: "0"})
AGAIN_S = 0.001


class Cluster:
    """Its nodes at each reading; the last reading stays."""

    def __init__(self, *looks: list[SeenNode] | Unread) -> None:
        self._looks = looks
        self.looked = 0

    async def nodes(self) -> list[SeenNode] | Unread:
        self.looked += 1
        return self._looks[min(self.looked, len(self._looks)) - 1]


async def after(facts: ClusterFacts, cluster: Cluster) -> list[str]:
    """The checks that are not ok after at most ten readings."""
    found = await settled(facts, cluster.nodes, 10 * AGAIN_S, AGAIN_S)
    return [one.check for one in examine(found, CHECKS) if one.state != "ok"]


async def test_a_kubelet_that_catches_up_is_not_reported() -> None:
    cluster = Cluster([BEHIND], [node_of()])
    assert await after(sound(nodes=[BEHIND]), cluster) == []
    assert cluster.looked == 2


async def test_a_kubelet_that_does_not_catch_up_is_a_fault_and_the_waiting_ends() -> None:
    cluster = Cluster([BEHIND])
    assert await after(sound(nodes=[BEHIND]), cluster) == ["node-capacity"]
    assert cluster.looked == 10


async def test_nothing_is_read_again_if_no_kubelet_lags() -> None:
    cluster = Cluster()
    began = time.monotonic()
    found = await settled(sound(), cluster.nodes, 3600, 3600)
    assert (cluster.looked, found) == (0, sound())
    assert time.monotonic() - began < 60


async def test_what_cannot_be_read_again_keeps_its_earlier_state() -> None:
    cluster = Cluster(Unread("no answer"))
    assert await after(sound(nodes=[BEHIND]), cluster) == ["node-capacity"]
    assert cluster.looked == 1


def test_a_kubelet_with_deviating_capacity_may_have_an_agent() -> None:
    for offered in ("0", "30"):
        (found,) = [
            one
            for one in examine(sound(nodes=[node_of(allocatable={names.GPU_MEM: offered})]), CHECKS)
            if one.state != "ok"
        ]
        assert found.suggestion.startswith("kubelets publish changes within seconds: check again ")


@pytest.mark.parametrize(
    ("reason", "waits"), [("critical error XID 79", True), ("NVML does not answer", False)]
)
@pytest.mark.parametrize("others", [(), (Device(1, "GPU-2", 16160),)], ids=["alone", "beside another"])
def test_a_gpu_that_may_recover_by_itself_is_waited_for_first(
    reason: str, waits: bool, others: tuple[Device, ...]
) -> None:
    lost = Device(0, "GPU-1", 16160, healthy=False, reason=reason)
    node = node_of(gpus=(lost, *others), allocatable={names.GPU_MEM: "15"} if others else {})
    (found,) = [one for one in examine(sound(nodes=[node]), CHECKS) if one.check == "node-health"]
    assert found.suggestion.startswith("after an XID it returns by itself ") is waits
