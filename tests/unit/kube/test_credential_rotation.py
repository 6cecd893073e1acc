"""Tokens that rotate, and plugins whose credentials expire or are rejected."""

import asyncio
import os
import ssl
from pathlib import Path

import pytest
import trustme

from gpushare.kube.auth.access import Access, ExecPlugin
from gpushare.kube.auth.credentials import CHECK_S, REFUSAL_PAUSE_S, REREAD_S, Credentials
from gpushare.kube.auth.execplugin import Credential
from gpushare.kube.client.errors import CredentialError, KubeconfigError
from tests.unit.kube.scripted import ScriptedClock

LAB = "http://lab"


class Plugin:
    """Counts its runs; returns ``answers`` in turn, and the last one from then on."""

    def __init__(self, *answers: Credential | CredentialError) -> None:
        self.answers = list(answers)
        self.runs = 0

    async def __call__(self, plugin: ExecPlugin) -> Credential:
        self.runs += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await asyncio.sleep(0)
        if isinstance(answer, CredentialError):
            raise answer
        return answer


def with_plugin(clock: ScriptedClock, plugin: Plugin, server: str = LAB) -> Credentials:
    return Credentials(Access(server, exec_plugin=ExecPlugin("login")), clock, plugin)


async def authorization_of(credentials: Credentials) -> str:
    if credentials.stale():
        await credentials.renew()
    return credentials.authorization


def write(path: Path, text: str, stamp_s: int) -> None:
    path.write_text(text)
    os.utime(path, (stamp_s, stamp_s))


async def test_a_configured_token_is_sent_and_never_stale() -> None:
    credentials = Credentials(Access(LAB, token="t", exec_plugin=ExecPlugin("login")), ScriptedClock())
    assert await authorization_of(credentials) == "Bearer t"
    assert not credentials.stale()
    assert not await credentials.refused(credentials.generation)


async def test_no_authorization_is_sent_without_credentials() -> None:
    assert await authorization_of(Credentials(Access(LAB), ScriptedClock())) == ""


async def test_a_rotated_token_file_is_read_again_when_its_stamp_changes(tmp_path: Path) -> None:
    clock, path = ScriptedClock(), tmp_path / "token"
    write(path, "one\n", 1)
    credentials = Credentials(Access(LAB, token_file=str(path)), clock)
    assert await authorization_of(credentials) == "Bearer one"
    write(path, "two\n", 2)
    assert await authorization_of(credentials) == "Bearer one", "the stamp is not checked for every request"
    clock.now_s += CHECK_S
    assert await authorization_of(credentials) == "Bearer two"


async def test_a_token_file_is_read_again_after_a_minute_whatever_its_stamp(tmp_path: Path) -> None:
    clock, path = ScriptedClock(), tmp_path / "token"
    write(path, "one", 1)
    credentials = Credentials(Access(LAB, token_file=str(path)), clock)
    await authorization_of(credentials)
    write(path, "two", 1)
    clock.now_s += CHECK_S
    assert await authorization_of(credentials) == "Bearer one"
    clock.now_s += REREAD_S
    assert await authorization_of(credentials) == "Bearer two"


async def test_a_rejected_token_file_is_read_again_immediately(tmp_path: Path) -> None:
    path = tmp_path / "token"
    write(path, "one", 1)
    credentials = Credentials(Access(LAB, token_file=str(path)), ScriptedClock())
    await authorization_of(credentials)
    assert not await credentials.refused(credentials.generation)
    write(path, "two", 1)
    assert await credentials.refused(credentials.generation)
    assert credentials.authorization == "Bearer two"


async def test_a_token_file_that_is_briefly_missing_leaves_the_old_token(tmp_path: Path) -> None:
    clock, path = ScriptedClock(), tmp_path / "token"
    write(path, "one", 1)
    credentials = Credentials(Access(LAB, token_file=str(path)), clock)
    await authorization_of(credentials)
    path.unlink()
    clock.now_s += CHECK_S
    assert await authorization_of(credentials) == "Bearer one"
    write(path, "", 2)
    clock.now_s += CHECK_S
    assert await authorization_of(credentials) == "Bearer one"


async def test_a_token_file_that_never_existed_is_reported_every_time(tmp_path: Path) -> None:
    credentials = Credentials(Access(LAB, token_file=str(tmp_path / "token")), ScriptedClock())
    for _ in range(2):
        with pytest.raises(CredentialError, match=r"token file .*No such file.*mount or create it"):
            await authorization_of(credentials)


async def test_a_plugin_runs_once_for_all_waiters_and_not_again_before_its_token_expires() -> None:
    clock = ScriptedClock()
    plugin = Plugin(Credential("one", expires_ns=clock.time_ns() + 10**9), Credential("two"))
    credentials = with_plugin(clock, plugin)
    assert await asyncio.gather(*(authorization_of(credentials) for _ in range(8))) == ["Bearer one"] * 8
    assert await authorization_of(credentials) == "Bearer one"
    assert plugin.runs == 1
    clock.now_s += 1.0
    assert await authorization_of(credentials) == "Bearer two"
    clock.now_s += 1e6
    assert await authorization_of(credentials) == "Bearer two", "without an expiry it is valid until rejected"
    assert plugin.runs == 2


async def test_a_rejected_plugin_credential_is_renewed_once_and_then_not_for_a_while() -> None:
    clock, plugin = ScriptedClock(), Plugin(Credential("one"), Credential("two"), Credential("three"))
    credentials = with_plugin(clock, plugin)
    await authorization_of(credentials)
    first = credentials.generation
    assert all(await asyncio.gather(*(credentials.refused(first) for _ in range(8))))
    assert (credentials.authorization, plugin.runs) == ("Bearer two", 2)
    assert not await credentials.refused(credentials.generation)
    clock.now_s += REFUSAL_PAUSE_S
    assert await credentials.refused(credentials.generation)
    assert credentials.authorization == "Bearer three"


async def test_a_failing_plugin_is_not_run_for_every_request() -> None:
    clock = ScriptedClock()
    plugin = Plugin(CredentialError("exec plugin login", "failed"), Credential("one"))
    credentials = with_plugin(clock, plugin)
    for _ in range(3):
        with pytest.raises(CredentialError, match="exec plugin login: failed"):
            await authorization_of(credentials)
    assert plugin.runs == 1
    clock.now_s += REFUSAL_PAUSE_S
    assert await authorization_of(credentials) == "Bearer one"


async def test_a_plugins_certificate_goes_into_the_tls_context() -> None:
    leaf = trustme.CA().issue_cert("me")
    good = Credential("", leaf.cert_chain_pems[0].bytes(), leaf.private_key_pem.bytes())
    credentials = with_plugin(ScriptedClock(), Plugin(good), "https://lab")
    before = credentials.tls
    assert await authorization_of(credentials) == ""
    assert isinstance(credentials.tls, ssl.SSLContext)
    assert credentials.tls is not before
    bad = with_plugin(ScriptedClock(), Plugin(Credential("", b"x", b"y")), "https://lab")
    with pytest.raises(CredentialError, match="cannot be used together"):
        await authorization_of(bad)


async def test_a_rotated_client_certificate_is_loaded_when_both_halves_fit(tmp_path: Path) -> None:
    clock, ca = ScriptedClock(), trustme.CA()
    certificate, key = tmp_path / "crt", tmp_path / "key"
    old, new = ca.issue_cert("old"), ca.issue_cert("new")
    write(certificate, old.cert_chain_pems[0].bytes().decode(), 1)
    write(key, old.private_key_pem.bytes().decode(), 1)
    access = Access(
        "https://lab",
        client_certificate=certificate.read_bytes(),
        client_key=key.read_bytes(),
        client_certificate_file=str(certificate),
        client_key_file=str(key),
    )
    credentials = Credentials(access, clock)
    await authorization_of(credentials)
    first = credentials.tls
    write(certificate, new.cert_chain_pems[0].bytes().decode(), 2)
    clock.now_s += CHECK_S
    await authorization_of(credentials)
    assert credentials.tls is first, "the new certificate does not fit the old key"
    write(key, new.private_key_pem.bytes().decode(), 2)
    clock.now_s += CHECK_S
    await authorization_of(credentials)
    assert credentials.tls is not first


def with_certificate(folder: Path, issued: trustme.LeafCert, token_file: str = "") -> Access:
    certificate, key = folder / "crt", folder / "key"
    rotate(folder, issued)
    return Access(
        "https://lab",
        client_certificate=certificate.read_bytes(),
        client_key=key.read_bytes(),
        client_certificate_file=str(certificate),
        client_key_file=str(key),
        token_file=token_file,
    )


def rotate(folder: Path, issued: trustme.LeafCert) -> None:
    """The modification times stay as they are."""
    write(folder / "crt", issued.cert_chain_pems[0].bytes().decode(), 1)
    write(folder / "key", issued.private_key_pem.bytes().decode(), 1)


async def test_a_certificate_rotated_before_the_first_request_is_loaded(tmp_path: Path) -> None:
    ca = trustme.CA()
    credentials = Credentials(with_certificate(tmp_path, ca.issue_cert("old")), ScriptedClock())
    first, generation = credentials.tls, credentials.generation
    rotate(tmp_path, ca.issue_cert("new"))
    await authorization_of(credentials)
    assert credentials.tls is not first
    assert credentials.generation > generation


async def test_a_certificate_is_read_again_after_a_minute_whatever_its_stamp(tmp_path: Path) -> None:
    clock, ca = ScriptedClock(), trustme.CA()
    credentials = Credentials(with_certificate(tmp_path, ca.issue_cert("old")), clock)
    await authorization_of(credentials)
    first, generation = credentials.tls, credentials.generation
    clock.now_s += REREAD_S
    await authorization_of(credentials)
    assert (credentials.tls, credentials.generation) == (first, generation), "the files are the same"
    rotate(tmp_path, ca.issue_cert("new"))
    clock.now_s += REREAD_S
    await authorization_of(credentials)
    assert credentials.tls is not first


async def test_a_token_and_a_certificate_are_renewed_together(tmp_path: Path) -> None:
    clock, ca, token = ScriptedClock(), trustme.CA(), tmp_path / "token"
    write(token, "one", 1)
    credentials = Credentials(with_certificate(tmp_path, ca.issue_cert("old"), str(token)), clock)
    await authorization_of(credentials)
    generation = credentials.generation
    write(token, "two", 2)
    write(tmp_path / "crt", "half of it", 2)
    clock.now_s += CHECK_S
    assert await authorization_of(credentials) == "Bearer one"
    assert credentials.generation == generation
    rotate(tmp_path, ca.issue_cert("new"))
    clock.now_s += CHECK_S
    assert await authorization_of(credentials) == "Bearer two"
    assert credentials.generation == generation + 1


async def test_a_ca_bundle_may_have_comments_in_any_encoding() -> None:
    ca = "# Főtanúsítvány\n".encode() + b"# \xe9\n" + trustme.CA().cert_pem.bytes()
    tls = Credentials(Access("https://lab", ca=ca)).tls
    assert isinstance(tls, ssl.SSLContext)
    assert len(tls.get_ca_certs()) == 1


async def test_an_unusable_ca_or_key_is_reported_at_the_start() -> None:
    with pytest.raises(KubeconfigError, match="certificate-authority: is no PEM certificate"):
        Credentials(Access("https://lab", ca=b"nonsense"))
    with pytest.raises(KubeconfigError, match="certificate-authority: is no PEM certificate"):
        Credentials(Access("https://lab", ca=b"\xff"))
    with pytest.raises(KubeconfigError, match="client-certificate, client-key: cannot be used together"):
        Credentials(Access("https://lab", client_certificate=b"a", client_key=b"b"))


async def test_an_encrypted_key_is_rejected_without_prompting_for_a_password() -> None:
    from cryptography.hazmat.primitives import serialization

    leaf = trustme.CA().issue_cert("me")
    plain = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    key = plain.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )
    access = Access("https://lab", client_certificate=leaf.cert_chain_pems[0].bytes(), client_key=key)
    with pytest.raises(KubeconfigError, match=r"the key is encrypted.*unencrypted, PEM key"):
        Credentials(access)


async def test_a_system_without_files_in_memory_is_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    leaf = trustme.CA().issue_cert("me")
    pem, key = leaf.cert_chain_pems[0].bytes(), leaf.private_key_pem.bytes()
    assert Credentials(Access("https://lab", client_certificate=pem, client_key=key)).tls is not None
