"""PodGroups of scheduling.k8s.io, reduced to the number of pods that must run together."""

from typing import Final

import msgspec

from gpushare.api.objects import ObjectMeta

PATH: Final = "/apis/scheduling.k8s.io/v1beta1/podgroups"


class Gang(msgspec.Struct, rename="camel", gc=False):
    """``spec.schedulingPolicy.gang``."""

    min_count: int = 1


class Policy(msgspec.Struct, gc=False):
    """``spec.schedulingPolicy``; without ``gang``, pods do not need each other."""

    gang: Gang | None = None


class Spec(msgspec.Struct, rename="camel", gc=False):
    """``spec``."""

    scheduling_policy: Policy = msgspec.field(default_factory=Policy)


class PodGroup(msgspec.Struct, gc=False):
    """A PodGroup."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: Spec = msgspec.field(default_factory=Spec)

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class LeastPods:
    """How many pods of each PodGroup must run together, by its key; the handler of an informer."""

    def __init__(self) -> None:
        self.by_key: dict[str, int] = {}

    def synced(self) -> None:
        """The first list is complete."""

    def upsert(self, item: PodGroup) -> None:
        """A PodGroup was added or changed."""
        gang = item.spec.scheduling_policy.gang
        self.by_key[item.key] = 1 if gang is None else gang.min_count

    def remove(self, key: str, last: PodGroup) -> None:
        """A PodGroup was deleted."""
        self.by_key.pop(key, None)


_DECODER: Final = msgspec.json.Decoder(PodGroup)


def decode_pod_group(raw: bytes) -> tuple[str, PodGroup]:
    """Key and PodGroup of an object's JSON."""
    group = _DECODER.decode(raw)
    return group.key, group
