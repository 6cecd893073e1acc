"""The content of a request: its path, its query, the form of its body and of its response."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import orjson
from aiohttp import web

from gpushare_playground.apiserver import errors
from gpushare_playground.apiserver.errors import ApiError, Object
from gpushare_playground.apiserver.wire import protobuf

BODY_MAX: Final = 3 * 1024 * 1024
JSON_TYPES: Final = ("application/json", "")
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
_NAMESPACE_SUBRESOURCES: Final = ("status", "finalize")


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """A path to objects. ``namespace`` is None if the path has none (all namespaces, or cluster-wide)."""

    group: str
    version: str
    namespace: str | None
    plural: str
    name: str = ""
    subresource: str = ""


def parse_path(path: str) -> ResourcePath | None:
    """Read ``/api/v1/…`` or ``/apis/GROUP/VERSION/…``; None for a path that names no resource."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = None
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in _NAMESPACE_SUBRESOURCES:
        namespace, rest = rest[1], rest[2:]
    padded = (*rest, "", "")
    return ResourcePath(group, version, namespace, padded[0], padded[1], "/".join(rest[2:]))


class Form(Enum):
    """The shape of a response: whole objects, a table, or metadata only."""

    FULL = "full"
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"


_FORMS: Final = {
    "Table": Form.TABLE,
    "PartialObjectMetadata": Form.METADATA,
    "PartialObjectMetadataList": Form.METADATA,
}


def negotiate(accept: str) -> Form:
    """The first form in an ``Accept`` header that is served here. Raises ``ApiError`` 406 if none is."""
    if not accept:
        return Form.FULL
    for offer in accept.split(","):
        media, *parameters = (part.strip() for part in offer.split(";"))
        if media not in ("application/json", "application/*", "*/*"):
            continue
        named = dict(part.split("=", 1) for part in parameters if "=" in part)
        if "as" not in named:
            return Form.FULL
        if named["as"] in _FORMS and named.get("g") == "meta.k8s.io" and named.get("v", "v1") == "v1":
            return _FORMS[named["as"]]
    raise ApiError(406, "NotAcceptable", "only the following media types are accepted: application/json", {})


async def read_body(request: web.BaseRequest) -> bytes:
    """The request's body. Raises ``ApiError`` 413 above 3 MiB."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.content.iter_any():
        size += len(chunk)
        if size > BODY_MAX:
            raise ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_MAX}", {})
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def media_type(request: web.BaseRequest) -> str:
    """The body's media type without parameters."""
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def decode_json(body: bytes) -> Any:
    """JSON of any kind. Raises ``ApiError`` 400."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise errors.bad_request(f"the body is not valid JSON: {error}") from None


async def read_object(
    request: web.BaseRequest, schema_of: protobuf.SchemaOf, *, optional: bool = False
) -> Object:
    """The object in the body. Raises ``ApiError``: 415 for unknown formats, 400 for anything but an object."""
    body = await read_body(request)
    media = media_type(request)
    if optional and not body:
        return {}
    if media in JSON_TYPES or media == "*/*":
        decoded = decode_json(body)
    elif media == protobuf.MEDIA_TYPE:
        decoded = protobuf.decode(body, schema_of)
    else:
        raise errors.unsupported_media(media, f"application/json, {protobuf.MEDIA_TYPE}")
    if not isinstance(decoded, dict):
        raise errors.bad_request("the body must be an object")
    return decoded


def is_true(query: Mapping[str, str], name: str) -> bool:
    """Whether a query parameter is true."""
    return query.get(name, "").lower() in ("true", "1")


def whole_number(query: Mapping[str, str], name: str) -> int | None:
    """A query parameter that is a whole number of 0 or more. Raises ``ApiError`` 400."""
    text = query.get(name, "")
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18:
        raise errors.bad_request(f"{name} must be a whole number of 0 or more, got {text[:40]!r}")
    return int(text)
