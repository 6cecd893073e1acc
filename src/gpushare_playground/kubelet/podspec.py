"""The pod as the kubelet reads it (core/v1), with the fields that it uses."""

from typing import Any, Final

import msgspec

from gpushare.api.objects import ObjectReference
from gpushare.api.quantity import Quantity

ResourceQuantities = dict[str, Quantity]


class _Camel(msgspec.Struct, rename="camel"):
    pass


class KeySelector(msgspec.Struct):
    """``configMapKeyRef`` and ``secretKeyRef``."""

    name: str = ""
    key: str = ""
    optional: bool = False


class FieldSelector(_Camel):
    """``fieldRef``."""

    field_path: str = ""


class ResourceFieldSelector(_Camel):
    """``resourceFieldRef``."""

    resource: str = ""
    container_name: str = ""


class EnvSource(_Camel):
    """``valueFrom``."""

    field_ref: FieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None


class EnvVar(_Camel):
    """One variable of a container."""

    name: str
    value: str = ""
    value_from: EnvSource | None = None


class EnvFrom(_Camel):
    """All keys of a ConfigMap or Secret as variables."""

    prefix: str = ""
    config_map_ref: KeySelector | None = None
    secret_ref: KeySelector | None = None


class Resources(msgspec.Struct):
    """``resources`` of a container."""

    limits: ResourceQuantities | None = None
    requests: ResourceQuantities | None = None


class VolumeMount(_Camel):
    """Where a volume appears in a container."""

    name: str
    mount_path: str
    sub_path: str = ""


class Container(_Camel):
    """A container; ``restart_policy`` ``Always`` makes an init container a sidecar."""

    name: str
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    working_dir: str = ""
    env: list[EnvVar] | None = None
    env_from: list[EnvFrom] | None = None
    resources: Resources | None = None
    volume_mounts: list[VolumeMount] | None = None
    restart_policy: str | None = None

    @property
    def sidecar(self) -> bool:
        """Whether this init container runs next to all that start after it."""
        return self.restart_policy == "Always"

    @property
    def limits(self) -> ResourceQuantities:
        """Its limits."""
        return (self.resources.limits if self.resources else None) or {}

    @property
    def requests(self) -> ResourceQuantities:
        """Its requests, with limits in place of those that are not set."""
        return {**self.limits, **((self.resources.requests if self.resources else None) or {})}


class HostPath(msgspec.Struct):
    """A path of this machine."""

    path: str
    type: str = ""


class KeyToPath(msgspec.Struct):
    """One key of a ConfigMap or Secret as a file."""

    key: str
    path: str


class ConfigMapVolume(msgspec.Struct):
    """A ConfigMap as files."""

    name: str = ""
    items: list[KeyToPath] | None = None
    optional: bool = False


class SecretVolume(_Camel):
    """A Secret as files."""

    secret_name: str = ""
    items: list[KeyToPath] | None = None
    optional: bool = False


class Volume(_Camel):
    """A volume. Kinds that are not listed here result in an empty folder."""

    name: str
    host_path: HostPath | None = None
    config_map: ConfigMapVolume | None = None
    secret: SecretVolume | None = None


class Meta(_Camel):
    """``metadata``."""

    name: str = ""
    namespace: str = "default"
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None


class Spec(_Camel):
    """``spec`` of a pod."""

    containers: list[Container] = []
    init_containers: list[Container] | None = None
    volumes: list[Volume] | None = None
    node_name: str = ""
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    hostname: str = ""
    host_network: bool = False
    service_account_name: str = ""


class Status(_Camel):
    """``status`` as written by others: only what is preserved."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: list[dict[str, Any]] | None = None
    container_statuses: list[dict[str, Any]] | None = None
    init_container_statuses: list[dict[str, Any]] | None = None


class Pod(msgspec.Struct):
    """A pod bound to this node."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: Spec = msgspec.field(default_factory=Spec)
    status: Status = msgspec.field(default_factory=Status)

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def uid(self) -> str:
        """Distinguishes it from an earlier pod of the same name."""
        return self.metadata.uid

    @property
    def init_containers(self) -> list[Container]:
        """Init containers and sidecars, in the order in which they start."""
        return self.spec.init_containers or []

    @property
    def ordered(self) -> list[Container]:
        """Every container, in the order in which they start."""
        return [*self.init_containers, *self.spec.containers]

    @property
    def deleted(self) -> bool:
        """Whether its deletion was requested."""
        return self.metadata.deletion_timestamp is not None

    @property
    def finished(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def reference(self) -> ObjectReference:
        """For events about it."""
        return ObjectReference("Pod", self.metadata.name, self.metadata.namespace, self.metadata.uid)


_DECODER: Final = msgspec.json.Decoder(Pod)


def decode_pod(raw: bytes) -> Pod:
    """A pod from JSON; raises ``msgspec.ValidationError`` on a wrong shape."""
    return _DECODER.decode(raw)
