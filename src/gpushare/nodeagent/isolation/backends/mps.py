"""NVIDIA's Multi-Process Service: one control daemon a GPU, each in its own directories (mode ``mps``).

The daemon and the server that it starts are the driver's own programs; they run with the host's root as theirs. A
container finds the daemon by ``CUDA_MPS_PIPE_DIRECTORY``, and the server enforces ``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT``
and ``CUDA_MPS_ACTIVE_THREAD_PERCENTAGE``. Those are environment variables of the container: only the watchdog notices a program
that changes them.
"""

import asyncio
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from gpushare.kube.clock import Clock
from gpushare.nodeagent.allocate.container_response import Grant, Injection, Mount
from gpushare.nodeagent.errors import AllocationRefused
from gpushare.nodeagent.isolation.backends.daemons import (
    NOTE,
    SHARED_MEMORY,
    Daemon,
    end,
    is_running,
    outlives_us,
)
from gpushare.nodeagent.isolation.backends.subprocesses import STEADY_S, Child
from gpushare.nodeagent.isolation.storage.files import IN_CONTAINER

CONTROL: Final = "nvidia-cuda-mps-control"
#: After so many failed starts and no success a node counts as unable to run daemons.
FAILED_STARTS: Final = 3
NOT_LOOKED: Final = f"{CONTROL} has not been searched for yet"
_FOLDERS: Final = (
    "usr/bin",
    "bin",
    "usr/local/nvidia/bin",
    "opt/nvidia/bin",
    "home/kubernetes/bin/nvidia/bin",
)
_PIPE: Final = f"{IN_CONTAINER}/mps"


class Mps:
    """The backend: a daemon per GPU, which outlives ``run`` if possible. ``root`` is the host's root as seen here, ``folder`` the
    daemons' directory (the same path on the host)."""

    in_place = False
    may_burst = False

    def __init__(
        self,
        root: Path,
        folder: Path,
        *,
        clock: Clock,
        on_change: Callable[[], None],
        steady_s: float = STEADY_S,
        cgroups: Path | None = None,
        shared: Path = SHARED_MEMORY,
    ) -> None:
        self._root = root
        self._shared = shared
        self.folder = folder
        self._clock = clock
        self._on_change = on_change
        self._steady_s = steady_s
        self._cgroups = cgroups
        self._children: dict[str, tuple[Child | Daemon, asyncio.Task[None]]] = {}
        self._wanted: tuple[str, ...] = ()
        self._acts = False
        self._woken = asyncio.Event()
        self._has_run = False
        self.trouble = NOT_LOOKED
        """Why no daemon can run, empty when they can."""

    def want(self, gpus: Sequence[str], *, acts: bool = True) -> None:
        """Run daemons for these GPUs (UUIDs) only. Daemons of others are stopped only if this agent ``acts``."""
        if (tuple(gpus), acts) != (self._wanted, self._acts):
            self._wanted, self._acts = tuple(gpus), acts
            self._woken.set()

    @property
    def unable(self) -> str:
        """Why this node cannot run daemons at all, as far as is known; empty once one has run."""
        children = [kept[0] for kept in self._children.values()]
        self._has_run = self._has_run or any(child.ran for child in children)
        if self._has_run:
            return ""
        if self.trouble:
            return self.trouble if self.trouble != NOT_LOOKED else ""
        ends = [child.fault for child in children if child.starts >= FAILED_STARTS]
        return ends[0] if ends and len(ends) == len(children) else ""

    def lacking(self) -> dict[str, str]:
        """GPUs without a running daemon, by UUID, and why."""
        if self.trouble:
            return dict.fromkeys(self._wanted, self.trouble)
        faults = {gpu: self._fault(gpu) for gpu in self._wanted}
        return {gpu: fault for gpu, fault in faults.items() if fault}

    def _fault(self, gpu: str) -> str:
        kept = self._children.get(gpu)
        return f"{CONTROL} has not been started yet" if kept is None else kept[0].fault

    async def run(self, look_s: float) -> None:
        """Run the daemons until cancelled; search for a missing program every ``look_s`` seconds."""
        try:
            while True:
                self._woken.clear()
                await self._follow()
                try:
                    async with asyncio.timeout(look_s if self._wanted and self.trouble else None):
                        await self._woken.wait()
                except TimeoutError:
                    continue
        finally:
            await self._let_go(list(self._children))

    async def _follow(self) -> None:
        program = self._program()
        trouble = (
            ""
            if program or not self._wanted
            else (
                f"{CONTROL} is not on the node (below {self._root}); it comes with the driver's compute utilities"
            )
        )
        await self._let_go([one for one in self._children if one not in self._wanted])
        if self._acts:
            await self._end_others()
        if program and not trouble:
            for gpu in self._wanted:
                if gpu not in self._children:
                    trouble = trouble or self._begin(gpu, program)
        if trouble != self.trouble:
            self.trouble = trouble
            self._on_change()

    def _begin(self, gpu: str, program: str) -> str:
        """Start a daemon; returns why its directories cannot be created, empty on success."""
        pipe, log = self._pipe(gpu), self.folder / gpu / "log"
        try:
            for folder in (pipe, log):
                folder.mkdir(parents=True, exist_ok=True)
            # Containers of any user connect to it, and the server that it starts runs as the client's user. Sticky: only root can
            # replace files of others.
            pipe.chmod(0o1777)
        except OSError as error:
            return f"{self.folder} cannot be written: {error.strerror or error}"
        env = {
            "PATH": os.defpath,
            "CUDA_VISIBLE_DEVICES": gpu,
            "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(log),
        }
        # In the foreground: a detached daemon could be neither watched nor stopped.
        argv = (program, "-f")
        child: Child | Daemon
        if outlives_us():
            child = Daemon(
                argv,
                env=env,
                folder=self.folder / gpu,
                clock=self._clock,
                on_change=self._on_change,
                root=self._root,
                cgroups=self._cgroups,
                shared=self._shared,
                steady_s=self._steady_s,
            )
        else:
            child = Child(
                argv,
                env=env,
                clock=self._clock,
                on_change=self._on_change,
                root=self._root,
                steady_s=self._steady_s,
            )
        self._children[gpu] = (child, asyncio.create_task(child.run()))
        return ""

    async def _end_others(self) -> None:
        """Stop the daemons that are not wanted, also those of a previous agent."""
        for note in await asyncio.to_thread(lambda: list(self.folder.glob(f"*/{NOTE}"))):
            if note.parent.name not in self._wanted:
                await end(note.parent)

    def clear(self) -> None:
        """Remove what is left of daemons, unless one runs: pods may be using it."""
        if not any(is_running(note.parent) for note in self.folder.glob(f"*/{NOTE}")):
            shutil.rmtree(self.folder, ignore_errors=True)

    async def _let_go(self, gpus: Sequence[str]) -> None:
        """Stop watching these; daemons that outlive this process continue."""
        tasks = [self._children[gpu][1] for gpu in gpus]
        for task in tasks:
            # Cancelled twice it would not stop what it started.
            if not task.cancelling():
                task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for gpu in gpus:
            del self._children[gpu]

    def _program(self) -> str:
        for folder in _FOLDERS:
            if os.access(self._root / folder / CONTROL, os.X_OK):
                return f"/{folder}/{CONTROL}"
        return ""

    def _pipe(self, gpu: str) -> Path:
        return self.folder / gpu / "pipe"

    async def inject(self, grant: Grant, *, in_place: bool) -> Injection:
        """The daemon's pipe and the share; raises ``AllocationRefused``."""
        if len(grant.shares) > 1:
            raise AllocationRefused(
                "",
                "under MPS a container can use only one GPU, because each GPU has its own daemon",
                (grant.uid,),
            )
        (share,) = grant.shares
        why = self.lacking().get(share.uuid)
        if why:
            raise AllocationRefused("", f"GPU {share.label} cannot be shared by MPS: {why}", (grant.uid,))
        envs = {
            "CUDA_MPS_PIPE_DIRECTORY": _PIPE,
            # The daemon has one GPU, as number 0.
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={share.mib}M",
        }
        if share.core_percent:
            envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(share.core_percent)
        child = self._children[share.uuid][0]
        shared = child.shared_memory() if isinstance(child, Daemon) else str(self._shared)
        mounts = (
            Mount(str(self._pipe(share.uuid)), _PIPE, read_only=False),
            # Client and server also communicate through it.
            Mount(shared, str(SHARED_MEMORY), read_only=False),
        )
        return Injection(envs=envs, mounts=mounts)
