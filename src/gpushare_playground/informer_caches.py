"""Caches that follow the API server."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gpushare.kube.client.session import Session
from gpushare.kube.clock import SYSTEM_CLOCK, Clock
from gpushare.kube.watch.informer import Informer
from gpushare_playground.cache import Cache
from gpushare_playground.objects import Json, Kind, key_of

_DECODER = msgspec.json.Decoder(dict[str, Any])


def informer_of(
    session: Session,
    kind: Kind,
    cache: Cache,
    *,
    params: Mapping[str, str] | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> Informer[Json]:
    """An informer that keeps ``cache`` in line with the server's objects of ``kind``; ``params`` restrict them."""
    return Informer(session, kind.path(), _decode, cache, params=params, clock=clock)


def _decode(raw: bytes) -> tuple[str, Json] | None:
    item = _DECODER.decode(raw)
    metadata = item.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        return None
    return key_of(item), item
