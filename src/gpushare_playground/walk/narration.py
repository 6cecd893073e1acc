"""The walk's output, commands and expectations: every expectation is checked and counted."""

import asyncio
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TextIO

_COMMAND_S: Final = 60.0
_STATE_S: Final = 60.0
_POLL_S: Final = 0.1
_BOLD, _DIM, _GREEN, _RED, _PLAIN = "\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[0m"


class Story:
    """Runs commands as a reader would, shows their output, and compares it with the expected one."""

    def __init__(self, environment: Mapping[str, str], folder: Path, out: TextIO = sys.stdout) -> None:
        self._environment = os.environ | dict(environment)
        self._folder = folder
        self._out = out
        self._coloured = out.isatty() and "NO_COLOR" not in os.environ
        self.held = 0
        self.broken: list[str] = []

    # --- output ---------------------------------------------------------------------------------

    def chapter(self, title: str) -> None:
        """Begin a part of the walk."""
        self._print(f"\n{self._paint(_BOLD, f'── {title} ' + '─' * max(3, 86 - len(title)))}")

    def notice(self, *lines: str) -> None:
        """Print what to look at."""
        for line in lines:
            self._print(f"   {line}")

    def expect(self, what: str, expected: object, actual: object, *, within: bool = False) -> None:
        """Count an expectation: ``actual`` equals ``expected``, or with ``within`` contains it."""
        holds = str(expected) in str(actual) if within else expected == actual
        if holds:
            self.held += 1
            self._print(f"   {self._paint(_GREEN, '✓')} {what}")
            return
        self.broken.append(what)
        self._print(f"   {self._paint(_RED, '✗')} {what}\n     expected: {expected}\n     came out: {actual}")

    def summary(self) -> int:
        """Print the result; returns the exit code."""
        if not self.broken:
            self._print(f"\n{self._paint(_GREEN, f'All {self.held} expectations held.')}")
            return 0
        self._print(
            f"\n{self._paint(_RED, f'{len(self.broken)} of {self.held + len(self.broken)} expectations broke:')}"
        )
        for what in self.broken:
            self._print(f"  ✗ {what}")
        return 1

    # --- commands -------------------------------------------------------------------------------

    async def type(self, command: str, *, code: int | None = 0, shown: bool = True) -> str:
        """Run ``command`` (no shell) and show it with its output; returns stdout and stderr together.

        Another exit code than ``code`` counts as an unmet expectation; ``None`` accepts any.
        """
        if shown:
            self._print(f" {self._paint(_BOLD, '$ ' + command)}")
        exit_code, text = await self._run(command)
        if shown:
            for line in text.splitlines():
                self._print(f"   {self._paint(_DIM, '│')} {line}")
        if code is not None and exit_code != code:
            self.expect(f"`{command}` ends with exit code {code}", code, f"{exit_code}\n{text}")
        return text

    async def type_until(self, command: str, *wanted: str) -> str:
        """Repeat ``command`` until its output contains all of ``wanted``, then show it once.

        Ends after some seconds with the last output.
        """
        return await self.type_while(command, lambda text: not all(part in text for part in wanted))

    async def type_while(self, command: str, waits: Callable[[str], bool]) -> str:
        """Repeat ``command`` while ``waits`` is true of its output, then show it once.

        Ends after some seconds with the last output.
        """
        deadline_s = asyncio.get_running_loop().time() + _STATE_S
        while True:
            exit_code, text = await self._run(command)
            if exit_code == 0 and not waits(text):
                break
            if asyncio.get_running_loop().time() > deadline_s:
                break
            await asyncio.sleep(_POLL_S)
        self._print(f" {self._paint(_BOLD, '$ ' + command)}")
        for line in text.splitlines():
            self._print(f"   {self._paint(_DIM, '│')} {line}")
        return text

    async def _run(self, command: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
            cwd=self._folder,
        )
        try:
            out, _ = await asyncio.wait_for(process.communicate(), _COMMAND_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            return -1, f"(no end after {_COMMAND_S:.0f} s)"
        return process.returncode or 0, out.decode(errors="replace").rstrip()

    def _print(self, line: str) -> None:
        print(line, file=self._out, flush=True)

    def _paint(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._coloured else text
