"""Our libraries in front of the driver's, with limits that the tenant cannot write (modes ``cgpu``, ``core_mem``).

There are two ways into a container. With CDI, our libraries are mounted at the driver's own paths (``in_place``). With NVIDIA's
runtime, whose hook mounts the driver after all other mounts, they are listed in ``/etc/ld.so.preload``: it is mounted
read-only, and no environment variable disables it.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.nodeagent.allocate.container_response import Grant, Injection, Mount
from gpushare.nodeagent.driver.driver_library import libraries
from gpushare.nodeagent.errors import AllocationRefused, NodeAgentError
from gpushare.nodeagent.isolation.options import CorePolicy
from gpushare.nodeagent.isolation.storage.directories import Directories
from gpushare.nodeagent.isolation.storage.files import (
    ALLOWANCE,
    DELIVERED,
    IN_CONTAINER,
    LIMITS,
    MOST_GPUS,
    SHIMS,
    USAGE,
    Claimed,
    fingerprint,
)
from gpushare.nodeagent.isolation.storage.libraries import PRELOAD, Release

_IN_EVERY_PROGRAM: Final = "/etc/ld.so.preload"
_NVML: Final = "libnvidia-ml.so.1"


class NoDriver(NodeAgentError):
    """The driver's libraries, to which ours pass calls on, are not found on the host."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What containers get: our libraries, and where the host has the driver's (by name in ``SHIMS``).

    ``driver`` is ``None`` with our libraries in place, where the CDI spec says where the driver's are.
    """

    release: Release
    driver: dict[str, str] | None


def driver_on_host(driver_root: Path, host_root: Path) -> dict[str, str]:
    """Paths of the driver's libraries as the host has them; raises ``NoDriver``.

    ``driver_root`` and ``host_root`` are where this process sees the folder with the driver and the host's root.
    """
    listed = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    problem = f"no {_NVML} is there"
    for nvml in libraries(driver_root, listed):
        found = {}
        for name in SHIMS:
            # By the name that stays when the driver is upgraded, if its links are within the host's root.
            path = nvml.path.with_name(name)
            if not path.exists():
                problem = f"{nvml.path.parent} has no {name}"
                break
            try:
                real = path if driver_root == host_root else path.resolve(strict=True)
                found[name] = str(Path("/") / real.relative_to(host_root))
            except (OSError, ValueError):
                problem = f"{path} is not a file of the host (below {host_root})"
                break
        else:
            return found
    raise NoDriver(
        f"driver under {driver_root}",
        f"{problem}; containers need the driver's libraries in addition to ours",
    )


class Preload:
    """The backend. ``ready`` returns what containers get or raises ``AllocationRefused``; ``others`` counts the pods with an isolated
    share of a GPU, except the one with that UID. ``on_failed`` is called if a container's directory cannot be made. ``needs_allowance``: whether a container's memory may change while it runs; ``may_burst``:
    whether it may be more than its share."""

    def __init__(
        self,
        directories: Directories,
        *,
        policy: CorePolicy,
        most_pods: int,
        ready: Callable[[], Ready],
        in_place: Callable[[], bool],
        others: Callable[[str, str], int],
        on_made: Callable[[Path, Claimed], None],
        on_failed: Callable[[], None],
        may_burst: bool,
        needs_allowance: Callable[[Grant], bool],
    ) -> None:
        self._directories = directories
        self._policy = policy
        self._most_pods = most_pods
        self._ready = ready
        self._in_place = in_place
        self._others = others
        self._on_made = on_made
        self._on_failed = on_failed
        self.may_burst = may_burst
        self._needs_allowance = needs_allowance

    @property
    def in_place(self) -> bool:
        """Whether a CDI spec has our libraries in place of the driver's."""
        return self._in_place()

    async def inject(self, grant: Grant, *, in_place: bool) -> Injection:
        """A directory for the container, and its mounts; raises ``AllocationRefused``."""
        ready = self._ready()
        if len(grant.shares) > MOST_GPUS:
            raise AllocationRefused(
                "",
                f"a container can be isolated on {MOST_GPUS} GPUs at most, not on {len(grant.shares)}",
                (grant.uid,),
            )
        for share in grant.shares:
            if self._others(share.uuid, grant.uid) >= self._most_pods:
                raise AllocationRefused(
                    "",
                    f"GPU {share.label} has {self._most_pods} isolated pods, the maximum (--isolated-pods)",
                    (grant.uid,),
                )
        first, *more = grant.shares
        mounts = [] if in_place else _in_every_program(ready)
        claimed = Claimed(
            pod=grant.pod,
            uid=grant.uid,
            container=grant.container,
            gpu=first.uuid,
            mib=first.mib,
            ids=fingerprint(grant.ids),
            core_percent=first.core_percent,
            library=ready.release.name,
            more={share.uuid: share.mib for share in more},
            compute_class=grant.compute_class,
            compute_policy=grant.compute_policy,
            limit_mib=grant.limit_mib,
            allowance=self._needs_allowance(grant),
        )
        try:
            if grant.container:
                made = await asyncio.to_thread(self._directories.make, claimed, self._policy)
            else:
                # Asked again, a claim gets the same.
                made = await asyncio.to_thread(self._directories.keep, claimed, self._policy, grant.uid)
        except OSError as error:
            self._on_failed()
            raise AllocationRefused(
                "",
                f"{self._directories.root} cannot be written: {error.strerror or error}; the container would "
                "not be limited to its share",
                (grant.uid,),
            ) from None
        self._on_made(made, claimed)
        own = (
            Mount(str(made / LIMITS), f"{IN_CONTAINER}/{LIMITS}"),
            Mount(str(made / USAGE), f"{IN_CONTAINER}/{USAGE}", read_only=False),
            *((Mount(str(made / ALLOWANCE), f"{IN_CONTAINER}/{ALLOWANCE}"),) if claimed.allowance else ()),
        )
        return Injection(mounts=(*own, *mounts))


def _in_every_program(ready: Ready) -> list[Mount]:
    folder = ready.release.folder
    if ready.driver is None:
        raise AllocationRefused("", "the injection method (CDI or NVIDIA's runtime) is being changed; retry")
    mounts = [Mount(str(folder / name), f"{IN_CONTAINER}/lib/{name}") for name in DELIVERED]
    mounts += [Mount(path, f"{IN_CONTAINER}/driver/{SHIMS[name]}") for name, path in ready.driver.items()]
    return [*mounts, Mount(str(folder / PRELOAD), _IN_EVERY_PROGRAM)]
