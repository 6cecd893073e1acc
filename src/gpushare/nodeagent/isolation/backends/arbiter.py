"""The arbiter of GPU time as a child process of the node agent."""

import asyncio
import os
from collections.abc import Callable
from typing import Final

from gpushare.kube.clock import Clock
from gpushare.nodeagent.isolation.backends.subprocesses import Child
from gpushare.nodeagent.isolation.options import IsolationOptions

ARBITER: Final = "arbiter"


class Arbiter:
    """``on_change`` is called when ``fault`` changes."""

    def __init__(self, options: IsolationOptions, *, clock: Clock, on_change: Callable[[], None]) -> None:
        self._options = options
        self._clock = clock
        self._on_change = on_change
        self._child: tuple[Child, asyncio.Task[None]] | None = None
        self._missing = ""

    @property
    def fault(self) -> str:
        """Why it does not run although it should; empty otherwise."""
        return self._child[0].fault if self._child is not None else self._missing

    def keep(self, tasks: asyncio.TaskGroup, *, wanted: bool) -> None:
        """Start or stop it, as a task of ``tasks``."""
        program = self._options.library_folder / ARBITER
        there = wanted and os.access(program, os.X_OK)
        if there and self._child is None:
            child = Child(
                (str(program), "--containers", str(self._options.folder)),
                env={"PATH": os.defpath},
                clock=self._clock,
                on_change=self._on_change,
            )
            self._child = (child, tasks.create_task(child.run()))
        elif not there and self._child is not None:
            self._child[1].cancel()
            self._child = None
        self._missing = (
            f"{program} is missing, so each container limits its own compute" if wanted and not there else ""
        )
