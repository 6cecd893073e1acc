"""Decides how containers get their GPU on this node, and keeps our CDI spec up to date.

NVIDIA's description appears when its toolkit is installed and changes with the driver, so it is looked at every few
seconds. Ours stays while any container may be started that was given a name from it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.api.node.device import Device
from gpushare.nodeagent.errors import AllocationRefused
from gpushare.nodeagent.isolation.backends.cdi_overlay import qualified as isolated
from gpushare.nodeagent.runtime.cdi.derive_spec import Derived, derived, qualified
from gpushare.nodeagent.runtime.cdi.spec_dirs import CdiFolders, Found
from gpushare.nodeagent.runtime.selection import Asked, Choice, Reported, choose, needs_annotation

logger = logging.getLogger(__name__)

#: Kubelets before 1.29 pass CDI names only as annotations of the container; runtimes ignore duplicates.
ANNOTATION: Final = "cdi.k8s.io/gpushare-node-agent"


@dataclass(frozen=True, slots=True)
class Access:
    """What the answer to the kubelet has besides the environment: CDI names and annotations of the container."""

    cdi_devices: tuple[str, ...] = ()
    annotations: Mapping[str, str] | None = None


class GpuAccess:
    """Looks at the files every ``look_s`` seconds. ``on_change`` is called, in the event loop, when ``choice`` or ``faults`` read otherwise."""

    def __init__(
        self,
        asked: Asked,
        folders: CdiFolders,
        *,
        look_s: float,
        on_change: Callable[[], None],
        shimmed: Callable[[bytes], bytes | None] = lambda _: None,
    ) -> None:
        self._asked = asked
        self._folders = folders
        self._look_s = look_s
        self._on_change = on_change
        self._shimmed = shimmed
        self._reported: Reported | None = None
        self._gpus: tuple[Device, ...] | None = None
        self._minors: Mapping[str, int] = {}
        self._derived: Derived | None = None
        self._found: Found = Found()
        self._wanted: bool | None = None
        self._resting = False
        self._woken = asyncio.Event()
        self._unwritten = ""
        self.in_place = False
        """Whether there is also a spec that mounts our libraries in place of the driver's."""
        self.choice: Choice | None = None
        """How containers get their GPU; ``None`` until ``decided``."""
        self.faults: tuple[str, ...] = ()
        """CDI files that cannot be used, and why; one text each."""
        self.decided = asyncio.Event()
        """Set once ``choice`` is known and our file is written if it is needed."""

    def take_report(self, reported: Reported) -> None:
        """Versions from the node's status."""
        if reported != self._reported:
            self._reported = reported
            self._woken.set()

    def take_gpus(self, gpus: Sequence[Device], minors: Mapping[str, int]) -> None:
        """These are the node's GPUs, and the numbers of their device nodes by UUID."""
        if (tuple(gpus), dict(minors)) != (self._gpus, self._minors):
            self._gpus, self._minors = tuple(gpus), dict(minors)
            self._woken.set()

    def want(self, *, wanted: bool) -> None:
        """Whether this node gives GPUs to containers, or runs some that have one."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._woken.set()

    def rest(self, *, resting: bool) -> None:
        """Whether another agent maintains the spec instead."""
        if resting != self._resting:
            self._resting = resting
            self._woken.set()

    def look_again(self) -> None:
        """The answer of ``shimmed`` may have changed."""
        self._woken.set()

    async def remove(self) -> None:
        """Remove our spec for good."""
        self._resting = True
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
        """Why GPUs cannot be given in the requested way, and what to do; empty if they can."""
        if self.choice is None or self.choice.way == "nvidia":
            return ""
        return self.choice.trouble or self._unwritten

    def lacking(self) -> dict[str, str]:
        """GPUs that cannot be given to a container now, by UUID, and why."""
        choice = self.choice
        if choice is None or choice.way == "nvidia":
            return {}
        covered = self._derived.covered if self._derived is not None and not self._unwritten else frozenset()
        why = self.trouble or "no CDI description has it yet"
        return {gpu.uuid: why for gpu in self._gpus or () if gpu.uuid not in covered}

    def give(self, uuids: Sequence[str], *, in_place: bool = False) -> Access:
        """What a container with these GPUs gets; raises ``AllocationRefused`` when there is no way to give them.

        ``in_place``: with our libraries in place of the driver's, which only CDI can do.
        """
        if self.choice is None or self.choice.way == "nvidia":
            return Access()
        lacking = self.lacking()
        for uuid in uuids:
            if uuid in lacking:
                raise AllocationRefused("", f"GPU {uuid} cannot be given to a container: {lacking[uuid]}")
        named = tuple(isolated(uuid) if in_place else qualified(uuid) for uuid in uuids)
        if self._reported is not None and needs_annotation(self._reported):
            return Access(named, {ANNOTATION: ",".join(named)})
        return Access(named)

    async def run(self) -> None:
        """Look, decide and write until cancelled."""
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
        found = Found()
        if self._asked is not Asked.NVIDIA:
            # A thread only if there is something to read: on most nodes nothing ever changes.
            found = (
                await asyncio.to_thread(self._folders.read)
                if self._folders.changed()
                else self._folders.found
            )
            # A file may be broken only because it is being written: reported only if it stays so.
            if found.faults and found != self._found and self.choice is not None:
                self._found = found
                return
        self._found = found
        gpus = self._gpus or ()
        working = [gpu.uuid for gpu in gpus if gpu.healthy]
        choice = self.choice
        if choice is None or working or choice.trouble:
            # One that does not work may be missing from the description, which says nothing about the others.
            self._derived = derived(found.descriptions, gpus, self._minors)
            reported = self._reported or Reported()
            choice = choose(self._asked, reported, self._derived, working, found.faults)
        self.faults = found.faults
        await self._write()
        # Not before it is known whether our file is there: containers are asked for meanwhile.
        unwritten = self._unwritten and self._asked is Asked.AUTO
        self.choice = Choice("nvidia", self._unwritten) if unwritten else choice
        self.decided.set()
        if self._state() != before:
            self._on_change()

    def _state(self) -> tuple[object, ...]:
        covered = self._derived and self._derived.covered
        return (self.choice, self.faults, self._unwritten, self.in_place, covered)

    async def _write(self) -> None:
        """Have our file as it should be.

        It stays as it was while only NVIDIA's is missing, or NVIDIA's runtime was chosen since: containers that were
        given a name from it may be started again.
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
        """Have the other description too, where it is wanted. Where it is not any more it stays, as ours does."""
        content = self._shimmed(self._derived.content) if self._wanted and self._derived is not None else None
        if content is not None and not self._folders.has(content, isolated=True):
            await asyncio.to_thread(self._folders.write, content, isolated=True)
            logger.info("%s written", self._folders.isolated)
        self.in_place = content is not None
