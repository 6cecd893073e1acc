"""Removes the directories of containers, and releases of our libraries, that are no longer used.

Everything is derived from the files, the API server's pods and the kubelet's list, so that a restarted agent continues with
what it finds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpushare.api import names
from gpushare.kube.clock import Clock
from gpushare.nodeagent.errors import PodResourcesUnavailable
from gpushare.nodeagent.isolation.options import CorePolicy
from gpushare.nodeagent.isolation.storage.directories import Directories
from gpushare.nodeagent.isolation.storage.files import Claimed, fingerprint
from gpushare.nodeagent.isolation.storage.in_use import GRACE_S, Kept, ListedPods, unused
from gpushare.nodeagent.isolation.storage.libraries import HELD_S, remove_others
from gpushare.nodeagent.observability.metrics import Metrics
from gpushare.nodeagent.reconcile.pod_resources import Listing
from gpushare.process.log_setup import about

logger = logging.getLogger(__name__)

#: How long the kubelet's list may take, in seconds.
LIST_S: Final = 5.0


class Keeper:
    """``live`` returns the UIDs of the node's pods and prepared claims; ``library`` the release that new containers get, if any.

    ``refresh`` is called before anything is removed, so that ``live`` has what another agent has prepared.
    """

    def __init__(
        self,
        directories: Directories,
        libraries: Path,
        listing: Listing,
        *,
        live: Callable[[], Collection[str]],
        refresh: Callable[[], Awaitable[None]],
        library: Callable[[], str],
        metrics: Metrics,
        clock: Clock,
        grace_s: float = GRACE_S,
        policy: CorePolicy = "hard",
    ) -> None:
        self._directories = directories
        self._libraries = libraries
        self._listing = listing
        self._live = live
        self._refresh = refresh
        self._library = library
        self._metrics = metrics
        self._clock = clock
        self._grace_s = grace_s
        self._policy = policy
        self._known: dict[str, Kept] = {}
        self._incomplete: dict[str, float] = {}
        self._woken = asyncio.Event()
        self._turn = asyncio.Lock()

    async def adopt(self) -> None:
        """Load what earlier or concurrent agents have created, and forget what they removed."""
        before = dict(self._known)
        present, new, hollow = await asyncio.to_thread(self._read, before)
        now_s = self._clock.monotonic()
        for name, claimed in new.items():
            self._known.setdefault(name, Kept(self._directories.root / name, claimed, now_s))
        removed = before.keys() - present
        missing = {name: self._known[name] for name in removed | hollow if name in self._known}
        for name in removed:
            self._known.pop(name, None)
        await self._recreate(missing)
        self._count()

    async def _recreate(self, missing: Mapping[str, Kept]) -> None:
        """Restore what pods still use: their containers could not be restarted without it.

        A running container keeps the files with which it was started.
        """
        live = self._live()
        lost = {name: kept for name, kept in missing.items() if kept.claimed and kept.claimed.uid in live}
        if not lost:
            return
        try:
            listed = await self._listed()
        except PodResourcesUnavailable as error:
            logger.warning("cannot check for lost container files yet: %s", error)
            self._known.update(lost)
            return
        for name, kept in lost.items():
            # Unused directories are removed by a concurrent agent.
            if kept.claimed is None or (kept.claimed.container and kept.claimed.ids not in listed.values()):
                continue
            self._known[name] = kept
            try:
                await asyncio.to_thread(self._directories.make, kept.claimed, self._policy, name)
            except OSError as error:
                about_it = about(pod=kept.claimed.pod, uid=kept.claimed.uid)
                logger.warning(
                    "%s/%s cannot be recreated: %s", self._directories.root, name, error, extra=about_it
                )
                continue
            logger.warning(
                "%s/%s was lost and recreated: %s, could not restart without it",
                *(self._directories.root, name, kept.claimed.whose),
                extra=about(pod=kept.claimed.pod, uid=kept.claimed.uid),
            )

    def _read(self, known: Mapping[str, Kept]) -> tuple[set[str], dict[str, Claimed | None], set[str]]:
        """The existing directories, the contents of those that are not ``known``, and the known ones that lack a file."""
        names = self._directories.names()
        new = {name: self._directories.claim(name) for name in names if name not in known}
        hollow = {
            name
            for name in names
            if name in known and not self._directories.is_whole(name, known[name].claimed)
        }
        return set(names), new, hollow

    @property
    def keeps_any(self) -> bool:
        """Whether any container has, or had a moment ago, a directory here."""
        return bool(self._known)

    def made(self, folder: Path, claimed: Claimed) -> None:
        """A directory was made for a container."""
        self._known[folder.name] = Kept(folder, claimed, self._clock.monotonic())
        self._count()

    async def release(self, name: str) -> None:
        """Remove the directory ``name``, if it exists; raises ``OSError``."""
        async with self._turn:
            with suppress(FileNotFoundError):
                await asyncio.to_thread(self._directories.remove, name)
            self._known.pop(name, None)
            self._count()

    def directories(self) -> list[tuple[Claimed, Path]]:
        """The known directories and their owners; oldest first."""
        known = sorted(self._known.values(), key=lambda kept: kept.since_s)
        return [(kept.claimed, kept.folder) for kept in known if kept.claimed is not None]

    def others(self, gpu: str, uid: str) -> int:
        """How many pods other than ``uid`` have an isolated share of the GPU."""
        live = self._live()
        claims = [kept.claimed for kept in self._known.values()]
        return len(
            {
                claim.uid
                for claim in claims
                if claim is not None and gpu in claim.mib_by_gpu and claim.uid in live
            }
            - {uid}
        )

    async def clear(self) -> bool:
        """Remove what no pod uses, regardless of age; returns whether nothing is left."""
        await self._refresh()
        async with self._turn:
            return await self._cleared()

    async def _cleared(self) -> bool:
        await self.adopt()
        try:
            listed = await self._listed()
        except PodResourcesUnavailable as error:
            logger.info("nothing is removed: %s", error)
            return False
        for name in unused(self._known, self._live(), listed, self._clock.monotonic(), 0.0):
            await self._remove(name)
        return not self._known

    def look_soon(self) -> None:
        """A pod may have gone."""
        if self._known:
            self._woken.set()

    async def run(self, every_s: float) -> None:
        """Remove what is unused, until cancelled. The node's pods must be known."""
        while True:
            self._woken.clear()
            await self.once()
            try:
                async with asyncio.timeout(every_s):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def once(self) -> None:
        """Remove what is unused now."""
        # Not in our turn: a claim that is being unprepared waits for it in ``release``.
        await self._refresh()
        async with self._turn:
            await self._swept()

    async def _swept(self) -> None:
        await self.adopt()
        await self._remove_incomplete()
        now_s = self._clock.monotonic()
        # The kubelet is only asked if its answer matters.
        if self._unused({}, now_s) or self._has_several():
            try:
                listed = await self._listed()
            except PodResourcesUnavailable as error:
                logger.debug("nothing is removed: %s", error)
                return
            for name in self._unused(listed, now_s):
                await self._remove(name)
        await self._forget_libraries()

    def _has_several(self) -> bool:
        """Whether more than one directory was made for some container."""
        owners = [
            (one.uid, one.container) for kept in self._known.values() if (one := kept.claimed) is not None
        ]
        return len(set(owners)) < len(owners)

    def _unused(self, listed: ListedPods, now_s: float) -> list[str]:
        return unused(self._known, self._live(), listed, now_s, self._grace_s)

    async def _listed(self) -> dict[tuple[str, str], str]:
        listing = await self._listing.read(LIST_S)
        return {
            (pod, container): fingerprint(ids)
            for pod, devices in listing.items()
            for (container, resource), ids in devices.items()
            if resource == names.GPU_MEM
        }

    async def _remove(self, name: str) -> None:
        claimed = self._known[name].claimed
        about_it = None if claimed is None else about(pod=claimed.pod, uid=claimed.uid)
        try:
            await asyncio.to_thread(self._directories.remove, name)
        except FileNotFoundError:
            logger.info("%s/%s is gone already", self._directories.root, name, extra=about_it)
        except OSError as error:
            logger.warning("%s/%s cannot be removed: %s", self._directories.root, name, error, extra=about_it)
            return
        else:
            whose = "nobody known" if claimed is None else claimed.whose
            logger.info(
                "%s/%s of %s is unused and was removed",
                self._directories.root,
                name,
                whose,
                extra=about_it,
            )
        self._known.pop(name, None)
        self._count()

    async def _remove_incomplete(self) -> None:
        """Remove old ones, left by a process that died."""
        now_s = self._clock.monotonic()
        names = self._directories.incomplete()
        self._incomplete = {name: self._incomplete.get(name, now_s) for name in names}
        for name, since_s in list(self._incomplete.items()):
            if now_s - since_s >= self._grace_s:
                await asyncio.to_thread(self._directories.remove_incomplete, name)

    async def _forget_libraries(self) -> None:
        current = self._library()
        if not current:
            return
        keep = {kept.claimed.library for kept in self._known.values() if kept.claimed is not None} | {current}
        held_s = self._grace_s / GRACE_S * HELD_S
        for name in await asyncio.to_thread(remove_others, self._libraries, keep, held_s):
            logger.info("release %s of the isolation libraries is unused and was removed", name)

    def _count(self) -> None:
        self._metrics.isolated_containers.set(value=len(self._known))
