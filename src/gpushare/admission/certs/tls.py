"""A TLS context whose certificate can be replaced without closing its listener or connections."""

import asyncio
import os
import ssl

from gpushare.admission.certs.certificates import Generation


class ServerTls:
    """``context`` is what to listen with; each handshake presents what ``use`` was last called with.

    ``certified`` is set from the first certificate on.
    """

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A resumed session presents no certificate, and would outlive a replaced one.
        self.context.options |= ssl.OP_NO_TICKET
        self.context.num_tickets = 0
        self.context.sni_callback = self._choose
        self.serving: Generation | None = None
        self.certified = asyncio.Event()
        self._fresh: ssl.SSLContext | None = None

    def use(self, generation: Generation) -> None:
        """Present ``generation`` from the next handshake on; raises ``ssl.SSLError`` if OpenSSL rejects it."""
        fresh = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # OpenSSL only reads certificates from files, and the container's file system is read-only.
        file = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            os.write(file, generation.certificate_pem + generation.key_pem)
            fresh.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        self._fresh = fresh
        self.serving = generation
        self.certified.set()

    def _choose(
        self, connection: ssl.SSLObject | ssl.SSLSocket, server_name: str | None, listening: ssl.SSLContext
    ) -> None:
        if self._fresh is not None:
            connection.context = self._fresh
