"""Kubeconfigs as users have them: what is read from them, and how each error is reported."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.kube.auth.access import Access, load_access
from gpushare.kube.client.errors import KubeconfigError


def config(**changes: Any) -> dict[str, Any]:
    """A kubeconfig of one cluster, user and context; ``cluster`` and ``user`` add fields to them."""
    whole: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "work",
        "clusters": [
            {"name": "lab", "cluster": {"server": "https://lab:6443", **changes.pop("cluster", {})}}
        ],
        "users": [{"name": "me", "user": changes.pop("user", {"token": "t"})}],
        "contexts": [{"name": "work", "context": {"cluster": "lab", "user": "me"}}],
    }
    whole.update(changes)
    return whole


def plugin(**changes: Any) -> dict[str, Any]:
    """A user with an exec plugin."""
    fields = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "login",
        "interactiveMode": "Never",
        **changes,
    }
    return {"exec": {name: value for name, value in fields.items() if value is not None}}


def write(folder: Path, content: object, name: str = "config") -> str:
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(path)


def load(folder: Path, content: object, context: str | None = None, **environ: str) -> Access:
    return load_access(write(folder, content), context, environ=environ)


def test_a_token_and_a_ca_in_the_file_are_read(tmp_path: Path) -> None:
    pem = b"-----BEGIN CERTIFICATE-----\n"
    cluster = {
        "certificate-authority-data": base64.encodebytes(pem).decode(),
        "tls-server-name": "kubernetes",
        "server": "https://lab:6443/prefix/",
    }
    contexts = [{"name": "work", "context": {"cluster": "lab", "user": "me", "namespace": "ml"}}]
    access = load(tmp_path, config(cluster=cluster, user={"token": " secret\n"}, contexts=contexts))
    assert access == Access(
        "https://lab:6443/prefix",
        source=f"{tmp_path}/config, context work",
        namespace="ml",
        ca=pem,
        tls_server_name="kubernetes",
        token="secret",
    )
    assert "secret" not in repr(access)


def test_paths_are_relative_to_the_kubeconfigs_directory(tmp_path: Path) -> None:
    (tmp_path / "pki").mkdir()
    for name in ("ca", "crt", "key", "token"):
        (tmp_path / "pki" / name).write_text(name)
    user = {
        "client-certificate": "pki/crt",
        "client-key": str(tmp_path / "pki/key"),
        "tokenFile": "pki/token",
        "token": "old",
    }
    access = load(tmp_path, config(cluster={"certificate-authority": "pki/ca"}, user=user))
    assert (access.ca, access.client_certificate, access.client_key) == (b"ca", b"crt", b"key")
    assert access.client_certificate_file == str(tmp_path / "pki/crt")
    assert access.client_key_file == str(tmp_path / "pki/key")
    assert access.token_file == str(tmp_path / "pki/token")
    assert access.token == "", "a token file goes before a token"


def test_inline_data_takes_precedence_over_a_file(tmp_path: Path) -> None:
    cluster = {
        "certificate-authority": "nowhere",
        "certificate-authority-data": base64.b64encode(b"ca").decode(),
    }
    assert load(tmp_path, config(cluster=cluster)).ca == b"ca"


def test_a_context_may_have_no_user(tmp_path: Path) -> None:
    access = load(tmp_path, config(contexts=[{"name": "work", "context": {"cluster": "lab"}}]))
    assert access.token == ""
    assert access.namespace == "default"


@pytest.mark.parametrize("entry", [{"name": "me", "user": None}, {"name": "me"}])
def test_a_user_may_have_no_credentials(entry: dict[str, Any], tmp_path: Path) -> None:
    access = load(tmp_path, config(users=[entry]))
    assert (access.server, access.token) == ("https://lab:6443", "")


def test_nulls_are_what_is_not_set(tmp_path: Path) -> None:
    user = plugin()
    user["exec"] |= {"provideClusterInfo": None, "env": None, "args": None}
    access = load(tmp_path, config(cluster={"insecure-skip-tls-verify": None}, user=user))
    assert access.insecure is False
    assert access.exec_plugin is not None
    assert access.exec_plugin.cluster_info is None


def test_the_requested_context_takes_precedence_over_the_current_one(tmp_path: Path) -> None:
    contexts = [
        {"name": "work", "context": {"cluster": "lab", "user": "me"}},
        {"name": "home", "context": {"cluster": "lab", "user": "me", "namespace": "h"}},
    ]
    assert load(tmp_path, config(contexts=contexts), "home").namespace == "h"


def test_several_files_are_merged_and_the_first_wins(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "ca").write_text("from b")
    first = write(
        tmp_path, {"current-context": "work", "users": [{"name": "me", "user": {"token": "first"}}]}, "a"
    )
    second = write(
        tmp_path / "b",
        config(cluster={"certificate-authority": "ca"}, user={"token": "second"}, **{"current-context": "x"}),
    )
    access = load_access(environ={"KUBECONFIG": f"{tmp_path}/missing:{first}::{second}"})
    assert access.token == "first"
    assert access.ca == b"from b", "a path counts from the folder of the file that it is in"


def test_tls_is_unverified_only_when_the_file_requests_it(tmp_path: Path) -> None:
    assert not load(tmp_path, config()).insecure
    assert load(tmp_path, config(cluster={"insecure-skip-tls-verify": True})).insecure


def test_an_exec_plugin_is_read_with_all_its_fields(tmp_path: Path) -> None:
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    cluster = {
        "certificate-authority-data": base64.b64encode(b"ca").decode(),
        "tls-server-name": "kubernetes",
        "proxy-url": "http://proxy:3128",
        "extensions": [{"name": "other", "extension": 1}, extension],
    }
    user = plugin(
        command="bin/login",
        args=["get", "token"],
        env=[{"name": "PROFILE", "value": "gpu"}, {"name": "EMPTY", "value": ""}],
        installHint="install login\n",
        provideClusterInfo=True,
    )
    found = load(tmp_path, config(cluster=cluster, user=user)).exec_plugin
    assert found is not None
    assert found.command == str(tmp_path / "bin/login")
    assert found.args == ("get", "token")
    assert found.env == (("PROFILE", "gpu"), ("EMPTY", ""))
    assert found.install_hint == "install login"
    assert found.interactive_mode == "Never"
    assert found.cluster_info == {
        "server": "https://lab:6443",
        "tls-server-name": "kubernetes",
        "certificate-authority-data": base64.b64encode(b"ca").decode(),
        "proxy-url": "http://proxy:3128",
        "config": {"audience": "x"},
    }


def test_an_older_exec_plugin_may_leave_the_mode_out(tmp_path: Path) -> None:
    user = plugin(
        apiVersion="client.authentication.k8s.io/v1beta1", interactiveMode=None, provideClusterInfo=True
    )
    found = load(tmp_path, config(cluster={"insecure-skip-tls-verify": True}, user=user)).exec_plugin
    assert found is not None
    assert (found.command, found.interactive_mode) == ("login", "IfAvailable")
    assert found.cluster_info == {"server": "https://lab:6443", "insecure-skip-tls-verify": True}


def test_impersonation_is_honoured(tmp_path: Path) -> None:
    user = {
        "token": "t",
        "as": "eve",
        "as-uid": "7",
        "as-groups": ["a", "b"],
        "as-user-extra": {"example.com/Team 1%": ["y"], "scope": ["x"]},
    }
    assert load(tmp_path, config(user=user)).impersonate == (
        ("Impersonate-User", "eve"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-example.com%2FTeam%201%25", "y"),
        ("Impersonate-Extra-scope", "x"),
    )


def test_the_files_proxy_takes_precedence_over_the_environments(tmp_path: Path) -> None:
    environ = {"HTTPS_PROXY": "http://outer:1"}
    assert load(tmp_path, config(), **environ).proxy == "http://outer:1"
    assert (
        load(tmp_path, config(cluster={"proxy-url": "http://inner:2"}), **environ).proxy == "http://inner:2"
    )


BREAKAGES: dict[str, tuple[object, str, str]] = {
    # what is wrong: content, key named, part of the message
    "is no YAML": ("a: [", "", "is no YAML"),
    "holds control characters": ("a: \x00", "", "is no YAML"),
    "is empty": ("", "", "is empty"),
    "is a list": ("- a", "", "not a mapping"),
    "has no current context": (
        config(**{"current-context": ""}),
        "current-context",
        "choose one with --context (there are: work)",
    ),
    "has a current context that is not there": (
        config(**{"current-context": "x"}),
        "current-context",
        "no entry 'x' in contexts",
    ),
    "has no contexts": (config(contexts=None), "current-context", "there are no contexts"),
    "has contexts that are no list": (config(contexts={"a": 1}), "contexts", "must be a list"),
    "has a context that is no mapping": (config(contexts=["work"]), "contexts[0]", "must be a mapping"),
    "has a context without a name": (
        config(contexts=[{"context": {}}]),
        "contexts[0].name",
        "give the entry a name",
    ),
    "has a context without fields": (
        config(contexts=[{"name": "work"}]),
        "contexts[work].context",
        "is missing",
    ),
    "has a context whose fields are a text": (
        config(contexts=[{"name": "work", "context": "lab"}]),
        "contexts[work].context",
        "must be a mapping",
    ),
    "has a context without a cluster": (
        config(contexts=[{"name": "work", "context": {"user": "me"}}]),
        "contexts[work].context.cluster",
        "name one of the clusters (there are: lab)",
    ),
    "has a context of an unknown cluster": (
        config(contexts=[{"name": "work", "context": {"cluster": "x"}}]),
        "contexts[work].context.cluster",
        "no entry 'x' in clusters",
    ),
    "has a context of an unknown user": (
        config(contexts=[{"name": "work", "context": {"cluster": "lab", "user": "x"}}]),
        "contexts[work].context.user",
        "no entry 'x' in users",
    ),
    "has a cluster without a server": (
        config(cluster={"server": None}),
        "clusters[lab].cluster.server",
        "is missing",
    ),
    "has a server that is a number": (
        config(cluster={"server": 7}),
        "clusters[lab].cluster.server",
        "must be a text, not int",
    ),
    "has a server without a scheme": (
        config(cluster={"server": "lab:6443"}),
        "clusters[lab].cluster.server",
        "write it as https://HOST:PORT",
    ),
    "has a server with an impossible port": (
        config(cluster={"server": "https://lab:99999"}),
        "clusters[lab].cluster.server",
        "is no address",
    ),
    "has a server with a password": (
        config(cluster={"server": "https://a:b@lab"}),
        "clusters[lab].cluster.server",
        "carries a user",
    ),
    "names a CA that is not there": (
        config(cluster={"certificate-authority": "ca.crt"}),
        "clusters[lab].cluster.certificate-authority",
        "ca.crt cannot be read (No such file",
    ),
    "has a CA that is no base64": (
        config(cluster={"certificate-authority-data": "%%"}),
        "clusters[lab].cluster.certificate-authority-data",
        "is no base64",
    ),
    "has a CA beside unverified TLS": (
        config(cluster={"certificate-authority-data": "YQ==", "insecure-skip-tls-verify": True}),
        "clusters[lab].cluster.insecure-skip-tls-verify",
        "contradicts",
    ),
    "has a flag in quotes": (
        config(cluster={"insecure-skip-tls-verify": "true"}),
        "clusters[lab].cluster.insecure-skip-tls-verify",
        "must be true or false",
    ),
    "names a SOCKS proxy": (
        config(cluster={"proxy-url": "socks5://p:1"}),
        "clusters[lab].cluster.proxy-url",
        "name an http:// proxy",
    ),
    "has a password": (
        config(user={"username": "a", "password": "b"}),
        "users[me].user.username",
        "no longer supports basic authentication",
    ),
    "has an auth provider": (
        config(user={"auth-provider": {"name": "gcp"}}),
        "users[me].user.auth-provider",
        "use the provider's exec plugin",
    ),
    "has a certificate without a key": (
        config(user={"client-certificate-data": "YQ=="}),
        "users[me].user.client-key",
        "though there is a client-certificate",
    ),
    "has a key without a certificate": (
        config(user={"client-key-data": "YQ=="}),
        "users[me].user.client-certificate",
        "though there is a client-key",
    ),
    "names a token file that is not there": (
        config(user={"tokenFile": "token"}),
        "users[me].user.tokenFile",
        "token cannot be read",
    ),
    "has groups that are a text": (
        config(user={"as": "a", "as-groups": "b"}),
        "users[me].user.as-groups",
        "must be a list of texts",
    ),
    "has groups without a user": (config(user={"as-groups": ["b"]}), "users[me].user.as", "name the user"),
    "has a plugin without a command": (
        config(user=plugin(command=None)),
        "users[me].user.exec.command",
        "name the program",
    ),
    "has a plugin of an old version": (
        config(user=plugin(apiVersion="client.authentication.k8s.io/v1alpha1")),
        "users[me].user.exec.apiVersion",
        "use client.authentication.k8s.io/v1",
    ),
    "has a v1 plugin without a mode": (
        config(user=plugin(interactiveMode=None)),
        "users[me].user.exec.interactiveMode",
        "set it to IfAvailable",
    ),
    "has a plugin of an unknown mode": (
        config(user=plugin(interactiveMode="Maybe")),
        "users[me].user.exec.interactiveMode",
        "use one of Never, IfAvailable, Always",
    ),
    "has a plugin with a nameless variable": (
        config(user=plugin(env=[{"value": "x"}])),
        "users[me].user.exec.env[0].name",
        "name the variable",
    ),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_kubeconfig_is_reported_with_file_key_and_advice(breakage: str, tmp_path: Path) -> None:
    content, key, expected = BREAKAGES[breakage]
    with pytest.raises(KubeconfigError) as caught:
        load(tmp_path, content)
    assert str(tmp_path / "config") in caught.value.file
    assert caught.value.key == key
    assert caught.value.advice
    assert expected in str(caught.value)
    assert str(caught.value).startswith(f"kubeconfig {tmp_path}/config: {key}")


def test_an_unknown_context_is_reported_with_its_option(tmp_path: Path) -> None:
    with pytest.raises(
        KubeconfigError, match=r"--context: there is no entry 'x' in contexts; .*there are: work"
    ):
        load(tmp_path, config(), "x")


def test_an_unsupported_proxy_of_the_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match="exempt the server with NO_PROXY"):
        load(tmp_path, config(), HTTPS_PROXY="socks5://p:1")


def test_a_kubeconfig_that_is_a_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=r"cannot be read \(Is a directory\)"):
        load_access(str(tmp_path), environ={})
