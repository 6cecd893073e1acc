"""Runs several ``kubectl get --raw`` at a time and returns their output.

One thread drains all pipes, as a kubectl blocks on a full pipe. Each round has a deadline, at whose end every kubectl is killed.
"""

import os
import re
import selectors
import subprocess
import time
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Final

from gpushare.inspect.errors import KubectlFailed, KubectlMissing

if TYPE_CHECKING:
    from gpushare.inspect.sources.kubectl_proxy import Proxied
    from gpushare.inspect.sources.reader_token import Reader

#: Deadline of a round of kubectls; --request-timeout bounds the API server's time.
ROUND_TIMEOUT_S: Final = 60.0
_REQUEST_TIMEOUT_S: Final = 30
_CHUNK: Final = 1 << 20
#: The address that kubectl falls back to without a kubeconfig.
_FALLBACK_ADDRESS: Final = "localhost:8080"
_MAX_COMPLAINT_BYTES: Final = 1 << 16


class _Call:
    def __init__(self, path: str, process: subprocess.Popen[bytes]) -> None:
        self.path = path
        self.process = process
        self.output = bytearray()
        self.complaint = bytearray()


class Round:
    """Several kubectls, started together.

    ``finish`` waits for all of them. Leaving the context, or ``end``, kills those that are still running.
    """

    def __init__(self, program: str, flags: Sequence[str], paths: Sequence[str], timeout_s: float | None):
        self._program = program
        self._timeout_s = timeout_s
        self._calls: list[_Call] = []
        try:
            for path in paths:
                self._calls.append(self._start(path, flags))
        except BaseException:
            self.end()
            raise

    def finish(self) -> list[bytearray]:
        """The stdout of each kubectl, in the order of the paths.

        Raises ``KubectlFailed`` with kubectl's message when one of them fails or does not finish in time.
        """
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        try:
            self._drain(deadline)
            for call in self._calls:
                self._wait(call, deadline)
                if call.process.returncode:
                    raise KubectlFailed(call.path, _complaint(call))
        finally:
            self.end()
        return [call.output for call in self._calls]

    def outcomes(self) -> "list[bytes | KubectlFailed]":
        """As ``finish``, but returns the error of a kubectl that failed in place of its output.

        When a kubectl does not finish in time, the whole round fails.
        """
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        try:
            self._drain(deadline)
            for call in self._calls:
                self._wait(call, deadline)
        except KubectlFailed as error:
            return [error for _ in self._calls]
        finally:
            self.end()
        return [
            KubectlFailed(call.path, _complaint(call)) if call.process.returncode else bytes(call.output)
            for call in self._calls
        ]

    def __enter__(self) -> "Round":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _start(self, path: str, flags: Sequence[str]) -> _Call:
        command = [self._program, "get", "--raw", path, *flags]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pipesize=_CHUNK,
            )
        except FileNotFoundError:
            raise KubectlMissing(
                self._program,
                "not found; install kubectl, put it on PATH, or name it in the variable KUBECTL",
            ) from None
        except OSError as error:
            raise KubectlMissing(
                self._program,
                f"cannot be started ({error.strerror}); name a kubectl that can in the variable KUBECTL",
            ) from None
        return _Call(path, process)

    def _drain(self, deadline: float | None) -> None:
        with selectors.DefaultSelector() as selector:
            for call in self._calls:
                for stream, collected in (
                    (call.process.stdout, call.output),
                    (call.process.stderr, call.complaint),
                ):
                    assert stream is not None  # both are pipes
                    selector.register(stream, selectors.EVENT_READ, (call, collected))
            while selector.get_map():
                ready = selector.select(_remaining_s(deadline))
                if not ready:
                    unfinished = {key.data[0] for key in selector.get_map().values()}
                    raise self._too_late(next(call for call in self._calls if call in unfinished))
                for key, _ in ready:
                    call, collected = key.data
                    chunk = os.read(key.fd, _CHUNK)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    elif collected is call.output or len(collected) < _MAX_COMPLAINT_BYTES:
                        collected += chunk

    def _wait(self, call: _Call, deadline: float | None) -> None:
        try:
            call.process.wait(_remaining_s(deadline))
        except subprocess.TimeoutExpired:
            raise self._too_late(call) from None

    def _too_late(self, call: _Call) -> KubectlFailed:
        message = call.complaint.decode(errors="replace").strip()
        return KubectlFailed(
            call.path,
            f"no answer within {self._timeout_s:.0f} s; "
            + (
                f"its message: {message}"
                if message
                else f"see whether {self._program} get --raw works by hand"
            ),
        )

    def end(self) -> None:
        """Kill the kubectls that are still running, and close the pipes; idempotent."""
        for call in self._calls:
            if call.process.poll() is None:
                call.process.kill()
            call.process.wait()
            _close(call.process.stdout)
            _close(call.process.stderr)


class Kubectl:
    """Calls kubectl: the program, and the flags of every call."""

    def __init__(self, flags: Sequence[str] = (), program: str | None = None) -> None:
        self._program = program or os.environ.get("KUBECTL") or "kubectl"
        limit = next((flag for flag in flags if flag.startswith("--request-timeout=")), None)
        if limit is None:
            flags = (*flags, f"--request-timeout={_REQUEST_TIMEOUT_S}s")
        self._flags = tuple(flags)
        self._timeout_s = ROUND_TIMEOUT_S if limit is None else _round_timeout_s(limit.partition("=")[2])

    def start(self, *paths: str) -> Round:
        """Start a ``kubectl get --raw`` for each of the paths; raises ``KubectlMissing``."""
        return Round(self._program, self._flags, paths, self._timeout_s)

    def proxied(self) -> "Proxied":
        """A ``kubectl proxy`` for many requests, as a context; raises ``KubectlMissing``."""
        from gpushare.inspect.sources.kubectl_proxy import Proxied

        return Proxied(self._program, self._flags)

    def reader(self, namespace: str) -> "Reader":
        """A reader of pages of the scheduler in ``namespace`` and of node agents, as a context; raises ``KubectlMissing``."""
        from gpushare.inspect.sources.reader_token import Reader

        return Reader(self.proxied(), namespace)


def _round_timeout_s(limit: str) -> float | None:
    """The deadline of a round for a user's --request-timeout; ``None`` for 0, which means no limit."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|$)", limit, re.ASCII)
    if not parts or "".join(number + unit for number, unit in parts) != limit:
        return ROUND_TIMEOUT_S  # kubectl itself rejects it
    seconds = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
    limit_s = sum(float(number) * seconds[unit] for number, unit in parts)
    return limit_s + _REQUEST_TIMEOUT_S if limit_s else None


def _remaining_s(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


def _complaint(call: _Call) -> str:
    message = call.complaint.decode(errors="replace").strip()
    if message:
        return message + _without_kubeconfig(message)
    status = call.process.returncode
    ending = f"signal {-status}" if status < 0 else f"exit status {status}"
    return f"it ended with {ending} and no message"


def _without_kubeconfig(message: str) -> str:
    """A hint that $KUBECONFIG names no existing file, where kubectl therefore used its fallback address; else empty."""
    named = [name for name in os.environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    if _FALLBACK_ADDRESS not in message or not named or any(map(os.path.exists, named)):
        return ""
    return f"; $KUBECONFIG names no existing file ({', '.join(named)}): a playground deletes its kubeconfig when it stops, and the next one prints a new path"


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None:
        stream.close()
