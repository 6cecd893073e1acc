"""Further commands in a container, over a WebSocket as ``kubectl exec`` speaks it.

Subprotocol ``v5.channel.k8s.io`` (or v4): binary messages whose first byte is a channel: 0 standard input,
1 standard output, 2 standard error, 3 the end as a ``Status`` object, 4 the terminal's new size, 255 (v5) a
channel that is closed. A command ends with its connection, with its container and with the kubelet.
"""

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import WSMsgType, web

from gpushare_playground.kubelet.runtime.containers import SHIM, Launch

PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
_PIECE_BYTES: Final = 32 * 1024
_END_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams that the client wants to connect."""

    stdin: bool = False
    stdout: bool = True
    stderr: bool = True
    tty: bool = False


def exec_arguments(launch: Launch, command: Sequence[str], *, tty: bool) -> list[str]:
    """Arguments of the shim that start ``command`` in a container's environment and folder."""
    spec = {"argv": list(command), "env": dict(launch.env), "cwd": str(launch.cwd), "tty": tty}
    return ["--beside", json.dumps(spec)]


def status_of(code: int) -> dict[str, Any]:
    """The ``Status`` that reports to a client how its command ended."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


class ExecSession:
    """One command and its connection."""

    def __init__(self, socket: web.WebSocketResponse, streams: Streams) -> None:
        self._socket = socket
        self._streams = streams
        self._process: asyncio.subprocess.Process | None = None
        self._killed = False
        self._input: int | asyncio.StreamWriter | None = None

    async def run(self, launch: Launch, command: Sequence[str]) -> None:
        """Run ``command`` to its end, or to that of the connection."""
        arguments = [*SHIM, *exec_arguments(launch, command, tty=self._streams.tty)]
        if self._streams.tty:
            pumps = await self._start_on_terminal(arguments)
        else:
            pumps = await self._start_on_pipes(arguments)
        process = self._process
        assert process is not None
        if self._killed:  # its container ended while it was being started
            self.kill()
        output = [asyncio.create_task(pump) for pump in pumps]
        listening = asyncio.create_task(self._listen())
        ending = asyncio.create_task(process.wait())
        try:
            await asyncio.wait({listening, ending}, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                # The command's last output is still on its way; a child that keeps the pipe open does not delay us.
                await asyncio.wait(output, timeout=_END_TIMEOUT_S)
                code = ending.result()
                await self._send(ERROR, json.dumps(status_of(128 - code if code < 0 else code)).encode())
        finally:
            self.kill()
            for task in (listening, *output):
                task.cancel()
            await asyncio.gather(listening, *output, return_exceptions=True)
            await ending
            self._close_input()

    async def refuse(self, problem: str) -> None:
        """Report to the client that its command cannot run."""
        status = {
            "metadata": {},
            "status": "Failure",
            "reason": "InternalError",
            "message": problem,
            "code": 500,
        }
        await self._send(ERROR, json.dumps(status).encode())

    @property
    def pid(self) -> int:
        """The command's first process, 0 before it starts."""
        process = self._process
        return 0 if process is None or process.returncode is not None else process.pid

    def kill(self) -> None:
        """End the command and everything it started in its session, also while it is only being started."""
        self._killed = True
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    async def _start_on_pipes(self, arguments: list[str]) -> list[Any]:
        wanted = self._streams
        process = self._process = await asyncio.create_subprocess_exec(
            *arguments,
            stdin=subprocess.PIPE if wanted.stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE if wanted.stdout else subprocess.DEVNULL,
            stderr=subprocess.PIPE if wanted.stderr else subprocess.DEVNULL,
            start_new_session=True,
        )
        self._input = process.stdin
        pairs = ((process.stdout, STDOUT), (process.stderr, STDERR))
        return [self._pump(stream, channel) for stream, channel in pairs if stream is not None]

    async def _start_on_terminal(self, arguments: list[str]) -> list[Any]:
        terminal, command_side = pty.openpty()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=command_side,
                stdout=command_side,
                stderr=command_side,
                start_new_session=True,
            )
        finally:
            os.close(command_side)
        os.set_blocking(terminal, False)
        self._input = terminal
        return [self._pump_terminal(terminal)]

    async def _pump(self, stream: asyncio.StreamReader, channel: int) -> None:
        while piece := await stream.read(_PIECE_BYTES):
            await self._send(channel, piece)

    async def _pump_terminal(self, fd: int) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(fd, readable.set)
        try:
            while True:
                await readable.wait()
                try:
                    piece = os.read(fd, _PIECE_BYTES)
                except BlockingIOError:
                    readable.clear()
                    continue
                except OSError:
                    return  # the other side of a terminal is gone: EIO
                if not piece:
                    return
                await self._send(STDOUT, piece)
        finally:
            loop.remove_reader(fd)

    async def _send(self, channel: int, payload: bytes) -> None:
        with suppress(ConnectionError, RuntimeError):
            await self._socket.send_bytes(bytes([channel]) + payload)

    async def _listen(self) -> None:
        """Read what the client sends; returns when the connection ends."""
        async for message in self._socket:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            channel, payload = message.data[0], message.data[1:]
            if channel == STDIN and payload:
                await self._feed(payload)
            elif channel == RESIZE:
                self._resize(payload)
            elif channel == CLOSE and payload[:1] == bytes([STDIN]):
                self._end_input()

    async def _feed(self, payload: bytes) -> None:
        with suppress(OSError):
            if isinstance(self._input, asyncio.StreamWriter):
                self._input.write(payload)
                await self._input.drain()
            elif self._input is not None:
                while payload:
                    try:
                        payload = payload[os.write(self._input, payload) :]
                    except BlockingIOError:
                        await asyncio.sleep(0.01)

    def _end_input(self) -> None:
        if isinstance(self._input, asyncio.StreamWriter):
            self._input.close()
        elif self._input is not None:
            with suppress(OSError):
                os.write(self._input, b"\x04")

    def _close_input(self) -> None:
        if isinstance(self._input, asyncio.StreamWriter):
            self._input.close()
        elif self._input is not None:
            os.close(self._input)
        self._input = None

    def _resize(self, payload: bytes) -> None:
        if not isinstance(self._input, int):
            return
        with suppress(ValueError, KeyError, TypeError, OSError, struct.error):
            size = json.loads(payload)
            window = struct.pack("HHHH", int(size["Height"]), int(size["Width"]), 0, 0)
            fcntl.ioctl(self._input, termios.TIOCSWINSZ, window)
