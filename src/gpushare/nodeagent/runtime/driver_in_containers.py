"""Finds containers that have a GPU and run without NVIDIA's driver, because their container runtime did not add it.

Then their programs find no GPU, and nothing else says why. The agent cannot see beforehand whether a container runtime uses
NVIDIA's, or has CDI enabled; it can see the mounts of a container that runs.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, Protocol

from gpushare.api.request.request import ContainerKind
from gpushare.kube.event_recorder import Recorder
from gpushare.nodeagent.allocate.node_allocations import NodeAllocations
from gpushare.nodeagent.allocate.pod_allocations import AllocatedPod
from gpushare.nodeagent.isolation.watchdog.cgroups import Owner
from gpushare.nodeagent.isolation.watchdog.processes import processes_of
from gpushare.nodeagent.runtime.selection import Choice
from gpushare.process.log_setup import about

logger = logging.getLogger(__name__)

REASON: Final = "GPUDriverMissing"
#: What a driver's files are called, wherever they are mounted: by CDI, by NVIDIA's runtime, or as a directory.
_DRIVER: Final = ("nvidia", "libcuda.so")
#: Our libraries are mounted below it, and need a driver in addition.
_OURS: Final = "/run/gpushare/"
_MOUNT_POINT: Final = 4
#: Containers without a process that is seen, such as those in virtual machines, are looked for so many times.
_LOOKS: Final = 4
_EVERY_S: Final = 15.0

_ADVICE: Final = {
    "nvidia": "let NVIDIA's runtime be the default (`nvidia-ctk runtime configure --set-as-default`), or choose CDI (nodeAgent.containerRuntime=cdi)",
    "cdi": "enable CDI in the container runtime (`enable_cdi = true` for containerd 1.7), or choose NVIDIA's runtime (nodeAgent.containerRuntime=nvidia)",
}


class Access(Protocol):
    """What is needed of ``GpuAccess``."""

    @property
    def choice(self) -> Choice | None:
        """How containers get their GPU, once it is known."""


class DriverInContainers:
    """Checks each container once. ``access`` determines how containers get their GPU; ``proc`` is the node's ``/proc``."""

    def __init__(
        self,
        book: NodeAllocations,
        access: Access,
        events: Recorder,
        proc: Path,
        *,
        acts: Callable[[], bool],
    ) -> None:
        self._book = book
        self._access = access
        self._events = events
        self._proc = proc
        self._acts = acts
        self._looks: dict[Owner, int] = {}

    async def run(self) -> None:
        """Look now and then whether there are new containers, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            if self._acts():
                await self.look()

    async def look(self) -> None:
        """Look at the containers that are new."""
        running = {
            Owner(pod.uid, container_id): (pod, name)
            for pod in self._book.pods
            for container_id, name in pod.bound.containers.items()
            if _has_gpu(pod, name)
        }
        self._looks = {owner: count for owner, count in self._looks.items() if owner in running}
        new = {owner for owner in running if self._looks.get(owner, 0) < _LOOKS}
        if not new:
            return
        for owner, found in (await asyncio.to_thread(_with_driver, new, self._proc)).items():
            self._looks[owner] = _LOOKS if found is not None else self._looks.get(owner, 0) + 1
            if found is False:
                self._report(*running[owner])

    def _report(self, pod: AllocatedPod, container: str) -> None:
        choice = self._access.choice
        if choice is None:
            return
        by = "CDI" if choice.way == "cdi" else "NVIDIA's runtime"
        note = (
            f"container {container} runs without NVIDIA's driver and finds no GPU: {by} should have injected it ({choice.why}), but the container "
            f"runtime did not. On the node, {_ADVICE[choice.way]}; then create the pod again"
        )
        logger.warning("pod %s: %s: %s", pod.key, REASON, note, extra=about(pod=pod.key, uid=pod.uid))
        self._events.record(
            pod.bound.reference,
            kind="Warning",
            reason=REASON,
            action="Starting",
            note=note,
            cause=container,
            occurrence="lasting",
        )


def _has_gpu(pod: AllocatedPod, name: str) -> bool:
    """Whether the container is one that runs and requests GPU memory."""
    return pod.bound.running and any(
        one.name == name and one.memory_units and one.kind is not ContainerKind.INIT
        for one in pod.request.containers
    )


def _with_driver(owners: Collection[Owner], proc: Path) -> dict[Owner, bool | None]:
    """Whether a driver is mounted into each container; ``None``: it has no process that is seen."""
    found: dict[Owner, bool | None] = dict.fromkeys(owners)
    for owner, pids in processes_of(owners, proc).items():
        for pid in pids:
            try:
                mounts = (proc / str(pid) / "mountinfo").read_text(errors="replace")
            except OSError:
                continue
            # A process may have mounts of its own: one with a driver is enough.
            found[owner] = bool(found[owner]) or _has_driver(mounts)
    return found


def _has_driver(mountinfo: str) -> bool:
    lines = (line.split(" ") for line in mountinfo.splitlines())
    points = [words[_MOUNT_POINT] for words in lines if len(words) > _MOUNT_POINT]
    return any(name in point for point in points if not point.startswith(_OURS) for name in _DRIVER)
