"""Storage of the certificates in a Secret, and of their CAs in the webhook configurations.

Every write names the version that it was made for, so that of two replicas one is refused and reads again.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from gpushare.admission.certs.certificates import Generation, MalformedCertificate, read_generation
from gpushare.admission.certs.rotation import Stored
from gpushare.admission.errors import MissingObject
from gpushare.kube.client.errors import ApiError, MalformedAnswer
from gpushare.kube.client.session import MERGE_PATCH, Session, segment

JSON_PATCH: Final = "application/json-patch+json"
KINDS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_TIMEOUT_S: Final = 10.0
#: Keys of the Secret: ``current`` and ``coming``, each with these suffixes.
_PARTS: Final = ("ca.crt", "tls.crt", "tls.key")


@dataclass(frozen=True, slots=True)
class Secret:
    """The Secret at one version; ``faults`` describes unreadable parts, which count as missing."""

    version: str
    stored: Stored
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Configuration:
    """A webhook configuration at one version: the CA bundle of each of its webhooks, in order."""

    resource: str
    name: str
    version: str
    bundles: tuple[bytes, ...]


class Store(Protocol):
    """Storage of certificates: ``ApiStore``, or a fake in tests. All methods raise ``KubeError``."""

    async def read_secret(self) -> Secret:
        """The current Secret; also raises ``MissingObject``."""

    async def write_secret(self, version: str, stored: Stored) -> None:
        """Replace the Secret's content if it still has ``version``; ``ApiError.conflict`` otherwise."""

    async def read_configurations(self) -> list[Configuration]:
        """The webhook configurations that exist."""

    async def write_bundle(self, configuration: Configuration, bundle: bytes) -> None:
        """Set ``bundle`` in all its webhooks; ``ApiError.conflict`` if it changed since it was read."""


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Secret(msgspec.Struct):
    metadata: _Metadata
    data: dict[str, str] | None = None


class _ClientConfig(msgspec.Struct, rename="camel"):
    ca_bundle: str | None = None


class _Webhook(msgspec.Struct, rename="camel"):
    client_config: _ClientConfig = msgspec.field(default_factory=_ClientConfig)


class _Configuration(msgspec.Struct):
    metadata: _Metadata
    webhooks: list[_Webhook] | None = None


class ApiStore:
    """Keeps certificates in the API server. ``secret`` is ``NAMESPACE/NAME``."""

    def __init__(self, session: Session, namespace: str, secret: str, configuration: str) -> None:
        self._session = session
        self._subject = f"secret {namespace}/{secret}"
        self._secret = f"/api/v1/namespaces/{segment(namespace)}/secrets/{segment(secret)}"
        self._name = configuration

    async def read_secret(self) -> Secret:
        """The current Secret."""
        try:
            found = await self._get(self._secret, _Secret)
        except ApiError as error:
            if error.not_found:
                raise MissingObject(
                    f"{self._subject} does not exist: install or upgrade the chart, which creates it, "
                    "or create an empty one"
                ) from None
            raise
        current, first = _read(found.data or {}, "current", self._subject)
        coming, second = _read(found.data or {}, "coming", self._subject)
        return Secret(found.metadata.resource_version, Stored(current, coming), first + second)

    async def write_secret(self, version: str, stored: Stored) -> None:
        """Replace our keys in the Secret; other keys, labels and annotations stay."""
        data = {**_written("current", stored.current), **_written("coming", stored.coming)}
        body = {"metadata": {"resourceVersion": version}, "data": data}
        await self._patch(self._secret, body, MERGE_PATCH)

    async def read_configurations(self) -> list[Configuration]:
        """The existing mutating and validating configurations with our name."""
        found = []
        for resource in KINDS:
            try:
                one = await self._get(self._path(resource), _Configuration)
            except ApiError as error:
                if error.not_found:
                    continue
                raise
            bundles = tuple(_decoded(webhook.client_config.ca_bundle) for webhook in one.webhooks or ())
            found.append(Configuration(resource, self._name, one.metadata.resource_version, bundles))
        return found

    async def write_bundle(self, configuration: Configuration, bundle: bytes) -> None:
        """Set ``caBundle`` of each webhook."""
        text = base64.b64encode(bundle).decode()
        # The version in the patched object is the API server's precondition.
        body: list[dict[str, Any]] = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": configuration.version}
        ]
        body += [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": text}
            for index in range(len(configuration.bundles))
        ]
        await self._patch(self._path(configuration.resource), body, JSON_PATCH)

    def _path(self, resource: str) -> str:
        return f"/apis/admissionregistration.k8s.io/v1/{resource}/{segment(self._name)}"

    async def _get(self, path: str, kind: type[Any]) -> Any:
        answer = await self._session.request("GET", path, timeout_s=_TIMEOUT_S)
        try:
            return msgspec.json.decode(answer, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise MalformedAnswer(path, f"unexpected response ({error})") from error

    async def _patch(self, path: str, body: Mapping[str, Any] | Sequence[Any], kind: str) -> None:
        await self._session.request(
            "PATCH", path, body=msgspec.json.encode(body), content_type=kind, timeout_s=_TIMEOUT_S
        )


def _read(data: Mapping[str, str], which: str, subject: str) -> tuple[Generation | None, tuple[str, ...]]:
    texts = [data.get(f"{which}.{part}") for part in _PARTS]
    if not any(texts):
        return None, ()
    try:
        return read_generation(*(_decoded(text) for text in texts)), ()
    except MalformedCertificate as error:
        return None, (f"{subject}: {which}.* cannot be used and will be replaced: {error}",)


def _decoded(text: str | None) -> bytes:
    try:
        return base64.b64decode(text or "")
    except (binascii.Error, ValueError):
        return b""


def _written(which: str, generation: Generation | None) -> dict[str, str | None]:
    if generation is None:
        return dict.fromkeys((f"{which}.{part}" for part in _PARTS), None)
    pems = (generation.ca_pem, generation.certificate_pem, generation.key_pem)
    return {f"{which}.{part}": base64.b64encode(pem).decode() for part, pem in zip(_PARTS, pems, strict=True)}
