"""Generations of certificates: a CA, the one server certificate that it signed, and its key. Pure.

The authority's key is thrown away as soon as it has signed: it can never be stolen, and trusting an old authority
a while longer means trusting one certificate, not whatever else might be signed.
"""

import hashlib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature)


class MalformedCertificate(ValueError):
    """PEM texts that do not form a generation; ``str()`` says why."""


@dataclass(frozen=True, slots=True)
class Generation:
    """CA, certificate and key as PEM; valid from ``not_before`` to ``not_after`` (UTC) for ``names``."""

    ca_pem: bytes
    certificate_pem: bytes
    key_pem: bytes = field(repr=False)
    not_before: datetime
    not_after: datetime
    names: frozenset[str]

    @property
    def mark(self) -> str:
        """Identifies the generation, also in logs: the beginning of the CA's SHA-256."""
        return mark_of(self.ca_pem)

    def valid_at(self, now: datetime) -> bool:
        """Whether the certificate is valid at ``now``."""
        return self.not_before <= now < self.not_after


def mark_of(ca_pem: bytes) -> str:
    """The mark of the generation with CA ``ca_pem``."""
    return hashlib.sha256(ca_pem).hexdigest()[:12]


def make_generation(names: Iterable[str], now: datetime, valid_for: timedelta) -> Generation:
    """A new generation for DNS names and IP addresses, valid for ``valid_for`` before and after ``now``.

    It is valid before it is made so that no clock that is behind, here or in an API server, refuses it.
    """
    begin = (now - valid_for).replace(microsecond=0)
    end = (now + valid_for).replace(microsecond=0)
    wanted = frozenset(names)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = _name(f"gpushare-admission-ca-{x509.random_serial_number():040x}"[:60])
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(_name("gpushare-admission"), authority_name, key.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(one) for one in sorted(wanted)]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    return Generation(
        authority.public_bytes(serialization.Encoding.PEM),
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        begin,
        end,
        wanted,
    )


def read_generation(ca_pem: bytes, certificate_pem: bytes, key_pem: bytes) -> Generation:
    """The generation in these PEM texts; raises ``MalformedCertificate`` if they do not belong together."""
    try:
        authority = x509.load_pem_x509_certificate(ca_pem)
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        key = serialization.load_pem_private_key(key_pem, None)
        certificate.verify_directly_issued_by(authority)
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except _UNREADABLE as error:
        raise MalformedCertificate(str(error) or type(error).__name__) from None
    except x509.ExtensionNotFound:
        raise MalformedCertificate("the certificate names no server") from None
    if key.public_key() != certificate.public_key():
        raise MalformedCertificate("the key is not the certificate's")
    names = {str(one) for one in alternatives.get_values_for_type(x509.DNSName)}
    names |= {str(one) for one in alternatives.get_values_for_type(x509.IPAddress)}
    return Generation(
        ca_pem,
        certificate_pem,
        key_pem,
        max(authority.not_valid_before_utc, certificate.not_valid_before_utc),
        min(authority.not_valid_after_utc, certificate.not_valid_after_utc),
        frozenset(names),
    )


def split_bundle(bundle: bytes) -> list[bytes]:
    """The certificates of a PEM bundle, each formatted like ``Generation.ca_pem``; anything else is skipped."""
    try:
        found = x509.load_pem_x509_certificates(bundle) if bundle.strip() else []
    except _UNREADABLE:
        return []
    return [one.public_bytes(serialization.Encoding.PEM) for one in found]


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begin: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
