"""Whether containers of this node can get the isolation libraries: delivered to the host, with the driver's own, and self-tested."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpushare.kube.clock import Clock
from gpushare.nodeagent.errors import AllocationRefused, NodeAgentError
from gpushare.nodeagent.isolation.backends.preload import NoDriver, Ready, driver_on_host
from gpushare.nodeagent.isolation.selftest.selftest import SelfTests, Verdict
from gpushare.nodeagent.isolation.storage.directories import Directories
from gpushare.nodeagent.isolation.storage.files import DELIVERED
from gpushare.nodeagent.isolation.storage.libraries import Release, deliver, hold, is_whole
from gpushare.nodeagent.isolation.storage.selinux import is_enforced, let_containers_use
from gpushare.nodeagent.settings import Settings

NOT_CHECKED: Final = "isolation is not ready yet"


class PreloadReadiness:
    """The result of the last ``check``. ``target`` is the directory on the host for the libraries."""

    def __init__(self, settings: Settings, directories: Directories, target: Path, *, clock: Clock) -> None:
        self._settings = settings
        self._directories = directories
        self._target = target
        self._selftests = SelfTests(settings.driver_root, clock=clock)
        self._stamps: list[tuple[int, int, int]] = []
        self._is_writable = False
        self._ready: Ready | None = None
        self.release: Release | None = None
        """The libraries that new containers get; ``None`` until they are on the host."""
        self.verdict = Verdict("skipped")
        self.trouble = NOT_CHECKED
        """Why no container can get them; empty when all can."""
        self.lacks_driver = False
        """Whether that is because the driver's libraries are not found."""
        self.was_ready = False
        """Whether any container could ever get them."""

    def ready(self) -> Ready:
        """What containers get; raises ``AllocationRefused``."""
        if self.trouble or self._ready is None:
            raise AllocationRefused("", f"no container can be isolated: {self.trouble or NOT_CHECKED}")
        return self._ready

    def directory_failed(self) -> None:
        """A container's directory could not be made: the next ``check`` says whether any can."""
        self._is_writable = False

    async def check(self, gpus: Sequence[str], *, in_place: bool, acts: bool) -> bool:
        """Deliver and, with ``acts``, self-test as needed; whether there is another release now.

        ``in_place``: a CDI spec says where the driver's libraries are.
        """
        before, lacks_driver = self.release, False
        try:
            ready = await asyncio.to_thread(self._prepared, in_place)
            if acts:
                self.verdict = await self._selftests.verdict(ready.release, gpus)
            if self.verdict.outcome == "failed":
                raise NodeAgentError(
                    "isolation libraries", f"they do not work with this node's driver: {self.verdict.why}"
                )
            self._ready, self.trouble, self.was_ready = ready, "", True
        except NoDriver as error:
            # A new release causes a new CDI spec, which may say where the driver is.
            lacks_driver = self.release == before
            self.trouble = str(error) if lacks_driver else NOT_CHECKED
        except NodeAgentError as error:
            self.trouble = str(error)
        self.lacks_driver = lacks_driver
        return self.release != before

    def _prepared(self, in_place: bool) -> Ready:  # noqa: FBT001 - passed through a thread
        """Have everything on the host that a container needs; raises ``NodeAgentError``. Blocks."""
        settings = self._settings
        self.release = self._delivered()
        try:
            if not self._is_writable or not self._directories.root.is_dir():
                self._is_writable = False
                self._directories.prepare()
                self._is_writable = True
        except OSError as error:
            raise NodeAgentError(
                f"--isolation-dir {settings.isolation.folder}",
                f"it cannot be written: {error.strerror or error}; mount a folder of the node there",
            ) from None
        if is_enforced(settings.host_root):
            let_containers_use(self._target.parent)
        driver = None if in_place else driver_on_host(settings.driver_root, settings.host_root)
        return Ready(self.release, driver)

    def _delivered(self) -> Release:
        source = self._settings.isolation.library_folder
        stamps = []
        for name in DELIVERED:
            try:
                status = os.stat(source / name)
                stamps.append((status.st_ino, status.st_size, status.st_mtime_ns))
            except OSError:
                stamps.append((0, 0, 0))
        release = self.release
        if release is None or stamps != self._stamps or not is_whole(release):
            release = deliver(source, self._target)
            self._stamps = stamps
        hold(release)
        return release
