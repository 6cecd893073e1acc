"""A certificate authority created at start, the certificates it signs, and kubeconfig files that trust it. It keeps no state."""

import base64
import ipaddress
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Self

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_FOR: Final = timedelta(days=3650)
_SKEW: Final = timedelta(minutes=5)
SERVER_NAMES: Final = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
"""The names by which clients and pods call an API server."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A certificate and its private key, both PEM."""

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)


class Authority:
    """Signs certificates for both ends of TLS; ``identity`` is its own certificate and key."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key
        self.identity = Identity(_pem(certificate), private_pem(key))

    @classmethod
    def new(cls, common_name: str) -> Self:
        """A new authority, valid for ten years."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _subject(common_name, ())
        start = datetime.now(UTC) - _SKEW
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + VALID_FOR)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    def issue(
        self,
        common_name: str,
        *,
        organizations: Sequence[str] = (),
        hosts: Iterable[str] = (),
        client: bool = True,
    ) -> Identity:
        """A certificate for a user (name and groups: ``common_name`` and ``organizations``) or a server.

        ``hosts`` are DNS names and IP addresses to serve under; with one it is valid for servers, with ``client`` for clients.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        start = datetime.now(UTC) - _SKEW
        names = [_alternative(host) for host in dict.fromkeys(hosts)]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH] if names else []
        usages += [ExtendedKeyUsageOID.CLIENT_AUTH] if client else []
        builder = (
            x509.CertificateBuilder()
            .subject_name(_subject(common_name, organizations))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + VALID_FOR)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Identity(_pem(builder.sign(self._key, hashes.SHA256())), private_pem(key))


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def signing_pair() -> tuple[bytes, bytes]:
    """(private, public) PEM of a new key that signs service account tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return private_pem(key), public


def kubeconfig_text(url: str, ca_pem: bytes, user: str, way_in: Mapping[str, str], name: str) -> str:
    """A kubeconfig of one context ``name``; ``way_in`` is the user's entry, such as ``{"token": …}``."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": name, "cluster": {"server": url, "certificate-authority-data": base64_text(ca_pem)}}
            ],
            "users": [{"name": user, "user": dict(way_in)}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": user, "namespace": "default"}}],
            "current-context": name,
        },
        sort_keys=False,
    )


def by_certificate(identity: Identity) -> dict[str, str]:
    """A kubeconfig's user entry with a client certificate."""
    return {
        "client-certificate-data": base64_text(identity.certificate_pem),
        "client-key-data": base64_text(identity.key_pem),
    }


def base64_text(raw: bytes) -> str:
    """Base64 as in kubeconfig files."""
    return base64.b64encode(raw).decode()


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, atomically: readers see the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        # mkstemp creates files with mode 0600.
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _subject(common_name: str, organizations: Sequence[str]) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
