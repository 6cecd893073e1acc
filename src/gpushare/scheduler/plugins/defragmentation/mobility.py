"""Which pods may be moved: read from the manifests only where defragmentation is on, so that it costs nothing elsewhere."""

from typing import Final

import msgspec

from gpushare.api import names
from gpushare.scheduler.cache.pod_records import PodRecord
from gpushare.scheduler.framework.interface import DecodePodFn

#: Controllers that make a pod anew when it is evicted, wherever there is room. A Job's would lose its work and count as a
#: failure of it, a DaemonSet's would come back where it was; of others nobody knows.
_MADE_ANEW: Final = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet"})


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
    """``decode`` with ``owner`` and ``room_made`` of the record filled in."""

    def decode_more(raw: bytes) -> tuple[str, PodRecord] | None:
        found = decode(raw)
        if found is None:
            return None
        key, record = found
        meta = _OWNED.decode(raw).metadata
        annotations = meta.annotations or {}
        room_made = "" if record.node else annotations.get(names.ANN_ROOM_MADE, "")
        owner = "" if record.gang is not None else _mover(meta, annotations)
        if owner or room_made:
            record = msgspec.structs.replace(record, owner=owner, room_made=room_made)
        return key, record

    return decode_more


def _mover(meta: _Meta, annotations: dict[str, str]) -> str:
    """The controller that would make the pod anew, if it may be moved: a value that is not known forbids it."""
    owner = next((one for one in meta.owner_references or () if one.controller), None)
    if owner is None:
        return ""
    wish = annotations.get(names.ANN_DEFRAGMENTATION)
    allowed = owner.kind in _MADE_ANEW if wish is None else wish == "true"
    return owner.uid if allowed and owner.kind != "DaemonSet" else ""
