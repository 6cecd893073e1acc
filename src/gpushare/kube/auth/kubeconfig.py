"""Reads kubeconfig files, merged like kubectl; every error names file, key and what to do.

Of several files with the same cluster, user or context, or with ``current-context``, the first one counts. Paths in a file are relative to
that file's folder.
"""

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Never, TypeGuard
from urllib.parse import quote, urlsplit

import msgspec

from gpushare.kube.auth.access import Access, ExecPlugin
from gpushare.kube.auth.proxy import environment_proxy
from gpushare.kube.client.errors import KubeconfigError
from gpushare.process.lazy_import import deferring

with deferring(patterns=True):
    import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")
_EXTENSION = "client.authentication.k8s.io/exec"
_HEADER_CHARACTERS = "!#$&'*+-.^_`|~"
"""Those of header names besides letters and digits, without the percent sign; API servers decode the others."""


def _is_mapping(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


class _Entry(msgspec.Struct, frozen=True):
    """A mapping in a kubeconfig, with its file and path for messages."""

    file: Path
    key: str
    fields: dict[str, Any]

    def refuse(self, name: str, fault: str, advice: str) -> Never:
        key = f"{self.key}.{name}" if self.key and name else self.key or name
        raise KubeconfigError(str(self.file), key, fault, advice)

    def text(self, name: str) -> str:
        value = self.fields.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            self.refuse(name, f"must be a text, not {type(value).__name__}", "put it in quotes")
        return value

    def flag(self, name: str) -> bool:
        value = self.fields.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            self.refuse(name, "must be true or false", "write it without quotes")
        return value

    def entry(self, name: str) -> "_Entry | None":
        value = self.fields.get(name)
        if value is None:
            return None
        if not _is_mapping(value):
            self.refuse(name, "must be a mapping", "indent its entries below it")
        return _Entry(self.file, f"{self.key}.{name}" if self.key else name, value)

    def entries(self, name: str) -> list["_Entry"]:
        value = self.fields.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.refuse(name, "must be a list", "begin each of its entries with a dash")
        entries = []
        for index, item in enumerate(value):
            key = f"{self.key}.{name}[{index}]" if self.key else f"{name}[{index}]"
            if not _is_mapping(item):
                raise KubeconfigError(str(self.file), key, "must be a mapping", "give it its fields")
            entries.append(_Entry(self.file, key, item))
        return entries

    def path(self, name: str) -> str:
        """The file in key ``name``, relative to the kubeconfig; empty if the key is absent."""
        text = self.text(name)
        return str(self.file.parent / text) if text else ""

    def content(self, name: str) -> tuple[bytes, str]:
        """PEM from ``NAME-data`` (which takes precedence, as in kubectl) or from file ``NAME``, and that file."""
        data = self.text(f"{name}-data")
        if data:
            try:
                return base64.b64decode("".join(data.split()), validate=True), ""
            except (binascii.Error, ValueError) as error:
                self.refuse(f"{name}-data", f"is no base64 ({error})", "encode the PEM text with base64")
        path = self.path(name)
        return (self.read(name, path), path) if path else (b"", "")

    def read(self, name: str, path: str) -> bytes:
        try:
            return Path(path).read_bytes()
        except OSError as error:
            self.refuse(
                name, f"{path} cannot be read ({error.strerror})", "correct the path or its permissions"
            )


def read_kubeconfigs(files: list[str], context: str | None, environ: Mapping[str, str]) -> Access:
    """The access that ``context`` (or ``current-context``) names in the merged files.

    Missing files are ignored as long as one exists. Raises ``KubeconfigError``.
    """
    merged = _Merged(files)
    name = context or merged.current
    first = merged.files[0]
    if not name:
        raise KubeconfigError(
            str(first.file),
            "current-context",
            "is not set",
            "set it or choose one with --context" + merged.known("contexts"),
        )
    chosen = merged.find("contexts", name, "current-context" if not context else "--context", first)
    cluster_name, user_name = chosen.text("cluster"), chosen.text("user")
    if not cluster_name:
        chosen.refuse("cluster", "is missing", "name one of the clusters" + merged.known("clusters"))
    cluster = merged.find("clusters", cluster_name, f"{chosen.key}.cluster", chosen)
    user = merged.find("users", user_name, f"{chosen.key}.user", chosen) if user_name else None
    source = f"{cluster.file}, context {name}"
    return _access(cluster, user, source, chosen.text("namespace"), environ)


class _Merged:
    """The merged files."""

    def __init__(self, files: list[str]) -> None:
        present = [Path(file) for file in files if Path(file).exists()]
        if not present:
            raise KubeconfigError(
                ", ".join(files), "", "does not exist", "correct --kubeconfig or KUBECONFIG, or unset it"
            )
        self.files = [_load(path) for path in present]
        self.current = next((text for file in self.files if (text := file.text("current-context"))), "")
        self._named: dict[str, dict[str, _Entry]] = {"clusters": {}, "users": {}, "contexts": {}}
        for file in self.files:
            for kind, known in self._named.items():
                for item in file.entries(kind):
                    name = item.text("name")
                    if not name:
                        item.refuse("name", "is missing", "give the entry a name")
                    known.setdefault(name, _Entry(item.file, f"{kind}[{name}]", item.fields))

    def known(self, kind: str) -> str:
        names = ", ".join(sorted(self._named[kind]))
        return f" (there are: {names})" if names else f" (there are no {kind})"

    def find(self, kind: str, name: str, referring_key: str, referring: _Entry) -> _Entry:
        item = self._named[kind].get(name)
        if item is None:
            raise KubeconfigError(
                str(referring.file),
                referring_key,
                f"there is no entry {name!r} in {kind}",
                "name one that exists" + self.known(kind),
            )
        inner = item.entry(kind.removesuffix("s"))
        if inner is None and kind == "users":
            return _Entry(item.file, f"{item.key}.user", {})  # without credentials
        if inner is None:
            item.refuse(kind.removesuffix("s"), "is missing", "give the entry its fields")
        return inner


def _load(path: Path) -> _Entry:
    try:
        content = yaml.load(path.read_bytes(), _Loader)  # noqa: S506 - a safe loader, in C where there is one
    except OSError as error:
        raise KubeconfigError(
            str(path), "", f"cannot be read ({error.strerror})", "correct the path or its permissions"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        location = " ".join(str(error).split())
        raise KubeconfigError(str(path), "", f"is no YAML ({location})", "correct the file") from error
    if content is None:
        raise KubeconfigError(str(path), "", "is empty", "write a kubeconfig there")
    if not _is_mapping(content):
        raise KubeconfigError(str(path), "", "is not a kubeconfig (not a mapping)", "name another file")
    return _Entry(path.absolute(), "", content)


def _access(
    cluster: _Entry, user: _Entry | None, source: str, namespace: str, environ: Mapping[str, str]
) -> Access:
    server = _server(cluster)
    ca, _ = cluster.content("certificate-authority")
    insecure = cluster.flag("insecure-skip-tls-verify")
    if ca and insecure:
        cluster.refuse(
            "insecure-skip-tls-verify", "contradicts certificate-authority", "remove one of the two"
        )
    access = Access(
        server,
        source=source,
        namespace=namespace or "default",
        ca=ca,
        insecure=insecure,
        tls_server_name=cluster.text("tls-server-name"),
        proxy=_proxy(cluster, server, environ),
    )
    return _as_user(access, cluster, user) if user is not None else access


def _server(cluster: _Entry) -> str:
    server = cluster.text("server").rstrip("/")
    if not server:
        cluster.refuse("server", "is missing", "give the API server's address (https://HOST:PORT)")
    try:
        parts = urlsplit(server)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        cluster.refuse("server", f"{server!r} is no address", "write it as https://HOST:PORT")
    if parts.username or parts.query or parts.fragment:
        cluster.refuse("server", "carries a user, query or fragment", "write it as https://HOST:PORT")
    return server


def _proxy(cluster: _Entry, server: str, environ: Mapping[str, str]) -> str:
    proxy = cluster.text("proxy-url")
    if not proxy:
        proxy = environment_proxy(server, environ)
        if proxy.startswith("http://") or not proxy:
            return proxy
        cluster.refuse(
            "server",
            f"the environment's proxy {proxy} is not supported",
            "name an http:// one, or exempt the server with NO_PROXY",
        )
    if not proxy.startswith("http://") or not urlsplit(proxy).hostname:
        cluster.refuse("proxy-url", f"{proxy!r} is not supported", "name an http:// proxy")
    return proxy


def _as_user(access: Access, cluster: _Entry, user: _Entry) -> Access:
    if user.text("username") or user.text("password"):
        user.refuse(
            "username",
            "Kubernetes no longer supports basic authentication",
            "use a client certificate, a token or an exec plugin",
        )
    if user.fields.get("auth-provider") is not None:
        user.refuse(
            "auth-provider",
            "Kubernetes no longer supports auth providers",
            "use the provider's exec plugin (user.exec)",
        )
    certificate, certificate_file = user.content("client-certificate")
    key, key_file = user.content("client-key")
    if bool(certificate) != bool(key):
        missing, present = (
            ("client-key", "client-certificate") if certificate else ("client-certificate", "client-key")
        )
        user.refuse(missing, f"is missing, though there is a {present}", "give both or none")
    token, token_file = user.text("token").strip(), user.path("tokenFile")
    if token_file:
        user.read("tokenFile", token_file)
    plugin = user.entry("exec")
    return Access(
        access.server,
        source=access.source,
        namespace=access.namespace,
        ca=access.ca,
        insecure=access.insecure,
        tls_server_name=access.tls_server_name,
        proxy=access.proxy,
        client_certificate=certificate,
        client_key=key,
        client_certificate_file=certificate_file,
        client_key_file=key_file,
        token="" if token_file else token,
        token_file=token_file,
        exec_plugin=_exec_plugin(plugin, access, cluster) if plugin is not None else None,
        impersonate=_impersonation(user),
    )


def _impersonation(user: _Entry) -> tuple[tuple[str, str], ...]:
    headers = []
    if user.text("as"):
        headers.append(("Impersonate-User", user.text("as")))
    if user.text("as-uid"):
        headers.append(("Impersonate-Uid", user.text("as-uid")))
    headers.extend(("Impersonate-Group", group) for group in _texts(user, "as-groups"))
    extra = user.entry("as-user-extra")
    if extra is not None:
        headers.extend(
            (f"Impersonate-Extra-{quote(name, safe=_HEADER_CHARACTERS)}", value)
            for name in extra.fields
            for value in _texts(extra, name)
        )
    if headers and not user.text("as"):
        user.refuse("as", "is missing, although other impersonation fields are set", "name the user")
    return tuple(headers)


def _texts(entry: _Entry, name: str) -> list[str]:
    values = entry.fields.get(name)
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        entry.refuse(name, "must be a list of texts", "put each in quotes, after a dash")
    return values


def _exec_plugin(plugin: _Entry, access: Access, cluster: _Entry) -> ExecPlugin:
    command = plugin.text("command")
    if not command:
        plugin.refuse("command", "is missing", "name the program that prints the credential")
    if "/" in command:
        command = str(plugin.file.parent / command)
    version = plugin.text("apiVersion")
    if version not in EXEC_VERSIONS:
        plugin.refuse("apiVersion", f"{version!r} is not supported", f"use {EXEC_VERSIONS[0]}")
    mode = plugin.text("interactiveMode")
    if not mode and version == EXEC_VERSIONS[0]:
        plugin.refuse("interactiveMode", f"is missing, which {version} demands", "set it to IfAvailable")
    if mode and mode not in _INTERACTIVE_MODES:
        plugin.refuse(
            "interactiveMode", f"{mode!r} is unknown", f"use one of {', '.join(_INTERACTIVE_MODES)}"
        )
    variables = []
    for variable in plugin.entries("env"):
        if not variable.text("name"):
            variable.refuse("name", "is missing", "name the variable")
        variables.append((variable.text("name"), variable.text("value")))
    return ExecPlugin(
        command,
        args=tuple(_texts(plugin, "args")),
        env=tuple(variables),
        api_version=version,
        install_hint=plugin.text("installHint").strip(),
        interactive_mode=mode or "IfAvailable",
        cluster_info=_cluster_info(access, cluster) if plugin.flag("provideClusterInfo") else None,
    )


def _cluster_info(access: Access, cluster: _Entry) -> dict[str, object]:
    info: dict[str, object] = {"server": access.server}
    if access.tls_server_name:
        info["tls-server-name"] = access.tls_server_name
    if access.insecure:
        info["insecure-skip-tls-verify"] = True
    if access.ca:
        info["certificate-authority-data"] = base64.b64encode(access.ca).decode("ascii")
    if cluster.text("proxy-url"):
        info["proxy-url"] = access.proxy
    for extension in cluster.entries("extensions"):
        if extension.text("name") == _EXTENSION:
            info["config"] = extension.fields.get("extension")
    return info
