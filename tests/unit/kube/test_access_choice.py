"""Which of several ways to reach the API server is chosen."""

from pathlib import Path

import pytest

from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import KubeconfigError

FILE = """
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}, {name: d, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "https://NAME"}}]
users: [{name: u, user: {token: t}}]
"""
INSIDE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def service_account(tmp_path: Path) -> Path:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    for name, text in (("token", "inside"), ("ca.crt", "pem"), ("namespace", "kube-system\n")):
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / ".kube").mkdir(parents=True)
    (tmp_path / "home" / ".kube" / "config").write_text(FILE.replace("NAME", "home"))
    return tmp_path / "home"


def test_the_order_is_file_environment_service_account_home(
    tmp_path: Path, service_account: Path, home: Path
) -> None:
    for name in ("chosen", "named"):
        (tmp_path / name).write_text(FILE.replace("NAME", name))
    environ = {**INSIDE, "HOME": str(home), "KUBECONFIG": str(tmp_path / "named")}
    access = load_access(str(tmp_path / "chosen"), environ=environ, service_account=service_account)
    assert access.server == "https://chosen"
    assert load_access(environ=environ, service_account=service_account).server == "https://named"
    del environ["KUBECONFIG"]
    inside = load_access(environ=environ, service_account=service_account)
    assert inside.server == "https://10.0.0.1:443"
    assert inside.token_file == str(service_account / "token")
    assert (inside.ca, inside.namespace) == (b"pem", "kube-system")
    assert load_access(environ={"HOME": str(home)}, service_account=service_account).server == "https://home"


def test_a_requested_context_is_looked_up_in_a_file_even_inside_a_pod(
    service_account: Path, home: Path
) -> None:
    environ = {**INSIDE, "HOME": str(home)}
    assert load_access(context="d", environ=environ, service_account=service_account).server == "https://home"


def test_an_ipv6_service_address_is_put_in_brackets(service_account: Path) -> None:
    (service_account / "namespace").unlink()
    environ = {**INSIDE, "KUBERNETES_SERVICE_HOST": "fd00::1"}
    access = load_access(environ=environ, service_account=service_account)
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "default")


def test_a_pod_without_a_token_is_no_service_account(tmp_path: Path, service_account: Path) -> None:
    (service_account / "token").unlink()
    with pytest.raises(KubeconfigError, match="name a file with --kubeconfig or KUBECONFIG"):
        load_access(environ={**INSIDE, "HOME": str(tmp_path)}, service_account=service_account)


def test_a_service_account_without_a_ca_is_reported(service_account: Path) -> None:
    (service_account / "ca.crt").unlink()
    with pytest.raises(KubeconfigError, match="mount the whole service account token volume"):
        load_access(environ=INSIDE, service_account=service_account)


def test_a_named_file_that_does_not_exist_is_reported_and_nothing_else_tried(
    service_account: Path, home: Path
) -> None:
    environ = {**INSIDE, "HOME": str(home)}
    with pytest.raises(KubeconfigError, match="kubeconfig /no/such: does not exist; correct --kubeconfig"):
        load_access("/no/such", environ=environ, service_account=service_account)
    with pytest.raises(KubeconfigError, match="kubeconfig /no/a, /no/b: does not exist"):
        load_access(environ={**environ, "KUBECONFIG": "/no/a:/no/b"}, service_account=service_account)


def test_the_processes_own_environment_is_the_default(
    monkeypatch: pytest.MonkeyPatch, home: Path, tmp_path: Path
) -> None:
    for name in ("KUBECONFIG", "HTTPS_PROXY", "https_proxy", *INSIDE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    assert load_access(service_account=tmp_path / "none").server == "https://home"
