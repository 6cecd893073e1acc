"""Types a page's commands, and compares their output with that on the page."""

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

from documentation.blocks import Block, Command, Page, fill
from documentation.expecting import matches

PROJECT: Final = Path(__file__).resolve().parents[2]

#: Read-only commands: they are repeated until their output is what the page shows. Of a Service's pods kubectl forwards to
#: the one that has been ready for longest, even if it is about to end.
_LOOKS: Final = re.compile(
    r"^(kubectl( -n \S+| --namespace[= ]\S+)? (get|describe|inspect|logs|exec|events|top|auth|port-forward)\b"
    r"|gpushare doctor\b|curl |cat |grep )"
)
#: Commands that run in the checkout, with or without variables before them.
_MAKE: Final = re.compile(r"(\w+=\S* )*make ")
#: Bounds for a busy machine. A playground on the real control plane kills each of its parts 5 s after the
#: request to end, one kind after the other.
_COMMAND_S: Final = 400.0
_INTERRUPTED_S: Final = 90.0
_STATE_S: Final = 120.0
_AGAIN_S: Final = 0.2

Words = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Typist:
    """Types into ``folder`` (``make`` into the checkout's), with ``environment``; ``command_s`` bounds each command.

    ``state_s``: for how long a read-only command is repeated.
    """

    environment: Mapping[str, str]
    folder: Path
    command_s: float = _COMMAND_S
    state_s: float = _STATE_S

    async def follow(
        self, page: Page, block: Block, words: Words = (), more: Mapping[str, str] | None = None
    ) -> list[str]:
        """Type a block and the commands before it; returns a text per problem. ``words`` override the page's, ``more`` the environment."""
        filled = (*words, *block.words)
        for text in block.first:
            code, out = await self.run(fill(text, filled), more)
            assert code == 0, f"{page.name}:{block.line}: before it $ {text}\n{out}"
        typed = [await self.type(page, command, filled, more) for command in page.commands(block)]
        return [one for one in typed if one]

    async def type(
        self, page: Page, command: Command, words: Words, more: Mapping[str, str] | None = None
    ) -> str:
        """Type a command as a reader does; returns the problem if its output differs from the page's, else an empty text."""
        text = fill(command.text, words)
        expected = tuple(self.substituted(line, words) for line in command.expected)
        deadline_s = time.monotonic() + self.state_s
        while True:
            code, out = await self.run(text, more, command.until)
            good = matches(expected, out) if expected else command.code is not None or code == 0
            good = good and command.code in (None, code)
            if good or not _LOOKS.match(text) or time.monotonic() > deadline_s:
                break
            await _pause()
        code_note = "" if command.code is None else f"(exit code {command.code}, not {code})"
        shown = "\n".join(expected) or code_note or f"(exit code 0, not {code})"
        wrong = f"{page.name}:{command.line}: $ {text}\n--- the page shows {code_note}\n{shown}\n--- came out\n{out}"
        return "" if good else wrong

    def substituted(self, text: str, words: Words) -> str:
        """A text with the values of its words in capitals and of variables, as a shell prints it."""
        return fill(
            text, tuple((name, Template(value).safe_substitute(self.environment)) for name, value in words)
        )

    @contextlib.asynccontextmanager
    async def beside(self, text: str) -> AsyncIterator[None]:
        """Run a command in the background as long as the context lasts, like a reader's own server; it may exit earlier."""
        process = await asyncio.create_subprocess_exec(
            *("bash", "-o", "pipefail", "-c", text),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(self.environment),
            cwd=self.folder,
            start_new_session=True,
        )
        try:
            yield
        finally:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, sign)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _INTERRUPTED_S)
                    break

    async def run(self, text: str, more: Mapping[str, str] | None = None, until: str = "") -> tuple[int, str]:
        """Exit code, and stdout and stderr as a terminal shows them. A command that runs on is interrupted at the text ``until``, and its code is 0 then."""
        process = await asyncio.create_subprocess_exec(
            # A shell that started the tests in the background may ignore interrupts, and that is inherited.
            *("env", "--default-signal=INT", "bash", "-o", "pipefail", "-c", text),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**self.environment, **(more or {})},
            cwd=PROJECT if _MAKE.match(text) else self.folder,
            start_new_session=True,
        )
        assert process.stdout
        out = b""
        try:
            async with asyncio.timeout(self.command_s) as bound:
                while read := await process.stdout.read(65536):
                    out += read
                    if until and until.encode() in out:
                        os.killpg(process.pid, signal.SIGINT)
                        bound.reschedule(asyncio.get_running_loop().time() + _INTERRUPTED_S)
                        out += await process.stdout.read()
                        await process.wait()
                        return 0, out.decode(errors="replace")
                code = await process.wait()
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            return -1, f"{out.decode(errors='replace')}\n(no end after {self.command_s:.0f} s)"
        if until:
            return -1, f"{out.decode(errors='replace')}\n(it ended, without the text {until!r})"
        return code, out.decode(errors="replace")


async def _pause() -> None:
    """Changes of a command's output are not announced: it is repeated a moment later."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), _AGAIN_S)
