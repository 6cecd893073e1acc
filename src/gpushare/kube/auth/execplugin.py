"""Runs an exec plugin and reads the ``ExecCredential`` that it prints (client.authentication.k8s.io)."""

import asyncio
import base64
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime

import msgspec

from gpushare.kube.auth.access import ExecPlugin
from gpushare.kube.client.errors import CredentialError

TIMEOUT_S = 60.0
_KILLED_S = 3.0
_MAX_SHOWN = 500


class Credential(msgspec.Struct, frozen=True):
    """A plugin's result: a token, certificate and key (PEM), or both; valid until ``expires_ns`` (since 1970)."""

    token: str = ""
    certificate: bytes = b""
    key: bytes = b""
    expires_ns: int | None = None

    def __repr__(self) -> str:
        """Without secrets, for logs."""
        return f"Credential(expires_ns={self.expires_ns})"


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


async def run_plugin(
    plugin: ExecPlugin,
    *,
    timeout_s: float = TIMEOUT_S,
    environ: Mapping[str, str] | None = None,
    terminal: bool | None = None,
) -> Credential:
    """Run the plugin once. ``terminal``: whether a user can answer prompts (detected by default).

    Raises ``CredentialError``: the program is missing, fails, takes too long or prints something else.
    """
    environ = os.environ if environ is None else environ
    if terminal is None:
        terminal = sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive_mode == "Always" and not terminal:
        raise _fault(
            plugin, "requires interactive input, but there is no terminal", "log in from a terminal first"
        )
    interactive = terminal and plugin.interactive_mode != "Never"
    variables = {**environ, **dict(plugin.env), "KUBERNETES_EXEC_INFO": _exec_info(plugin, interactive)}
    import shutil  # imports compression modules, and few users have a plugin

    program = shutil.which(plugin.command, path=environ.get("PATH"))
    if program is None:
        raise _fault(
            plugin, "is not installed", plugin.install_hint or "install it, or correct user.exec.command"
        )
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *plugin.args,
            env=variables,
            stdin=None if interactive else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=None if interactive else asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise _fault(plugin, f"cannot be started ({error.strerror})", "correct user.exec.command") from error
    try:
        # A user may take any time; a program has a timeout.
        async with asyncio.timeout(None if interactive else timeout_s):
            output, complaint = await process.communicate()
    except TimeoutError as error:
        raise _fault(plugin, f"did not finish within {timeout_s:g} s", "run it by hand to see why") from error
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            # asyncio also waits until its pipes are closed, which a descendant may keep open.
            with suppress(TimeoutError):
                async with asyncio.timeout(_KILLED_S):
                    await process.wait()
    if process.returncode != 0:
        message = (complaint or b"").decode(errors="replace").strip()[-_MAX_SHOWN:]
        raise _fault(
            plugin,
            f"failed with exit code {process.returncode}{': ' + message if message else ''}",
            "run it by hand to see why",
        )
    return _credential(plugin, output)


def _exec_info(plugin: ExecPlugin, interactive: bool) -> str:  # noqa: FBT001 - a field of the document
    spec: dict[str, object] = {"interactive": interactive}
    if plugin.cluster_info is not None:
        spec["cluster"] = dict(plugin.cluster_info)
    return msgspec.json.encode(
        {"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec}
    ).decode()


def _credential(plugin: ExecPlugin, output: bytes) -> Credential:
    advice = "run it by hand to see what it prints"
    try:
        printed = msgspec.json.decode(output, type=_ExecCredential)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _fault(plugin, f"printed no ExecCredential ({error})", advice) from error
    if printed.kind != "ExecCredential" or printed.api_version != plugin.api_version:
        raise _fault(
            plugin,
            f"printed {printed.api_version or 'no version'} {printed.kind or 'of no kind'}, not {plugin.api_version} ExecCredential",
            "set user.exec.apiVersion to what the program speaks",
        )
    status = printed.status
    if status is None or not (status.token or status.client_certificate_data):
        raise _fault(plugin, "printed neither a token nor a client certificate", advice)
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise _fault(plugin, "printed a client certificate without its key, or the reverse", advice)
    expires = status.expiration_timestamp
    if expires is not None and expires.tzinfo is None:
        raise _fault(plugin, "printed an expirationTimestamp without a time zone", advice)
    return Credential(
        status.token or "",
        _pem(plugin, status.client_certificate_data or ""),
        _pem(plugin, status.client_key_data or ""),
        None if expires is None else int(expires.timestamp() * 1e9),
    )


def _pem(plugin: ExecPlugin, text: str) -> bytes:
    """PEM as in the API, or in base64, as some plugins print it."""
    if not text or text.lstrip().startswith("-----BEGIN"):
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise _fault(plugin, "printed a certificate or key that is no PEM", "update the program") from error


def _fault(plugin: ExecPlugin, fault: str, advice: str) -> CredentialError:
    return CredentialError(f"exec plugin {plugin.command}", f"{fault}; {advice}")
