"""No container fills the node's disk by its usage file."""

import fcntl
import logging
import mmap
import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from gpushare.api import names
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import ObjectReference
from gpushare.nodeagent.allocate.grant_log import Slot
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.dra.claiming_pods import ClaimHolders, ClaimingPod
from gpushare.nodeagent.isolation.storage.directories import USAGE_BYTES, Directories
from gpushare.nodeagent.isolation.storage.files import Claimed, fingerprint
from gpushare.nodeagent.isolation.storage.usage_limit import (
    MOST_BYTES,
    Truncation,
    UsageLimit,
    truncate_usage,
)
from tests.unit.nodeagent.allocate.allocated_pods import APP, allocated, node_of, request
from tests.unit.nodeagent.isolation.observed import Events

MIB = 1 << 20
CLAIMED = Claimed("default/a", "uid-a", "c0", "GPU-1", 1024, fingerprint(["a-0"]))


@pytest.fixture
def usage(tmp_path: Path) -> Path:
    """The usage file of a container's directory."""
    return Directories(tmp_path / "containers").make(CLAIMED, "hard") / "usage"


def extend(usage: Path, to_bytes: int) -> None:
    """As ``dd`` with ``seek`` and ``conv=notrunc``."""
    with usage.open("r+b") as file:
        file.seek(USAGE_BYTES)
        file.write(bytes(to_bytes - USAGE_BYTES))


def test_an_extended_file_is_truncated_to_what_programs_map(usage: Path) -> None:
    with usage.open("r+b") as file, mmap.mmap(file.fileno(), USAGE_BYTES) as mapped:
        mapped[-1] = 7
        extend(usage, 20 * MIB)
        assert truncate_usage(usage.parent) == Truncation(20 * MIB)
        assert mapped[-1] == 7
    assert usage.stat().st_size == USAGE_BYTES
    assert usage.stat().st_blocks * 512 < MOST_BYTES
    assert truncate_usage(usage.parent) is None


def test_a_file_of_another_release_is_left_alone(usage: Path) -> None:
    extend(usage, MOST_BYTES)
    assert truncate_usage(usage.parent) is None
    assert usage.stat().st_size == MOST_BYTES


def test_a_hole_is_removed_before_it_is_filled(usage: Path) -> None:
    os.truncate(usage, 1 << 40)
    assert truncate_usage(usage.parent) == Truncation(1 << 40)
    assert usage.stat().st_size == USAGE_BYTES


@pytest.mark.parametrize("size", [USAGE_BYTES, 4096])
def test_blocks_beyond_the_end_are_freed(usage: Path, size: int) -> None:
    os.truncate(usage, size)
    subprocess.run(["fallocate", "-n", "-o", "1M", "-l", "4M", str(usage)], check=True)
    found = truncate_usage(usage.parent)
    assert found is not None
    assert found.size >= 4 * MIB
    assert (found.left, found.problem) == (0, "")
    assert usage.stat().st_size == size
    assert usage.stat().st_blocks * 512 < MOST_BYTES


def test_a_lease_on_the_file_delays_nobody(usage: Path) -> None:
    extend(usage, 2 * MIB)
    with usage.open("r+b") as file:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # which is ignored, unlike the default
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        found = truncate_usage(usage.parent)
    assert found == Truncation(2 * MIB, problem="Resource temporarily unavailable")
    assert truncate_usage(usage.parent) == Truncation(2 * MIB)


def test_only_the_file_itself_is_truncated(usage: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(bytes(2 * MIB))
    usage.unlink()
    usage.symlink_to(other)
    assert truncate_usage(usage.parent) is None
    usage.unlink()
    assert truncate_usage(usage.parent) is None
    assert other.stat().st_size == 2 * MIB


class Node:
    """A node with one GPU, and the directories of its containers."""

    def __init__(self, folder: Path) -> None:
        self.node = node_of(15 * 1024, mode=NodeMode.CGPU)
        self.book = NodeAllocations(self.node)
        self.claims = ClaimHolders(dict)
        self.directories = Directories(folder)
        self.made: list[tuple[Claimed, Path]] = []
        self.events = Events()
        self.limit = UsageLimit(lambda: self.made, self.book, self.claims.pods_of, self.events)

    def runs(self, name: str, has: str) -> None:
        """A pod with a container that has these device IDs."""
        pod = allocated(self.node, name, 0, request((APP, 2)))
        self.book.put(pod)
        self.book.grants.grant(Slot(pod.uid, "c0", names.GPU_MEM), frozenset([has]), 0.0)

    def has(self, claimed: Claimed) -> Path:
        """Its directory's usage file."""
        folder = self.directories.make(claimed, "hard")
        self.made.append((claimed, folder))
        return folder / "usage"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "containers")


async def test_it_is_reported_on_the_pod_that_has_the_file(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    # The kubelet gave the response for one pod to the other, which has an identical request.
    node.runs("a", "b-0")
    node.runs("b", "a-0")
    uid = next(pod.uid for pod in node.book.pods if pod.bound.name == "a")
    usage = node.has(msgspec.structs.replace(CLAIMED, uid=uid))
    await node.limit.look()
    assert not node.events.recorded
    for mib in (20, 30):
        extend(usage, mib * MIB)
        await node.limit.look()
        assert usage.stat().st_size == USAGE_BYTES
    assert node.events.recorded == [
        (
            "b",
            "IsolationFileTampered",
            f"container c0 extended /run/gpushare/usage, which is on the node's disk, to {mib} MiB: it was truncated",
        )
        for mib in (20, 30)
    ]
    lines = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert lines == [f"pod default/b: IsolationFileTampered: {node.events.recorded[0][2]}"]


async def test_what_remains_is_reported_with_what_to_do(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.runs("a", "a-0")
    usage = node.has(CLAIMED)
    extend(usage, 20 * MIB)
    monkeypatch.setattr(os, "ftruncate", lambda handle, size: None)
    await node.limit.look()
    ((_, _, note),) = node.events.recorded
    assert note.endswith("to 20 MiB: it was truncated and still takes 20 MiB; delete the pod")


async def test_the_file_of_a_claim_is_reported_on_each_pod_that_uses_it(node: Node) -> None:
    for name, claim in (("a", "default/shared"), ("b", "default/shared"), ("c", "default/other")):
        node.claims.put(ClaimingPod(f"uid-{name}", f"default/{name}", {"main": (claim,)}, {}))
    usage = node.has(Claimed("default/shared", "uid-of-claim", "", "GPU-1", 1024, fingerprint([])))
    extend(usage, 2 * MIB)
    await node.limit.look()
    assert node.events.reasons == [("a", "IsolationFileTampered"), ("b", "IsolationFileTampered")]
    assert node.events.recorded[0][2].startswith("a container with ResourceClaim default/shared extended")
    assert node.claims.pods_of("default/other") == [ObjectReference("Pod", "c", "default", "uid-c")]


async def test_the_file_of_an_unknown_pod_is_truncated_as_well(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    usage = node.has(CLAIMED)
    extend(usage, 2 * MIB)
    await node.limit.look()
    assert usage.stat().st_size == USAGE_BYTES
    assert not node.events.recorded
    assert "pod default/a, container c0: IsolationFileTampered: container c0 extended" in caplog.text
