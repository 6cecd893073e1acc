"""Many small requests to the API server through one ``kubectl proxy``, which listens on a socket in a temporary folder.

Starting a kubectl for each of hundreds of nodes would cost more than the requests. Other users cannot open the socket: the
folder belongs to the user and is removed at the end.
"""

import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from gpushare.inspect.errors import KubectlFailed, KubectlMissing

#: Timeouts: until kubectl listens, and of one request.
_START_TIMEOUT_S: Final = 10.0
_REQUEST_TIMEOUT_S: Final = 5.0
_MAX_PARALLEL: Final = 16
_MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
_MAX_COMPLAINT_BYTES: Final = 1 << 12
_POLL_S: Final = 0.01
#: Longest path of the temporary folder that leaves room for the socket's name: paths of sockets are limited.
_LONGEST_FOLDER: Final = 70


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_REQUEST_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_REQUEST_TIMEOUT_S)
        self.sock.connect(self._path)


class Proxied:
    """A running ``kubectl proxy``, as a context that stops it. Raises ``KubectlMissing`` and ``KubectlFailed``."""

    def __init__(self, program: str, flags: Sequence[str]) -> None:
        self._folder = tempfile.mkdtemp(prefix="cgpu-", dir=_folder())
        self._socket = os.path.join(self._folder, "kubectl.sock")
        flags = [flag for flag in flags if not flag.startswith("--request-timeout=")]
        try:
            self._process = subprocess.Popen(
                # The path of an API server behind a gateway is kept only by request.
                [program, "proxy", f"--unix-socket={self._socket}", "--append-server-path", *flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise KubectlMissing(program, f"cannot be started ({error.strerror})") from None

    def __enter__(self) -> "Proxied":
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                message = b""
                if self._process.poll() is not None and self._process.stderr is not None:
                    message = self._process.stderr.read()
                self.end()
                raise KubectlFailed("proxy", message.decode(errors="replace").strip() or "it does not listen")
            time.sleep(_POLL_S)
        return self

    def _listens(self) -> bool:
        # The socket's file exists a moment before kubectl listens on it.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_REQUEST_TIMEOUT_S)
            try:
                probe.connect(self._socket)
            except OSError:
                return False
        return True

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop kubectl and remove the folder; idempotent."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def outcomes(self, paths: Sequence[str], headers: Mapping[str, str]) -> "list[bytes | KubectlFailed]":
        """The answer to a GET of each path, or the error, worded as kubectl would; requests run in parallel."""
        if not paths:
            return []
        with ThreadPoolExecutor(max_workers=min(_MAX_PARALLEL, len(paths))) as pool:
            return list(pool.map(lambda path: self._outcome("GET", path, None, headers), paths))

    def create(self, path: str, body: bytes) -> "bytes | KubectlFailed":
        """The API server's answer to a POST of JSON."""
        return self._outcome("POST", path, body, {"Content-Type": "application/json"})

    def _outcome(
        self, method: str, path: str, body: "bytes | None", headers: Mapping[str, str]
    ) -> "bytes | KubectlFailed":
        connection = _Connection(self._socket)
        try:
            connection.request(method, path, body, headers={"Accept": "*/*", **headers})
            answer = connection.getresponse()
            text = answer.read(_MAX_ANSWER_BYTES + 1)
            if len(text) > _MAX_ANSWER_BYTES:
                return KubectlFailed(path, f"the answer has more than {_MAX_ANSWER_BYTES >> 20} MiB")
            if answer.status in (200, 201):
                return text
            return KubectlFailed(path, _complaint(answer.reason, text))
        except TimeoutError:
            return KubectlFailed(path, f"no answer within {_REQUEST_TIMEOUT_S:.0f} s")
        except (OSError, http.client.HTTPException) as error:
            return KubectlFailed(path, str(error) or type(error).__name__)
        finally:
            connection.close()


def _complaint(reason: str, body: bytes) -> str:
    """The error in kubectl's form. The API server answers with a ``Status``, the target behind its proxy with text."""
    try:
        status = json.loads(body)
        reason, message = status["reason"], status["message"]
    except (ValueError, TypeError, KeyError):
        reason, message = (
            reason.replace(" ", ""),
            body[:_MAX_COMPLAINT_BYTES].decode(errors="replace").strip(),
        )
    return f"Error from server ({reason}): {message}"


def _folder() -> "str | None":
    """Parent of the temporary folder: ``/tmp`` where the usual one is too long for a socket's path, else ``None``."""
    return "/tmp" if len(tempfile.gettempdir()) > _LONGEST_FOLDER else None  # noqa: S108 (mkdtemp makes it the user's alone)
