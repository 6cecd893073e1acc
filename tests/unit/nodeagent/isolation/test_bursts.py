"""Containers use more of a GPU than they request while it is free, and give it back when a pod is placed there."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.node.modes import NodeMode
from gpushare.nodeagent.allocate.container_response import Grant
from gpushare.nodeagent.allocate.grant_log import Slot
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod
from gpushare.nodeagent.isolation.burst.bursts import Bursts
from gpushare.nodeagent.isolation.options import ReclaimPolicy
from gpushare.nodeagent.isolation.storage.allowance_file import read_allowance
from gpushare.nodeagent.isolation.storage.directories import Directories
from gpushare.nodeagent.isolation.storage.files import Claimed, fingerprint
from gpushare.nodeagent.isolation.watchdog.violations import Holder, Use
from gpushare.nodeagent.observability.metrics import Metrics
from tests.unit.nodeagent.allocate.allocated_pods import APP, allocated, node_of, request
from tests.unit.nodeagent.isolation.observed import Clock, Events

GRACE_S = 30.0


class Node:
    """A node with one GPU of 15 GiB."""

    def __init__(self, folder: Path, policy: ReclaimPolicy = "kill") -> None:
        self.folder = folder
        self.node = node_of(15 * 1024, mode=NodeMode.CGPU)
        self.gpu = self.node.devices[0].uuid
        self.book = NodeAllocations(self.node)
        self.directories = Directories(folder)
        self.made: list[tuple[Claimed, Path]] = []
        self.clock, self.events, self.metrics = Clock(), Events(), Metrics()
        self.killed: list[Sequence[int]] = []
        self.acts = True
        self.bursts = self.agent(policy)
        self.bursts.sampled([], 0.0)

    def agent(self, policy: ReclaimPolicy) -> Bursts:
        bursts = Bursts(
            self.book,
            acts=lambda: self.acts,
            policy=policy,
            grace_s=GRACE_S,
            events=self.events,
            metrics=self.metrics,
            clock=self.clock,
        )
        bursts.attend(lambda: self.made, self.kill)
        return bursts

    def kill(self, pids: Sequence[int]) -> str:
        self.killed.append(pids)
        return "killed by the node agent"

    def places(self, name: str, gib: int) -> AllocatedPod:
        """A pod is bound."""
        pod = allocated(self.node, name, 0, request((APP, gib)))
        self.book.put(pod)
        self.bursts.refresh()
        return pod

    def starts(self, pod: AllocatedPod, limit_gib: int = 0, *, ids_of: str = "") -> None:
        """As in ``Allocate``; ``ids_of``: the name of the pod for which the kubelet really made the request."""
        ids = frozenset(f"{ids_of or pod.bound.name}-{number}" for number in range(2))
        if not ids_of:
            self.book.grants.grant(Slot(pod.uid, "c0", names.GPU_MEM), ids, self.clock.now_s)
        share = pod.allocation.gpus[0]
        grant = Grant(
            pod.key, pod.uid, "c0", (share,), share.units, NodeMode.CGPU, limit_mib=limit_gib * 1024
        )
        claimed = Claimed(
            pod.key,
            pod.uid,
            "c0",
            share.uuid,
            share.mib,
            fingerprint(ids),
            limit_mib=limit_gib * 1024,
            allowance=self.bursts.needs_allowance(grant),
        )
        self.made.append((claimed, self.directories.make(claimed, "hard")))
        self.bursts.refresh()

    def allowed_gib(self, pod: AllocatedPod) -> float | None:
        """What its container may use; ``None``: always its request."""
        claimed, folder = next(one for one in self.made if one[0].uid == pod.uid)
        return read_allowance(folder, 1)[0] / 1024 if claimed.allowance else None

    def samples(self, **used_gib: int) -> None:
        """5 s later, by the names of pods."""
        self.clock.now_s += 5
        uses = []
        for pod in self.book.pods:
            gib = used_gib.get(pod.bound.name, 0)
            holder = Holder(pod.key, pod.uid, "c0", self.gpu, pod.allocation.gpus[0].mib, 0)
            uses.append(Use(holder, gib * 1024, pids=[4000 + gib]))
        self.bursts.sampled(uses, self.clock.now_s)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_container_may_use_what_is_free_up_to_its_limit(node: Node) -> None:
    pod = node.places("a", 6)
    node.starts(pod, 12)
    assert node.allowed_gib(pod) == 12
    assert (
        node.bursts.limit_mib(pod.uid, "c0", node.gpu) == node.bursts.limit_mib(pod.uid, "", node.gpu) == 6144
    )


def test_a_container_without_a_limit_on_a_gpu_without_bursts_has_its_request(node: Node) -> None:
    pod = node.places("a", 6)
    node.starts(pod)
    assert node.allowed_gib(pod) is None
    assert node.bursts.limit_mib(pod.uid, "c0", node.gpu) == 0


def test_when_a_pod_is_placed_the_memory_is_taken_back_before_its_container_starts(node: Node) -> None:
    burster = node.places("a", 6)
    node.starts(burster, 15)
    node.samples(a=7)
    newcomer = node.places("b", 8)
    assert node.allowed_gib(burster) == 7
    node.starts(newcomer)
    # The burster may have taken up to 15 of them since the last sample.
    assert (node.allowed_gib(newcomer), node.bursts.wants_sample()) == (0, True)
    node.samples(a=7)
    assert not node.bursts.wants_sample()
    assert node.allowed_gib(newcomer) == 8
    assert node.events.recorded == []


def test_a_newcomer_waits_for_memory_above_the_request_which_is_killed_after_the_grace_period(
    node: Node,
) -> None:
    burster = node.places("a", 6)
    node.starts(burster, 15)
    node.samples(a=14)
    newcomer = node.places("b", 8)
    assert node.allowed_gib(burster) == 6
    node.starts(newcomer)
    node.samples(a=14)
    assert node.allowed_gib(newcomer) == 1
    assert set(node.events.reasons) == {("a", "GPUMemoryReclaiming"), ("b", "WaitingForGPUMemory")}
    for _ in range(4):
        node.samples(a=14, b=1)
    assert not node.killed
    node.samples(a=14, b=1)
    assert node.killed == [(4014,)]
    assert node.events.recorded[-1][1:] == (
        "GPUMemoryReclaimed",
        "container c0 uses 14336 MiB of GPU 0, 8192 MiB more than it requests, and other pods have requested 7168 MiB of that; killed by "
        "the node agent",
    )
    node.samples(b=1)
    assert (node.allowed_gib(burster), node.allowed_gib(newcomer)) == (7, 8)
    assert len(node.events.recorded) == 3, "each once"


def test_with_the_policy_wait_nothing_is_killed(tmp_path: Path) -> None:
    node = Node(tmp_path, "wait")
    burster = node.places("a", 6)
    node.starts(burster, 15)
    node.samples(a=14)
    newcomer = node.places("b", 8)
    node.starts(newcomer)
    for _ in range(20):
        node.samples(a=14)
    assert (node.killed, node.allowed_gib(burster), node.allowed_gib(newcomer)) == ([], 6, 1)
    assert "killed" not in node.events.recorded[0][2]


def test_a_container_that_gives_it_back_within_the_grace_period_is_not_killed(node: Node) -> None:
    burster = node.places("a", 6)
    node.starts(burster, 15)
    node.samples(a=14)
    newcomer = node.places("b", 8)
    node.starts(newcomer)
    node.samples(a=14)
    for _ in range(20):
        node.samples(a=7, b=8)
    assert (node.killed, node.allowed_gib(burster), node.allowed_gib(newcomer)) == ([], 7, 8)


def test_memory_used_without_an_allocation_is_not_available(node: Node) -> None:
    device = msgspec.structs.replace(node.node.devices[0], foreign_mib=4096)
    node.book.set_node(msgspec.structs.replace(node.node, devices=(device,)))
    pod = node.places("a", 6)
    node.starts(pod, 15)
    assert node.allowed_gib(pod) == 11


def test_an_identical_pod_that_the_kubelet_admitted_instead_may_burst(node: Node) -> None:
    decided, admitted = node.places("a", 3), node.places("b", 3)
    node.book.grants.grant(
        Slot(admitted.uid, "c0", names.GPU_MEM), frozenset({"b-0", "b-1"}), node.clock.now_s
    )
    node.book.grants.grant(
        Slot(decided.uid, "c0", names.GPU_MEM), frozenset({"a-0", "a-1"}), node.clock.now_s
    )
    node.starts(decided, 15, ids_of="b")
    assert node.bursts.limit_mib(admitted.uid, "c0", node.gpu) == 12 * 1024
    assert node.bursts.limit_mib(decided.uid, "c0", node.gpu) == 0


def test_the_next_agent_continues_and_an_inactive_one_changes_nothing(node: Node) -> None:
    burster = node.places("a", 6)
    node.starts(burster, 15)
    node.bursts = node.agent("kill")
    node.acts = False
    newcomer = node.places("b", 8)
    assert node.allowed_gib(burster) == 15
    node.acts = True
    node.starts(newcomer)
    # Nothing has been sampled yet, so the burster may have all of it, whatever its current allowance.
    assert (node.allowed_gib(burster), node.allowed_gib(newcomer)) == (7, 0)
    node.samples(a=6)
    assert node.allowed_gib(newcomer) == 8


def test_the_next_agent_continues_the_grace_period(node: Node) -> None:
    burster = node.places("a", 6)
    node.starts(burster, 15)
    node.samples(a=14)
    node.places("b", 8)
    node.samples(a=14)
    periods = node.bursts.asked_s
    node.bursts = node.agent("kill")
    node.bursts.restore(periods)
    node.bursts.refresh()
    assert node.allowed_gib(burster) == 6
    for _ in range(4):
        node.samples(a=14)
    assert not node.killed
    node.samples(a=14)
    assert node.killed == [(4014,)]


def test_memory_that_the_driver_does_not_report_counts_as_used_up_to_the_limit(node: Node) -> None:
    burster = node.places("a", 6)
    node.starts(burster, 12)
    holder = Holder(burster.key, burster.uid, "c0", node.gpu, 6144, 0)
    newcomer = node.places("b", 8)
    node.starts(newcomer)
    node.bursts.sampled([Use(holder, 0, unreported=1)], node.clock.now_s + 1)
    assert (node.allowed_gib(burster), node.allowed_gib(newcomer)) == (6, 3)


def test_a_sample_from_before_a_reclaim_does_not_count(node: Node) -> None:
    burster = node.places("a", 6)
    node.starts(burster, 15)
    newcomer = node.places("b", 8)
    node.starts(newcomer)
    node.bursts.sampled([], node.clock.now_s - 1)
    assert node.allowed_gib(newcomer) == 0
    node.samples()
    assert node.allowed_gib(newcomer) == 8


def test_a_sample_from_before_the_end_of_the_grace_period_kills_nothing(node: Node) -> None:
    burster = node.places("a", 6)
    node.starts(burster, 15)
    node.samples(a=14)
    node.starts(node.places("b", 8))
    for _ in range(5):
        node.samples(a=14, b=1)
    node.clock.now_s += GRACE_S
    node.places("c", 1)
    assert not node.killed
    node.samples(a=14, b=1)
    assert node.killed == [(4014,)]
