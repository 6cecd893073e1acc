"""Decides how containers get their GPU on this node, and keeps our CDI spec up to date.

NVIDIA's spec appears when its toolkit is installed and changes with the driver, so it is checked every few seconds. Ours stays as
long as a container with a name from it may be started.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.api.node.device import Device
from gpushare.nodeagent.allocate.container_response import DeviceNode
from gpushare.nodeagent.errors import AllocationRefused
from gpushare.nodeagent.isolation.backends.cdi_overlay import qualified as isolated
from gpushare.nodeagent.runtime.cdi.derive_spec import Derived, derived, qualified
from gpushare.nodeagent.runtime.cdi.spec_dirs import CdiFolders, Found
from gpushare.nodeagent.runtime.host_devices import capability_major, host_devices
from gpushare.nodeagent.runtime.selection import Asked, Choice, Reported, choose, needs_annotation

logger = logging.getLogger(__name__)

#: Kubelets before 1.29 pass CDI names only as annotations of the container; runtimes ignore duplicates.
ANNOTATION: Final = "cdi.k8s.io/gpushare-node-agent"


@dataclass(frozen=True, slots=True)
class Access:
    """What the response to the kubelet has in addition to the environment: CDI names and annotations of the container, or device nodes."""

    cdi_devices: tuple[str, ...] = ()
    annotations: Mapping[str, str] | None = None
    devices: tuple[DeviceNode, ...] = ()


class GpuAccess:
    """Checks the files every ``look_s`` seconds. ``on_change`` is called, in the event loop, when ``choice`` or ``faults`` changes.

    ``dev`` is where this process sees the host's ``/dev``.
    """

    def __init__(
        self,
        asked: Asked,
        folders: CdiFolders,
        *,
        dev: Path,
        look_s: float,
        on_change: Callable[[], None],
        shimmed: Callable[[bytes], bytes | None] = lambda _: None,
    ) -> None:
        self._asked = asked
        self._folders = folders
        self._dev = dev
        self._look_s = look_s
        self._on_change = on_change
        self._shimmed = shimmed
        self._reported: Reported | None = None
        self._gpus: tuple[Device, ...] | None = None
        self._minors: Mapping[str, int] = {}
        self._capabilities: Mapping[str, tuple[int, ...]] = {}
        self._derived: Derived | None = None
        self._found: Found = Found()
        self._wanted: bool | None = None
        self._resting = False
        self._woken = asyncio.Event()
        self._turn = asyncio.Lock()
        """Held while the spec is written or removed."""
        self._unwritten = ""
        self.in_place = False
        """Whether there is also a spec that mounts our libraries in place of the driver's."""
        self.choice: Choice | None = None
        """How containers get their GPU; ``None`` until ``decided``."""
        self.faults: tuple[str, ...] = ()
        """CDI files that cannot be used, and why; one text each."""
        self.decided = asyncio.Event()
        """Set once ``choice`` is known and our file, if needed, is written."""

    def take_report(self, reported: Reported) -> None:
        """Set the versions from the node's status."""
        if reported != self._reported:
            self._reported = reported
            self._woken.set()

    def take_gpus(
        self,
        gpus: Sequence[Device],
        minors: Mapping[str, int],
        capabilities: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """Set the node's GPUs, the numbers of their device nodes by UUID, and for MIG instances those of their access rights."""
        now = tuple(gpus), dict(minors), dict(capabilities or {})
        if now != (self._gpus, self._minors, self._capabilities):
            self._gpus, self._minors, self._capabilities = now
            self._woken.set()

    def want(self, *, wanted: bool) -> None:
        """Set whether this node assigns GPUs to containers, or has running containers with a GPU."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._woken.set()

    def rest(self, *, resting: bool) -> None:
        """Set whether another agent maintains the spec instead."""
        if resting != self._resting:
            self._resting = resting
            self._woken.set()

    def look_again(self) -> None:
        """The result of ``shimmed`` may have changed."""
        self._woken.set()

    async def remove(self) -> None:
        """Remove our spec permanently."""
        self._resting = True
        async with self._turn:
            try:
                if self._folders.remove():
                    logger.info("%s removed", self._folders.ours)
            except OSError as error:
                logger.error("%s cannot be removed: %s", self._folders.ours, error)

    @property
    def there(self) -> bool:
        """Whether our spec is in its directory."""
        return self._folders.ours.exists() or self._folders.isolated.exists()

    @property
    def trouble(self) -> str:
        """Why GPUs cannot be assigned in the requested way, and what to do; empty if they can."""
        if self.choice is None or self.choice.way == "nvidia":
            return ""
        return self.choice.trouble or self._unwritten

    def lacking(self) -> dict[str, str]:
        """GPUs that cannot be assigned to a container now, by UUID, and why."""
        choice = self.choice
        if choice is None or choice.way == "nvidia":
            return {}
        covered = self._derived.covered if self._derived is not None and not self._unwritten else frozenset()
        why = self.trouble or "no CDI description has it yet"
        return {gpu.uuid: why for gpu in self._gpus or () if gpu.uuid not in covered}

    def give(self, uuids: Sequence[str], *, in_place: bool = False) -> Access:
        """What a container with these GPUs receives; raises ``AllocationRefused`` if there is no way to assign them.

        ``in_place``: with our libraries in place of the driver's, which only CDI supports.
        """
        if self.choice is None or self.choice.way == "nvidia":
            minors = [self._minors[uuid] for uuid in uuids if uuid in self._minors]
            return Access(devices=host_devices(minors, self._dev))
        lacking = self.lacking()
        for uuid in uuids:
            if uuid in lacking:
                raise AllocationRefused("", f"GPU {uuid} cannot be given to a container: {lacking[uuid]}")
        named = tuple(isolated(uuid) if in_place else qualified(uuid) for uuid in uuids)
        if self._reported is not None and needs_annotation(self._reported):
            return Access(named, {ANNOTATION: ",".join(named)})
        return Access(named)

    async def run(self) -> None:
        """Check, decide and write until cancelled."""
        while True:
            self._woken.clear()
            if self._reported is not None and self._gpus is not None:
                await self._look()
            await self._pause()

    async def _pause(self) -> None:
        # If NVIDIA's runtime was requested, no file makes a difference.
        wait_s = None if self._asked is Asked.NVIDIA else self._look_s
        try:
            async with asyncio.timeout(wait_s):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _look(self) -> None:
        before = self._state()
        specs = Found()
        if self._asked is not Asked.NVIDIA:
            # A thread only if there is something to read: on most nodes the files never change.
            specs = (
                await asyncio.to_thread(self._folders.read)
                if self._folders.changed()
                else self._folders.found
            )
            # A file may only be invalid because it is being written: reported if it stays so.
            if specs.faults and specs != self._found and self.choice is not None:
                self._found = specs
                return
        self._found = specs
        gpus = self._gpus or ()
        working = [gpu.uuid for gpu in gpus if gpu.healthy]
        choice = self.choice
        if choice is None or working or choice.trouble:
            # A GPU that does not work may be missing from the spec, which does not affect the others.
            major = capability_major() if self._capabilities else None
            self._derived = derived(specs.descriptions, gpus, self._minors, self._capabilities, major)
            reported = self._reported or Reported()
            choice = choose(self._asked, reported, self._derived, working, specs.faults)
        self.faults = specs.faults
        async with self._turn:
            await self._write()
        # Not before it is known whether our file exists: containers may be requested meanwhile.
        unwritten = self._unwritten and self._asked is Asked.AUTO
        self.choice = Choice("nvidia", self._unwritten) if unwritten else choice
        self.decided.set()
        if self._state() != before:
            self._on_change()

    def _state(self) -> tuple[object, ...]:
        covered = self._derived and self._derived.covered
        return (self.choice, self.faults, self._unwritten, self.in_place, covered)

    async def _write(self) -> None:
        """Write or remove our file as needed.

        It stays as it was if only NVIDIA's is missing, or NVIDIA's runtime was chosen since: containers with a name from it may be
        started again.
        """
        if self._wanted is None or self._resting:
            return
        try:
            if not self._wanted:
                if self.there and self._folders.remove():
                    logger.info("%s removed", self._folders.ours)
            elif self._derived is not None and not self._folders.has(self._derived.content):
                await asyncio.to_thread(self._folders.write, self._derived.content)
                logger.info("%s written from %s", self._folders.ours, self._derived.source)
            await self._write_isolated()
            self._unwritten = ""
        except OSError as error:
            if self._wanted and not self._unwritten:
                logger.error("cannot write %s: %s", self._folders.ours, error)
            self._unwritten = f"{self._folders.ours} cannot be written: {error.strerror or error}"

    async def _write_isolated(self) -> None:
        """Write the spec with isolation too, if needed. It stays when it is no longer needed, like ours."""
        content = self._shimmed(self._derived.content) if self._wanted and self._derived is not None else None
        if content is not None and not self._folders.has(content, isolated=True):
            await asyncio.to_thread(self._folders.write, content, isolated=True)
            logger.info("%s written", self._folders.isolated)
        self.in_place = content is not None
