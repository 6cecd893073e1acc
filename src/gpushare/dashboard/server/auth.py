"""Who may look: whoever knows the token, once in a form, then by a cookie that only this page's own requests carry.

The cookie holds no token: it is the time of its end, signed with the token. So no session is kept, every replica knows it, and a
new token ends it.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from pathlib import Path
from typing import Final

from gpushare.dashboard.errors import InvalidSetting

COOKIE: Final = "gpushare-dashboard"
LEAST_TOKEN: Final = 16
_MOST_TOKEN: Final = 4096
#: How long a login lasts, in seconds.
LOGIN_S: Final = 12 * 3600
_PURPOSE: Final = b"gpushare dashboard cookie "


class TokenFile:
    """The token in a file, read anew when the file has changed (a mounted Secret does)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._token = b""
        self.read()

    def read(self) -> bytes:
        """The token; raises ``InvalidSetting`` where there is none, or a short one."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                token = self._path.read_bytes().strip()
                if not LEAST_TOKEN <= len(token) <= _MOST_TOKEN:
                    raise InvalidSetting(
                        f"--token-file {self._path}: {len(token)} characters; give {LEAST_TOKEN} to {_MOST_TOKEN}, such as "
                        "those of: openssl rand -hex 32"
                    )
                self._token, self._stamp = token, stamp
        except OSError as error:
            raise InvalidSetting(f"--token-file {self._path}: {error.strerror}") from error
        return self._token


class Shown(Enum):
    """What a request shows of the token."""

    GOOD = auto()
    OLD = auto()
    """A cookie whose time is over."""
    WRONG = auto()


class Guard:
    """Says who may come in. ``now_s`` is in seconds since 1970."""

    def __init__(self, token: Callable[[], bytes], now_s: Callable[[], float]) -> None:
        self._read = token
        self._now_s = now_s

    def knows(self, given: bytes) -> bool:
        """Whether that is the token; takes as long whatever is wrong with it."""
        return hmac.compare_digest(hashlib.sha256(given).digest(), hashlib.sha256(self._token()).digest())

    def cookie(self, *, secure: bool) -> bytes:
        """``Set-Cookie`` of who has just shown the token.

        It names no path: behind the API server's proxy a browser keeps it to this service's own path.
        """
        ends = str(int(self._now_s()) + LOGIN_S)
        return (
            f"{COOKIE}={ends}.{self._sign(ends)}; Max-Age={LOGIN_S}; HttpOnly; SameSite=Strict"
            + ("; Secure" if secure else "")
        ).encode()

    @staticmethod
    def no_cookie() -> bytes:
        """``Set-Cookie`` of who goes."""
        return f"{COOKIE}=; Max-Age=0; HttpOnly; SameSite=Strict".encode()

    def admits(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request with these headers (names in lower case) shows the token or a cookie that is good."""
        return Shown.GOOD in self._shown(headers)

    def is_guess(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether such a request shows another token, or a cookie that was not signed with it: it may be a guess."""
        return Shown.WRONG in self._shown(headers)

    def _shown(self, headers: Iterable[tuple[bytes, bytes]]) -> set[Shown]:
        found = set()
        for name, value in headers:
            if name == b"authorization":
                scheme, _, given = value.partition(b" ")
                if scheme.lower() == b"bearer":
                    found.add(Shown.GOOD if self.knows(given.strip()) else Shown.WRONG)
            elif name == b"cookie":
                found.update(self._cookies(value))
        return found

    def _cookies(self, header: bytes) -> Iterator[Shown]:
        for part in header.split(b";"):
            name, _, value = part.strip().partition(b"=")
            if name != COOKIE.encode():
                continue
            ends, _, signature = value.decode("ascii", "replace").partition(".")
            is_time = ends.isascii() and ends.isdecimal() and len(ends) < 16
            if is_time and hmac.compare_digest(signature.encode(), self._sign(ends).encode()):
                yield Shown.GOOD if int(ends) > self._now_s() else Shown.OLD
            else:
                yield Shown.WRONG

    def _sign(self, ends: str) -> str:
        return hmac.new(self._token(), _PURPOSE + ends.encode(), hashlib.sha256).hexdigest()

    def _token(self) -> bytes:
        return self._read()
