"""Which pods may be moved: read from their manifests only if defragmentation is enabled, so that it costs nothing otherwise."""

from typing import Final

import msgspec

from gpushare.api import names
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.interface import DecodePodFn

#: Kinds of controllers that recreate an evicted pod wherever there is room. A Job's pod would lose its work and count as a failure, and a
#: DaemonSet's pod would be recreated on the same node. The behaviour of other kinds is unknown.
_RECREATING_KINDS: Final = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet"})


class _Owner(msgspec.Struct, gc=False):
    uid: str = ""
    kind: str = ""
    controller: bool = False


class _Meta(msgspec.Struct, rename="camel", gc=False):
    owner_references: list[_Owner] | None = None
    annotations: dict[str, str] | None = None


class _Owned(msgspec.Struct, gc=False):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


_OWNED = msgspec.json.Decoder(_Owned)


def with_mobility(decode: DecodePodFn) -> DecodePodFn:
    """Wraps ``decode`` so that it also sets ``owner`` and ``room_made`` of the record."""

    def decode_with_mobility(raw: bytes) -> tuple[str, PodRecord] | None:
        decoded = decode(raw)
        if decoded is None:
            return None
        key, record = decoded
        meta = _OWNED.decode(raw).metadata
        annotations = meta.annotations or {}
        room_made = "" if record.node else annotations.get(names.ANN_ROOM_MADE, "")
        owner = "" if record.gang is not None else _recreating_controller(meta, annotations)
        if owner or room_made:
            record = msgspec.structs.replace(record, owner=owner, room_made=room_made)
        return key, record

    return decode_with_mobility


def _recreating_controller(meta: _Meta, annotations: dict[str, str]) -> str:
    """UID of the controller that would recreate the pod; empty if the pod may not be moved. An unknown annotation value forbids moving."""
    owner = next((reference for reference in meta.owner_references or () if reference.controller), None)
    if owner is None:
        return ""
    annotation = annotations.get(names.ANN_DEFRAGMENTATION)
    allowed = owner.kind in _RECREATING_KINDS if annotation is None else annotation == "true"
    return owner.uid if allowed and owner.kind != "DaemonSet" else ""
