"""Keeps a session's credentials fresh: rotating tokens, expiring plugin credentials.

Every request uses ``authorization`` and ``tls`` after a cheap call of ``stale()``. Only if that returns true, ``renew`` reads files or runs
the plugin, once for all waiting requests.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from gpushare.kube.auth.access import Access, ExecPlugin
from gpushare.kube.auth.execplugin import Credential, run_plugin
from gpushare.kube.auth.tls import tls_context
from gpushare.kube.client.errors import CredentialError, KubeconfigError
from gpushare.kube.clock import SYSTEM_CLOCK, Clock

logger = logging.getLogger(__name__)

REREAD_S = 60.0
"""Files are read again after this many seconds, whatever their modification times."""
CHECK_S = 1.0
"""Their modification times are checked at most this often, in seconds."""
REFUSAL_PAUSE_S = 5.0
"""Pause before the plugin runs again after a rejected credential or a failure, in seconds."""

RunnerFn = Callable[[ExecPlugin], Awaitable[Credential]]


class Credentials:
    """The current credential of an ``Access``. ``generation`` counts its changes."""

    def __init__(self, access: Access, clock: Clock = SYSTEM_CLOCK, run: RunnerFn = run_plugin) -> None:
        self._access = access
        self._clock = clock
        self._run = run
        # An explicit token takes precedence over a plugin, as in kubectl.
        self._plugin = access.exec_plugin if not (access.token or access.token_file) else None
        self._files = tuple(
            path
            for path in (access.token_file, access.client_certificate_file, access.client_key_file)
            if path
        )
        self._stamps: tuple[int, ...] = ()
        self._certificate = access.client_certificate, access.client_key
        self._read_at = self._checked_at = float("-inf")
        self._expires_ns: int | None = None
        self._refused_at = self._failed_at = float("-inf")
        self._failure: CredentialError | None = None
        self._lock = asyncio.Lock()
        self.generation = 0
        self.authorization = f"Bearer {access.token}" if access.token else ""
        self.tls = tls_context(access, access.client_certificate, access.client_key)

    def stale(self) -> bool:
        """Whether ``renew`` is due before the next request."""
        if self._files:
            now = self._clock.monotonic()
            if now - self._checked_at < CHECK_S and self._stamps:
                return False
            self._checked_at = now
            return now - self._read_at >= REREAD_S or self._stamps != self._modification_times()
        if self._plugin is None:
            return False
        return self.generation == 0 or (
            self._expires_ns is not None and self._clock.time_ns() >= self._expires_ns
        )

    async def renew(self) -> None:
        """Read the files again or run the plugin, if due. Raises ``CredentialError``."""
        if self._files:
            self._read()
        else:
            generation = self.generation
            async with self._lock:
                if self.generation == generation:
                    await self._run_once()

    async def refused(self, generation: int) -> bool:
        """After a 401 to the credential of ``generation``: whether there is a newer one to try."""
        if self._files:
            self._read()
        elif self._plugin is not None:
            async with self._lock:
                now = self._clock.monotonic()
                if self.generation == generation and now - self._refused_at >= REFUSAL_PAUSE_S:
                    self._refused_at = now
                    await self._run_once()
        return self.generation != generation

    def _modification_times(self) -> tuple[int, ...]:
        stamps = []
        for path in self._files:
            try:
                stamps.append(os.stat(path).st_mtime_ns)
            except OSError:
                stamps.append(-1)
        return tuple(stamps)

    def _read(self) -> None:
        stamps = self._modification_times()
        try:
            authorization, certificate = self._read_authorization(), self._read_certificate()
            is_new = certificate != self._certificate
            tls = tls_context(self._access, *certificate) if is_new else self.tls
        except (OSError, CredentialError, KubeconfigError) as error:
            # During a rotation the old credential is still the best available.
            if isinstance(error, CredentialError) and not self.authorization:
                raise
            logger.warning("credential not renewed, the old one stays: %s", error)
            return
        self._stamps = stamps
        self._read_at = self._clock.monotonic()
        self.generation += is_new or authorization != self.authorization
        self.authorization, self.tls, self._certificate = authorization, tls, certificate

    def _read_authorization(self) -> str:
        path = self._access.token_file
        if not path:
            return self.authorization
        try:
            if token := Path(path).read_text().strip():
                return f"Bearer {token}"
            problem = "it is empty"
        except OSError as error:
            problem = str(error)
        raise CredentialError(f"token file {path}", f"cannot be read ({problem}); mount or create it")

    def _read_certificate(self) -> tuple[bytes, bytes]:
        """Certificate and key, each from its file if it came from one."""
        certificate, key = self._access.client_certificate, self._access.client_key
        if path := self._access.client_certificate_file:
            certificate = Path(path).read_bytes()
        if path := self._access.client_key_file:
            key = Path(path).read_bytes()
        return certificate, key

    async def _run_once(self) -> None:
        assert self._plugin is not None
        if self._failure is not None and self._clock.monotonic() - self._failed_at < REFUSAL_PAUSE_S:
            raise CredentialError(self._failure.subject, self._failure.problem)
        try:
            credential = await self._run(self._plugin)
            if credential.certificate:
                self.tls = tls_context(self._access, credential.certificate, credential.key)
        except (CredentialError, KubeconfigError) as error:
            self._failure = CredentialError(error.subject, error.problem)
            self._failed_at = self._clock.monotonic()
            raise self._failure from error
        self._failure = None
        self.authorization = f"Bearer {credential.token}" if credential.token else ""
        self._expires_ns = credential.expires_ns
        self.generation += 1
