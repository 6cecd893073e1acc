"""Keeps containers from filling the node's disk by the only file of the node's that they may write: ``usage``.

Any of their processes can extend it, and the kubelet does not count it as theirs. No filesystem bounds one file, so this looks at all
of them every few seconds, whatever the watchdog's policy.
"""

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from gpushare.api.objects import ObjectReference
from gpushare.kube.event_recorder import Recorder
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.isolation.storage.directories import USAGE_BYTES
from gpushare.nodeagent.isolation.storage.files import IN_CONTAINER, USAGE, Claimed
from gpushare.nodeagent.isolation.storage.owners import owner_of
from gpushare.process.log_setup import about

logger = logging.getLogger(__name__)

REASON: Final = "IsolationFileTampered"
#: More than any release's file takes, so that an older agent truncates none that a newer one made.
MOST_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 512  # of st_blocks, on every filesystem


class Truncation(NamedTuple):
    """A file that was too large: how large it was, what it still takes if that is too much, and why it is not truncated."""

    size: int
    left: int = 0
    problem: str = ""


def truncate_usage(folder: Path) -> Truncation | None:
    """Truncate the usage file of a container's directory if it was extended. ``None``: it was not, or cannot be found."""
    path = f"{folder}/{USAGE}"
    try:
        status = os.lstat(path)
    except OSError:
        return None
    size = _size(status)
    if size <= MOST_BYTES or not stat.S_ISREG(status.st_mode):
        return None
    try:
        # Without waiting: its owner in the container may hold a lease on it.
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            # Never below what programs map, which would end with SIGBUS. Blocks beyond its end are freed even if its size stays.
            os.ftruncate(handle, min(status.st_size, USAGE_BYTES))
            left = _size(os.fstat(handle))
        finally:
            os.close(handle)
    except OSError as error:
        return Truncation(size, problem=error.strerror or str(error))
    return Truncation(size, left if left > MOST_BYTES else 0)


def _size(status: os.stat_result) -> int:
    # Of a file with holes it is the length; blocks may be allocated beyond its end, or hold extended attributes.
    return max(status.st_size, status.st_blocks * _BLOCK_BYTES)


class UsageLimit:
    """``directories`` returns those of isolated containers, and their owners; ``claim_pods`` the pods that use a ResourceClaim."""

    def __init__(
        self,
        directories: Callable[[], Iterable[tuple[Claimed, Path]]],
        book: NodeAllocations,
        claim_pods: Callable[[str], Iterable[ObjectReference]],
        events: Recorder,
    ) -> None:
        self._directories = directories
        self._book = book
        self._claim_pods = claim_pods
        self._events = events
        self._logged: set[tuple[Path, str]] = set()

    async def run(self, every_s: float) -> None:
        """Look at every file now and then, until cancelled. The node's pods must be known."""
        while True:
            await self.look()
            await asyncio.sleep(every_s)

    async def look(self) -> None:
        """Look at every file once."""
        directories = list(self._directories())
        found = await asyncio.to_thread(lambda: [truncate_usage(folder) for _, folder in directories])
        present = {folder for _, folder in directories}
        self._logged = {known for known in self._logged if known[0] in present}
        for (claimed, folder), truncation in zip(directories, found, strict=True):
            if truncation is not None:
                self._report(claimed, folder, truncation)

    def _report(self, claimed: Claimed, folder: Path, found: Truncation) -> None:
        pods, container = self._owners(claimed)
        subject = f"container {container}" if container else f"a container with {claimed.whose}"
        outcome = "it was truncated"
        if found.problem:
            outcome = f"it cannot be truncated ({found.problem}); delete the pod"
        elif found.left:
            outcome = f"it was truncated and still takes {_mib(found.left)} MiB; delete the pod"
        note = f"{subject} extended {IN_CONTAINER}/{USAGE}, which is on the node's disk, to {_mib(found.size)} MiB: {outcome}"
        for pod in pods:
            self._events.record(
                pod,
                kind="Warning",
                reason=REASON,
                action="Watching",
                note=note,
                cause=container or claimed.whose,
                occurrence="lasting",
            )
        # Once, however often it is extended again.
        known = (folder, found.problem or str(bool(found.left)))
        if known not in self._logged:
            self._logged.add(known)
            keys = ", ".join(f"pod {pod.namespace}/{pod.name}" for pod in pods) or claimed.whose
            about_it = (
                about(pod=f"{pods[0].namespace}/{pods[0].name}", uid=pods[0].uid) if len(pods) == 1 else None
            )
            logger.warning("%s: %s: %s", keys, REASON, note, extra=about_it)

    def _owners(self, claimed: Claimed) -> tuple[list[ObjectReference], str]:
        """Pods that have the directory, none if they are gone, and the container; empty for that of a claim."""
        if not claimed.container:
            return list(self._claim_pods(claimed.pod)), ""
        owner = owner_of(claimed, self._book)
        return ([], claimed.container) if owner is None else ([owner[0].bound.reference], owner[1])


def _mib(size: int) -> int:
    return -(-size >> 20)
