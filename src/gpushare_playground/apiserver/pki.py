"""The embedded API server's certificate and the bearer tokens of its users."""

import secrets
import ssl
import tempfile
from dataclasses import dataclass
from typing import Final

from gpushare_playground.certificate_authority import SERVER_NAMES, Authority, Identity

CONTEXT: Final = "playground"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The authority's certificate (PEM), and the server's own."""

    ca_pem: bytes
    server: Identity

    def server_context(self) -> ssl.SSLContext:
        """A TLS context for serving."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # OpenSSL reads certificates from files only.
        with tempfile.NamedTemporaryFile(suffix=".pem") as file:
            file.write(self.server.certificate_pem + self.server.key_pem)
            file.flush()
            context.load_cert_chain(file.name)
        return context


def make_credentials(host: str) -> Credentials:
    """A new authority and a server certificate for ``host``, loopback and the in-cluster names."""
    authority = Authority.new("gpushare-playground-ca")
    hosts = (*SERVER_NAMES, "127.0.0.1", "::1", host)
    server = authority.issue("gpushare-playground-apiserver", hosts=hosts, client=False)
    return Credentials(authority.identity.certificate_pem, server)


def new_token() -> str:
    """A random bearer token."""
    return secrets.token_urlsafe(32)
