"""OpenAPI documents generated from the fields table: enough for ``kubectl apply``, ``explain`` and validation.

``/openapi/v3`` is what today's kubectl reads. ``/openapi/v2`` is requested by old clients, as protobuf:
they receive a valid document without definitions, and fall back to their built-in knowledge.
"""

import hashlib
from typing import Any, Final

import orjson

from gpushare_playground.apiserver.errors import Object
from gpushare_playground.apiserver.kinds.resources import Registry, Resource
from gpushare_playground.apiserver.wire.fields import FieldType, struct_fields, table

V2_PROTOBUF: Final = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
"""What clients accept. No media type may have an @, so that the response has ``V2_PROTOBUF_SENT``, as the real server's."""
V2_PROTOBUF_SENT: Final = V2_PROTOBUF.replace("@", ".")
_SCALARS: Final[dict[str, Object]] = {
    "str": {"type": "string"},
    "int": {"type": "integer", "format": "int64"},
    "bool": {"type": "boolean"},
    "float": {"type": "number"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "intstr": {"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"},
    "bytes": {"type": "string", "format": "byte"},
}
_QUERY: Final = ("dryRun", "fieldManager", "fieldValidation", "pretty")


def _schema_name(type_name: str) -> str:
    return f"io.k8s.{type_name}"


def _schema_of(kind: FieldType, needed: set[str]) -> Object:
    match kind.form:
        case "scalar":
            return dict(_SCALARS[kind.name])
        case "struct":
            if kind.name not in table():
                return {"type": "object"}
            needed.add(kind.name)
            return {"allOf": [{"$ref": f"#/components/schemas/{_schema_name(kind.name)}"}]}
        case "map":
            item = kind.item
            return {"type": "object", "additionalProperties": _schema_of(item, needed) if item else {}}
        case "list":
            schema: Object = {"type": "array", "items": _schema_of(kind.item, needed) if kind.item else {}}
            if kind.merge_keys:
                schema |= {
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": list(kind.merge_keys),
                    "x-kubernetes-patch-merge-key": kind.merge_keys[0],
                    "x-kubernetes-patch-strategy": "merge",
                }
            elif kind.merge_keys == ():
                schema |= {"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"}
            return schema
    return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _struct_schema(type_name: str | None, needed: set[str]) -> Object:
    fields = struct_fields(type_name)
    schema: Object = {
        "type": "object",
        "properties": {name: _schema_of(kind, needed) for name, kind in fields.items()},
    }
    wanted = [name for name, kind in fields.items() if kind.required]
    if wanted:
        schema["required"] = wanted
    return schema


def _group_version_kind(resource: Resource) -> Object:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _operation(resource: Resource, action: str, schema: str) -> Object:
    media = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    operation: Object = {
        "operationId": f"{action}{resource.group}{resource.version}{resource.kind}",
        "parameters": [
            {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
            for name in _QUERY
        ],
        "responses": {"200": {"description": "OK", "content": media}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _group_version_kind(resource),
    }
    if action in ("post", "put"):
        operation["requestBody"] = {"content": media}
    return operation


def _own_schema(resource: Resource, needed: set[str]) -> tuple[str, Object]:
    if resource.schema is not None and resource.schema in table():
        name = _schema_name(resource.schema)
        schema = _struct_schema(resource.schema, needed)
    else:
        reversed_group = ".".join(reversed((resource.group or "core").split(".")))
        name = f"{reversed_group}.{resource.version}.{resource.kind}"
        validation: Object = dict(resource.validation or {"x-kubernetes-preserve-unknown-fields": True})
        own: Object = {**_struct_schema(None, needed), **validation}
        own["properties"] = {**_struct_schema(None, needed)["properties"], **validation.get("properties", {})}
        own["properties"]["metadata"] = _struct_schema(None, needed)["properties"]["metadata"]
        schema = own
    schema["x-kubernetes-group-version-kind"] = [_group_version_kind(resource)]
    return name, schema


def document_v3(registry: Registry, group: str, version: str) -> Object | None:
    """``/openapi/v3/apis/GROUP/VERSION``; None if nothing is served there."""
    served = registry.serving(group, version)
    if not served:
        return None
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    needed: set[str] = set()
    schemas: Object = {}
    paths: Object = {}
    for resource in served:
        name, schemas_own = _own_schema(resource, needed)
        schemas[name] = schemas_own
        space = "/namespaces/{namespace}" if resource.namespaced else ""
        path = f"{root}{space}/{resource.plural}"
        paths[path] = {"get": _operation(resource, "list", name), "post": _operation(resource, "post", name)}
        paths[path + "/{name}"] = {
            action: _operation(resource, action, name) for action in ("get", "put", "patch", "delete")
        }
    while missing := [needed_name for needed_name in needed if _schema_name(needed_name) not in schemas]:
        for type_name in missing:
            schemas[_schema_name(type_name)] = _struct_schema(type_name, needed)
    return {
        "openapi": "3.0.0",
        "info": {"title": "gpushare playground", "version": "v1.36.3"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def index_v3(registry: Registry) -> Object:
    """``/openapi/v3``: the path of the document of each group and version."""
    paths: Object = {}
    for group, versions in registry.groups().items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            listed = [
                (resource.plural, resource.kind, resource.validation)
                for resource in registry.serving(group, version)
            ]
            digest = hashlib.sha256(orjson.dumps(listed)).hexdigest()[:32].upper()
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def document_v2() -> Object:
    """``/openapi/v2`` as JSON: a valid document that defines nothing."""
    return {
        "swagger": "2.0",
        "info": {"title": "gpushare playground", "version": "v1.36.3"},
        "paths": {},
        "definitions": {},
    }


def _protobuf_field(number: int, content: bytes) -> bytes:
    return bytes(((number << 3) | 2, len(content))) + content


def document_v2_protobuf() -> bytes:
    """The same as ``openapi.v2.Document``: swagger (1), info (2: title 1, version 2), paths (8)."""
    document: dict[str, Any] = document_v2()
    info = _protobuf_field(1, document["info"]["title"].encode()) + _protobuf_field(
        2, document["info"]["version"].encode()
    )
    return _protobuf_field(1, b"2.0") + _protobuf_field(2, info) + _protobuf_field(8, b"")
