"""TLS contexts for connections to the API server."""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Never

from gpushare.kube.auth.access import Access
from gpushare.kube.client.errors import KubeconfigError


def tls_context(access: Access, certificate: bytes = b"", key: bytes = b"") -> ssl.SSLContext | None:
    """The context for ``access`` with that client certificate (PEM); ``None`` for plain http.

    The server is verified against the configured CA or those of the system, unless the kubeconfig disables verification.
    Raises ``KubeconfigError``.
    """
    if not access.server.startswith("https:"):
        return None
    try:
        # Bundles have comments in any encoding.
        ca = access.ca.decode("ascii", "backslashreplace")
        context = ssl.create_default_context(cadata=ca or None)
    except (ssl.SSLError, ValueError) as error:
        raise KubeconfigError(
            access.source,
            "certificate-authority",
            f"is no PEM certificate ({error})",
            "give the cluster's CA",
        ) from error
    # Newer Python versions reject CAs without a key identifier, which many clusters have and other clients accept.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate:
        _load_client_certificate(context, access, certificate, key)
    return context


def _load_client_certificate(context: ssl.SSLContext, access: Access, certificate: bytes, key: bytes) -> None:
    with _as_file(certificate) as certificate_path, _as_file(key) as key_path:
        try:
            context.load_cert_chain(certificate_path, key_path, password=_refuse_password)
        except (ssl.SSLError, ValueError) as error:
            raise KubeconfigError(
                access.source,
                "client-certificate, client-key",
                f"cannot be used together ({error})",
                "give a PEM certificate and its own, unencrypted, PEM key",
            ) from error


def _refuse_password() -> Never:
    raise ValueError("the key is encrypted")


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path to ``content``, as OpenSSL only reads files; on Linux it is never on disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("gpushare-pem")
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        import tempfile

        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name
