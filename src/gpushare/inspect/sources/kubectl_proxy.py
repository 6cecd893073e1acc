"""Many small questions to the API server through one ``kubectl proxy``, which listens on a socket in a folder of our own.

A kubectl for each of hundreds of nodes would cost more than what it asks. Nobody else can open the socket: the folder is the
user's alone, and gone with us.
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

#: Seconds: until kubectl listens, and for one answer.
_START_S: Final = 10.0
_ANSWER_S: Final = 5.0
_AT_ONCE: Final = 16
_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_COMPLAINT: Final = 1 << 12
_LOOK_S: Final = 0.01
#: Characters of a socket's path, less what follows the folder's.
_LONGEST_FOLDER: Final = 70


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_ANSWER_S)
        self.sock.connect(self._path)


class Proxied:
    """A running ``kubectl proxy``; a context, at whose end it is gone. Raises ``KubectlMissing`` and ``KubectlFailed``."""

    def __init__(self, program: str, flags: Sequence[str]) -> None:
        self._folder = tempfile.mkdtemp(prefix="cgpu-", dir=_folder())
        self._socket = os.path.join(self._folder, "kubectl.sock")
        flags = [one for one in flags if not one.startswith("--request-timeout=")]
        try:
            self._process = subprocess.Popen(
                [program, "proxy", f"--unix-socket={self._socket}", *flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise KubectlMissing(program, f"cannot be started ({error.strerror})") from None

    def __enter__(self) -> "Proxied":
        deadline_s = time.monotonic() + _START_S
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                said = b""
                if self._process.poll() is not None and self._process.stderr is not None:
                    said = self._process.stderr.read()
                self.end()
                raise KubectlFailed("proxy", said.decode(errors="replace").strip() or "it does not listen")
            time.sleep(_LOOK_S)
        return self

    def _listens(self) -> bool:
        # The socket has its name a moment before anybody listens at it.
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
            tried.settimeout(_ANSWER_S)
            try:
                tried.connect(self._socket)
            except OSError:
                return False
        return True

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop it and take its folder away; once is enough, more is no harm."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def answers(self, paths: Sequence[str]) -> "list[bytes | None]":
        """What the API server answers to a GET of each path, ``None`` where it refuses or none comes in time; some at once."""
        return [one if isinstance(one, bytes) else None for one in self.outcomes(paths, {})]

    def outcomes(self, paths: Sequence[str], headers: Mapping[str, str]) -> "list[bytes | KubectlFailed]":
        """The same with headers, and an error in place of ``None``, in the words in which kubectl would complain."""
        if not paths:
            return []
        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(paths))) as pool:
            return list(pool.map(lambda path: self._outcome("GET", path, None, headers), paths))

    def create(self, path: str, body: bytes) -> "bytes | KubectlFailed":
        """What the API server answers to a POST of JSON."""
        return self._outcome("POST", path, body, {"Content-Type": "application/json"})

    def _outcome(
        self, method: str, path: str, body: "bytes | None", headers: Mapping[str, str]
    ) -> "bytes | KubectlFailed":
        connection = _Connection(self._socket)
        try:
            connection.request(method, path, body, headers={"Accept": "*/*", **headers})
            answer = connection.getresponse()
            text = answer.read(_MOST_BYTES)
            if answer.status in (200, 201):
                return text
            return KubectlFailed(path, _complaint(answer.reason, text))
        except TimeoutError:
            return KubectlFailed(path, f"no answer within {_ANSWER_S:.0f} s")
        except (OSError, http.client.HTTPException) as error:
            return KubectlFailed(path, str(error) or type(error).__name__)
        finally:
            connection.close()


def _complaint(reason: str, body: bytes) -> str:
    """As kubectl writes it: the API server answers with a ``Status``, what stands behind its proxy with a text."""
    try:
        status = json.loads(body)
        reason, message = status["reason"], status["message"]
    except (ValueError, TypeError, KeyError):
        reason, message = reason.replace(" ", ""), body[:_MOST_COMPLAINT].decode(errors="replace").strip()
    return f"Error from server ({reason}): {message}"


def _folder() -> "str | None":
    """Where to make ours: sockets have short names, and temporary folders may have long ones."""
    return "/tmp" if len(tempfile.gettempdir()) > _LONGEST_FOLDER else None  # noqa: S108 (mkdtemp makes it the user's alone)
