"""Authentication: by the token, which a login form exchanges for a cookie that is sent only with this page's own requests.

The cookie contains its expiry time, signed with the token, and not the token. So there is no session state, every replica can verify it,
and a new token invalidates it.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from pathlib import Path
from typing import Final

from gpushare.dashboard.errors import InvalidSetting

COOKIE: Final = "gpushare-dashboard"
MIN_TOKEN_LENGTH: Final = 16
_MAX_TOKEN_LENGTH: Final = 4096
LOGIN_LIFETIME_S: Final = 12 * 3600
_PURPOSE: Final = b"gpushare dashboard cookie "


class TokenFile:
    """The token in a file, read again when the file has changed, as a mounted Secret does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._token = b""
        self.read()

    def read(self) -> bytes:
        """The token; raises ``InvalidSetting`` if it is missing, too short or too long."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                token = self._path.read_bytes().strip()
                if not MIN_TOKEN_LENGTH <= len(token) <= _MAX_TOKEN_LENGTH:
                    raise InvalidSetting(
                        f"--token-file {self._path}: {len(token)} characters; use {MIN_TOKEN_LENGTH} to {_MAX_TOKEN_LENGTH}, such as "
                        "those of: openssl rand -hex 32"
                    )
                self._token, self._stamp = token, stamp
        except OSError as error:
            raise InvalidSetting(f"--token-file {self._path}: {error.strerror}") from error
        return self._token


class Credential(Enum):
    """Result of checking a credential."""

    GOOD = auto()
    OLD = auto()
    """An expired cookie."""
    WRONG = auto()


class Guard:
    """Checks credentials of requests. ``now_s`` returns seconds since 1970."""

    def __init__(self, token: Callable[[], bytes], now_s: Callable[[], float]) -> None:
        self._read = token
        self._now_s = now_s

    def knows(self, candidate: bytes) -> bool:
        """Whether ``candidate`` is the token; in constant time."""
        return hmac.compare_digest(hashlib.sha256(candidate).digest(), hashlib.sha256(self._token()).digest())

    def cookie(self, *, secure: bool) -> bytes:
        """``Set-Cookie`` after a login.

        Without a path, so that behind the API server's proxy a browser limits it to this service's path.
        """
        expires = str(int(self._now_s()) + LOGIN_LIFETIME_S)
        return (
            f"{COOKIE}={expires}.{self._sign(expires)}; Max-Age={LOGIN_LIFETIME_S}; HttpOnly; SameSite=Strict"
            + ("; Secure" if secure else "")
        ).encode()

    @staticmethod
    def no_cookie() -> bytes:
        """``Set-Cookie`` after a logout."""
        return f"{COOKIE}=; Max-Age=0; HttpOnly; SameSite=Strict".encode()

    def admits(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request with these headers (names in lower case) has the token or a valid cookie."""
        return Credential.GOOD in self._credentials(headers)

    def is_guess(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether such a request has a wrong token, or a cookie with a wrong signature: it may be guessing."""
        return Credential.WRONG in self._credentials(headers)

    def _credentials(self, headers: Iterable[tuple[bytes, bytes]]) -> set[Credential]:
        results = set()
        for name, value in headers:
            if name == b"authorization":
                scheme, _, token = value.partition(b" ")
                if scheme.lower() == b"bearer":
                    results.add(Credential.GOOD if self.knows(token.strip()) else Credential.WRONG)
            elif name == b"cookie":
                results.update(self._cookies(value))
        return results

    def _cookies(self, header: bytes) -> Iterator[Credential]:
        for part in header.split(b";"):
            name, _, value = part.strip().partition(b"=")
            if name != COOKIE.encode():
                continue
            expires, _, signature = value.decode("ascii", "replace").partition(".")
            valid_form = expires.isascii() and expires.isdecimal() and len(expires) < 16
            if valid_form and hmac.compare_digest(signature.encode(), self._sign(expires).encode()):
                yield Credential.GOOD if int(expires) > self._now_s() else Credential.OLD
            else:
                yield Credential.WRONG

    def _sign(self, expires: str) -> str:
        return hmac.new(self._token(), _PURPOSE + expires.encode(), hashlib.sha256).hexdigest()

    def _token(self) -> bytes:
        return self._read()
