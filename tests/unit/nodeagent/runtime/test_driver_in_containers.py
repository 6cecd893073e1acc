"""Containers that run without NVIDIA's driver are reported, each once, with what to do."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.runtime.driver_in_containers import DriverInContainers
from gpushare.nodeagent.runtime.selection import Choice
from tests.unit.nodeagent.allocate.allocated_pods import APP, INIT, allocated, node_of, request

UID = "2f1c0000-0000-4000-8000-000000000001"
CONTAINER, FIRST = "a" * 64, "b" * 64
ROOT = "600 500 0:50 / / rw,relatime - overlay overlay rw\n"
BY_CDI = "700 600 8:1 /usr/lib/libcuda.so.580.95 /usr/lib/x86_64-linux-gnu/libcuda.so.580.95 ro - ext4 /dev/sda rw\n"
DIRECTORY = "700 600 8:1 /home/kubernetes/bin/nvidia /usr/local/nvidia ro - ext4 /dev/sda rw\n"
OURS = "700 600 8:1 /var/lib/gpushare/x/libcuda.so.1 /run/gpushare/lib/libcuda.so.1 ro - ext4 /dev/sda rw\n"
# : The word may occur only in the path on the node.
ELSEWHERE = "700 600 8:1 /data/nvidia/models /models ro - ext4 /dev/sda rw\n"


class Node:
    """A node with one pod of an init and an app container, its ``/proc`` in a folder."""

    def __init__(self, proc: Path, choice: Choice, *, running: bool = True) -> None:
        self.notes: list[str] = []
        self.proc = proc
        node = node_of(16384)
        pod = allocated(node, "pod", 0, request((INIT, 2), (APP, 2)))
        containers = {FIRST: "c0", CONTAINER: "c1"}
        bound = msgspec.structs.replace(pod.bound, uid=UID, running=running, containers=containers)
        self.book = NodeAllocations(node)
        self.book.put(msgspec.structs.replace(pod, bound=bound))
        self.choice = choice
        self.check = DriverInContainers(self.book, self, self, proc, acts=lambda: True)

    def record(self, about: object, **event: Any) -> None:
        """As an event recorder."""
        self.notes.append(f"{event['reason']}: {event['note']}")

    def runs(self, pid: int, mounts: str | None, container: str = CONTAINER) -> None:
        """A process of a container starts."""
        folder = self.proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(f"4:memory:/kubepods/burstable/pod{UID}/{container}\n")
        if mounts is not None:
            (folder / "mountinfo").write_text(mounts)


NVIDIA = Choice("nvidia", "containerd://1.7.2 supports CDI only with enable_cdi = true")
CDI = Choice("cdi", "it is configured")


@pytest.mark.parametrize("mounts", [ROOT + BY_CDI, ROOT + DIRECTORY])
async def test_a_container_with_a_driver_is_in_order(tmp_path: Path, mounts: str) -> None:
    node = Node(tmp_path, NVIDIA)
    node.runs(7, mounts)
    await node.check.look()
    assert node.notes == []


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (
            NVIDIA,
            "NVIDIA's runtime should have injected it (containerd://1.7.2 supports CDI only with enable_cdi = true)",
        ),
        (CDI, "enable CDI in the container runtime"),
    ],
)
@pytest.mark.parametrize("mounts", [ROOT, ROOT + OURS, ROOT + ELSEWHERE])
async def test_a_container_without_a_driver_is_reported_once(
    tmp_path: Path, choice: Choice, words: str, mounts: str
) -> None:
    node = Node(tmp_path, choice)
    node.runs(7, mounts)
    for _ in range(3):
        await node.check.look()
    (note,) = node.notes
    assert note.startswith("GPUDriverMissing: container c1 runs without NVIDIA's driver")
    assert words in note


async def test_a_process_with_mounts_of_its_own_does_not_hide_the_driver(tmp_path: Path) -> None:
    node = Node(tmp_path, NVIDIA)
    node.runs(7, ROOT + BY_CDI)
    node.runs(8, ROOT)
    await node.check.look()
    assert node.notes == []


async def test_nothing_is_reported_of_containers_that_are_not_seen_or_have_not_started(
    tmp_path: Path,
) -> None:
    not_seen, not_running = Node(tmp_path / "1", NVIDIA), Node(tmp_path / "2", NVIDIA, running=False)
    not_seen.runs(7, None)
    not_seen.runs(8, ROOT, FIRST)
    not_running.runs(7, ROOT)
    for node in (not_seen, not_running):
        for _ in range(6):
            await node.check.look()
        assert node.notes == []


async def test_a_container_that_starts_later_is_checked_then(tmp_path: Path) -> None:
    node = Node(tmp_path, NVIDIA)
    node.proc.mkdir(exist_ok=True)
    await node.check.look()
    node.runs(7, ROOT)
    await node.check.look()
    assert len(node.notes) == 1
