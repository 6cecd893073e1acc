"""Exec plugins as small programs."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from gpushare.kube.auth import execplugin
from gpushare.kube.auth.access import ExecPlugin
from gpushare.kube.auth.execplugin import Credential, run_plugin
from gpushare.kube.client.errors import CredentialError

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"


def program(folder: Path, script: str, name: str = "login") -> str:
    path = folder / name
    path.write_text(f"#!{sys.executable} -IS\nimport json, os, sys\n{script}\n")
    path.chmod(0o755)
    return str(path)


def printing(status: object, version: str = V1, kind: str = "ExecCredential") -> str:
    return f"print({json.dumps(json.dumps({'apiVersion': version, 'kind': kind, 'status': status}))})"


async def run(folder: Path, script: str, **fields: Any) -> Credential:
    return await run_plugin(ExecPlugin(program(folder, script), **fields), terminal=False)


@pytest.mark.parametrize("version", [V1, V1BETA1])
async def test_a_token_is_read_with_its_expiry(version: str, tmp_path: Path) -> None:
    script = printing({"token": "secret", "expirationTimestamp": "2030-01-01T00:00:00Z"}, version)
    credential = await run(tmp_path, script, api_version=version)
    assert credential == Credential("secret", expires_ns=1893456000 * 10**9)
    assert "secret" not in repr(credential)


async def test_nulls_are_what_is_not_set(tmp_path: Path) -> None:
    status = {"token": "t", "clientCertificateData": None, "clientKeyData": None, "expirationTimestamp": None}
    assert await run(tmp_path, printing(status)) == Credential("t")


async def test_a_client_certificate_is_read_as_pem_or_base64(tmp_path: Path) -> None:
    status = {"clientCertificateData": "-----BEGIN CERTIFICATE-----\n", "clientKeyData": "a2V5"}
    assert await run(tmp_path, printing(status)) == Credential("", b"-----BEGIN CERTIFICATE-----\n", b"key")


@pytest.mark.parametrize("version", [V1, V1BETA1])
async def test_the_program_gets_its_arguments_environment_and_the_cluster(
    version: str, tmp_path: Path
) -> None:
    script = """
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
received = [sys.argv[1:], os.environ["PROFILE"], info["spec"], sys.stdin.read()]
print(json.dumps({"apiVersion": info["apiVersion"], "kind": info["kind"], "status": {"token": json.dumps(received)}}))
"""
    cluster = {"server": "https://lab", "config": {"audience": "x"}}
    fields: dict[str, Any] = {"args": ("get", "token"), "env": (("PROFILE", "gpu"),), "api_version": version}
    with_cluster = await run(tmp_path, script, cluster_info=cluster, **fields)
    assert json.loads(with_cluster.token) == [
        ["get", "token"],
        "gpu",
        {"interactive": False, "cluster": cluster},
        "",
    ]
    without = await run(tmp_path, script, **fields)
    assert json.loads(without.token)[2] == {"interactive": False}


async def test_a_program_is_found_on_the_path(tmp_path: Path) -> None:
    program(tmp_path, printing({"token": "t"}), "on-the-path")
    environ = {**os.environ, "PATH": str(tmp_path)}
    assert (await run_plugin(ExecPlugin("on-the-path"), environ=environ, terminal=False)).token == "t"


async def test_a_missing_program_is_reported_with_the_hint(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path)}
    with pytest.raises(CredentialError, match="exec plugin aws: is not installed; get it from your admin"):
        await run_plugin(ExecPlugin("aws", install_hint="get it from your admin"), environ=environ)
    with pytest.raises(CredentialError, match=r"install it, or correct user.exec.command"):
        await run_plugin(ExecPlugin("aws"), environ=environ)


async def test_a_program_that_the_system_cannot_start_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    with pytest.raises(CredentialError, match=r"cannot be started \(No such file"):
        await run_plugin(ExecPlugin(str(path)), terminal=False)


async def test_an_interactive_program_is_not_started_without_a_terminal(tmp_path: Path) -> None:
    with pytest.raises(CredentialError, match="there is no terminal; log in from a terminal first"):
        await run(tmp_path, printing({"token": "t"}), interactive_mode="Always")


@pytest.mark.parametrize(("mode", "interactive"), [("Always", True), ("IfAvailable", True), ("Never", False)])
async def test_the_mode_decides_whether_the_program_may_use_the_terminal(
    mode: str, interactive: bool, tmp_path: Path
) -> None:
    script = """
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
print(json.dumps({**info, "status": {"token": str(info["spec"]["interactive"])}}))
"""
    plugin = ExecPlugin(program(tmp_path, script), interactive_mode=mode)
    assert (await run_plugin(plugin, terminal=True)).token == str(interactive)


async def test_the_terminal_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(CredentialError, match="there is no terminal"):
        await run_plugin(ExecPlugin(program(tmp_path, ""), interactive_mode="Always"))


async def test_a_program_that_hangs_is_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    pid, new = tmp_path / "pid", tmp_path / "new"
    # Atomically: it may be killed anywhere.
    script = (
        f"open({str(new)!r}, 'w').write(str(os.getpid()))\nos.rename({str(new)!r}, {str(pid)!r})\n"
        f"open({str(fifo)!r}).read()"
    )
    plugin = ExecPlugin(program(tmp_path, script))
    with pytest.raises(CredentialError, match=r"did not finish within 0.3 s; run it by hand"):
        await run_plugin(plugin, timeout_s=0.3, terminal=False)
    if pid.exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), 0)


async def test_a_child_of_a_program_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execplugin, "_KILLED_S", 0.1)
    pid = tmp_path / "pid"
    os.mkfifo(pid)
    script = (
        f"import signal\nif not os.fork(): open({str(pid)!r}, 'w').write(str(os.getpid()))\nsignal.pause()"
    )
    running = asyncio.create_task(
        run_plugin(ExecPlugin(program(tmp_path, script)), timeout_s=5.0, terminal=False)
    )
    child = int(await asyncio.to_thread(pid.read_text))
    try:
        with pytest.raises(CredentialError, match="did not finish"):
            await running
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            "sys.stderr.write('not logged in\\n'); sys.exit(3)",
            "failed with exit code 3: not logged in; run it by hand",
        ),
        ("sys.exit(3)", "failed with exit code 3; run it by hand"),
        ("print('hello')", "printed no ExecCredential"),
        ("sys.stdout.buffer.write(b'\"\\xff\"')", "printed no ExecCredential"),
        (printing({"token": "t"}, V1BETA1), f"printed {V1BETA1} ExecCredential, not {V1} ExecCredential"),
        (printing({"token": "t"}, V1, "Other"), f"printed {V1} Other, not"),
        ("print('{}')", "printed no version of no kind"),
        (printing(None), "neither a token nor a client certificate"),
        (printing({}), "neither a token nor a client certificate"),
        (printing({"clientCertificateData": "YQ=="}), "without its key"),
        (printing({"clientCertificateData": "%", "clientKeyData": "%"}), "that is no PEM"),
        (printing({"token": "t", "expirationTimestamp": "2030-01-01T00:00:00"}), "without a time zone"),
        (printing({"token": "t", "expirationTimestamp": "soon"}), "printed no ExecCredential"),
    ],
)
async def test_errors_of_a_program_are_reported(script: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(CredentialError) as caught:
        await run(tmp_path, script)
    assert expected in str(caught.value)
    assert caught.value.subject == f"exec plugin {tmp_path / 'login'}"
