"""The API server's address and our credentials."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gpushare.kube.auth.proxy import environment_proxy
from gpushare.kube.client.errors import KubeconfigError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ExecPlugin(msgspec.Struct, frozen=True):
    """A program that prints an ``ExecCredential`` (client.authentication.k8s.io)."""

    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    api_version: str = "client.authentication.k8s.io/v1"
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"
    cluster_info: Mapping[str, object] | None = None
    """``spec.cluster`` of KUBERNETES_EXEC_INFO, if the plugin wants it."""


class Access(msgspec.Struct, frozen=True):
    """A server and credentials; only ``server`` is required (``http://127.0.0.1:8001``).

    Certificates and keys are PEM. If a certificate came from a file, the file is set too, so that a rotated certificate is read again.
    ``source`` names the origin in messages.
    """

    server: str
    source: str = "set by the program"
    namespace: str = "default"
    ca: bytes = b""
    insecure: bool = False
    tls_server_name: str = ""
    proxy: str = ""
    client_certificate: bytes = b""
    client_key: bytes = b""
    client_certificate_file: str = ""
    client_key_file: str = ""
    token: str = ""
    token_file: str = ""
    exec_plugin: ExecPlugin | None = None
    impersonate: tuple[tuple[str, str], ...] = ()
    """``Impersonate-…`` headers."""

    def __repr__(self) -> str:
        """Without secrets, for logs."""
        return f"Access(server={self.server!r}, source={self.source!r}, namespace={self.namespace!r})"


def load_access(
    kubeconfig: str | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """The access that the user configured.

    In this order: the file ``kubeconfig``, the merged files of ``$KUBECONFIG``, the pod's service account (unless ``context`` is set),
    ``~/.kube/config``. Raises ``KubeconfigError``.
    """
    environ = os.environ if environ is None else environ
    if kubeconfig:
        return _from_files([kubeconfig], context, environ)
    listed = [path for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    if listed:
        return _from_files(listed, context, environ)
    if not context and (inside := _in_cluster(environ, service_account)) is not None:
        return inside
    home = environ.get("HOME") or str(Path.home())
    default = str(Path(home, ".kube", "config"))
    if not Path(default).exists():
        raise KubeconfigError(
            default,
            "",
            "does not exist, KUBECONFIG is not set and this is no pod with a service account",
            "name a file with --kubeconfig or KUBECONFIG",
        )
    return _from_files([default], context, environ)


def _from_files(files: list[str], context: str | None, environ: Mapping[str, str]) -> Access:
    # Imports YAML, which a pod with a ServiceAccount never needs.
    from gpushare.kube.auth.kubeconfig import read_kubeconfigs

    return read_kubeconfigs(files, context, environ)


def _in_cluster(environ: Mapping[str, str], service_account: Path) -> Access | None:
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    token_file = service_account / "token"
    if not host or not port or not token_file.exists():
        return None
    ca_file = service_account / "ca.crt"
    try:
        ca = ca_file.read_bytes()
    except OSError as error:
        raise KubeconfigError(
            str(ca_file),
            "",
            f"the service account's CA cannot be read ({error.strerror})",
            "mount the whole service account token volume into the pod",
        ) from error
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    namespace_file = service_account / "namespace"
    namespace = namespace_file.read_text().strip() if namespace_file.exists() else ""
    return Access(
        server,
        source="the pod's service account",
        namespace=namespace or "default",
        ca=ca,
        token_file=str(token_file),
        proxy=environment_proxy(server, environ),
    )
