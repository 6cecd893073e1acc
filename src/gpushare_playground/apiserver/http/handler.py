"""From an HTTP request to a response: the user, the action, and the part of the server that performs it."""

import hmac
import logging
from collections.abc import Mapping
from typing import Any, Final

import orjson
from aiohttp import web

from gpushare_playground.apiserver import errors
from gpushare_playground.apiserver.errors import ApiError, Object
from gpushare_playground.apiserver.http.kubelet_proxy import KubeletProxy
from gpushare_playground.apiserver.http.service_proxy import pass_on
from gpushare_playground.apiserver.kinds import convert
from gpushare_playground.apiserver.kinds.custom_resources import STORAGE as CUSTOM_DEFINITIONS
from gpushare_playground.apiserver.kinds.custom_resources import CustomResources
from gpushare_playground.apiserver.kinds.naming import WallClock
from gpushare_playground.apiserver.kinds.resources import Registry, Resource
from gpushare_playground.apiserver.reads.lists import Reader, selection
from gpushare_playground.apiserver.reads.watches import Watcher
from gpushare_playground.apiserver.store import Record, Store
from gpushare_playground.apiserver.wire import discovery, openapi
from gpushare_playground.apiserver.wire.requests import (
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    ResourcePath,
    decode_json,
    is_true,
    media_type,
    negotiate,
    parse_path,
    read_body,
    read_object,
)
from gpushare_playground.apiserver.wire.reviews import AccountTokens, review
from gpushare_playground.apiserver.writes.deleting import Deleted, DeleteOptions, Deleter
from gpushare_playground.apiserver.writes.patching import json_patch, merge_patch
from gpushare_playground.apiserver.writes.strategic_merge import strategic_merge
from gpushare_playground.apiserver.writes.subresources import bind, evict, scale_of, set_scale
from gpushare_playground.apiserver.writes.writing import IGNORE, STRICT, WARN, Outcome, WriteOptions, Writer

_LOG: Final = logging.getLogger("gpushare_playground.apiserver")
_OPEN_PATHS: Final = ("/healthz/", "/livez/", "/readyz/", "/version/")
_PROXIED: Final = ("log", "exec")
_PATCH_TYPES: Final = f"{JSON_PATCH}, {MERGE_PATCH}, {STRATEGIC_PATCH}"


def _json(body: bytes, status: int = 200, warnings: list[str] | None = None) -> web.Response:
    response = web.Response(body=body, status=status, content_type="application/json")
    for warning in warnings or ():
        quoted = warning.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{quoted}"')
    return response


def _json_response(obj: Any, status: int = 200) -> web.Response:
    return _json(orjson.dumps(obj), status)


class Handler:
    """Serves every request of the API server. ``tokens`` maps bearer tokens to user names."""

    def __init__(
        self,
        *,
        store: Store,
        registry: Registry,
        writer: Writer,
        deleter: Deleter,
        reader: Reader,
        watcher: Watcher,
        proxy: KubeletProxy,
        customs: CustomResources,
        tokens: Mapping[str, str],
        now: WallClock,
    ) -> None:
        self._store = store
        self._registry = registry
        self._writer = writer
        self._deleter = deleter
        self._reader = reader
        self._watcher = watcher
        self._proxy = proxy
        self._customs = customs
        self._tokens = dict(tokens)
        self._accounts = AccountTokens(now)
        self._now = now

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Respond to one request; every rejection becomes a ``Status``."""
        try:
            return await self._serve(request)
        except ApiError as error:
            response = _json_response(error.status(), error.code)
            response.headers.update(error.headers)
            return response
        except ConnectionError:
            if request.transport is not None and not request.transport.is_closing():
                raise
            # The client disconnected during the response, as happens to a watch of a killed component.
            return web.Response()
        except web.HTTPException:
            raise
        except Exception:
            _LOG.exception("%s %s failed", request.method, request.path)
            failure = ApiError(
                500, "InternalError", "an error on the server has prevented the request from succeeding"
            )
            return _json_response(failure.status(), 500)

    def _user(self, request: web.BaseRequest) -> str:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            offered = token.strip().encode()
            for expected, user in self._tokens.items():
                if hmac.compare_digest(expected.encode(), offered):
                    return user
        raise errors.unauthorized()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if f"{path}/".startswith(_OPEN_PATHS) and request.method in ("GET", "HEAD"):
            return self._open(path)
        user = self._user(request)
        parsed = parse_path(path)
        if parsed is None:
            return self._meta(request, path)
        resource = self._registry.find(parsed.group, parsed.version, parsed.plural)
        if resource is None:
            return await self._review(request, parsed, user)
        if resource.namespaced and parsed.namespace is None and parsed.name:
            raise errors.unknown_path()
        if not resource.namespaced and parsed.namespace is not None:
            raise errors.unknown_path()
        if parsed.subresource:
            return await self._subresource(request, resource, parsed, user)
        return await self._object(request, resource, parsed, user)

    def _open(self, path: str) -> web.Response:
        if path == "/version":
            return _json_response(discovery.VERSION)
        return web.Response(text="ok")

    def _meta(self, request: web.BaseRequest, path: str) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            raise errors.method_not_allowed()
        accept = request.headers.get("Accept", "")
        parts = path.strip("/").split("/")
        match parts:
            case ["api" | "apis"]:
                body = orjson.dumps(discovery.aggregated(self._registry, core=parts[0] == "api"))
                return web.Response(body=body, headers={"Content-Type": discovery.AGGREGATED_TYPE})
            case ["openapi", *rest]:
                return self._openapi(rest, accept)
            case [""]:
                return _json_response(
                    {"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]}
                )
        raise errors.unknown_path()

    def _openapi(self, rest: list[str], accept: str) -> web.Response:
        match rest:
            case ["v2"]:
                if openapi.V2_PROTOBUF in accept or openapi.V2_PROTOBUF_SENT in accept:
                    headers = {"Content-Type": openapi.V2_PROTOBUF_SENT}
                    return web.Response(body=openapi.document_v2_protobuf(), headers=headers)
                return _json_response(openapi.document_v2())
            case ["v3"]:
                return _json_response(openapi.index_v3(self._registry))
            case ["v3", "api", version]:
                document = openapi.document_v3(self._registry, "", version)
            case ["v3", "apis", group, version]:
                document = openapi.document_v3(self._registry, group, version)
            case _:
                document = None
        if document is None:
            raise errors.unknown_path()
        return _json_response(document)

    async def _review(self, request: web.BaseRequest, parsed: ResourcePath, user: str) -> web.Response:
        if request.method == "POST":
            body = await read_object(request, self._registry.schema_of, optional=True)
            reviewed = review(self._accounts, parsed.group, parsed.version, parsed.plural, body, user)
            if reviewed is not None:
                return _json_response(reviewed, 201)
        raise errors.unknown_path()

    async def _object(
        self, request: web.BaseRequest, resource: Resource, parsed: ResourcePath, user: str
    ) -> web.StreamResponse:
        query: Mapping[str, str] = request.query
        namespace = parsed.namespace or ""
        match request.method, bool(parsed.name):
            case "GET" | "HEAD", _:
                return await self._read(request, resource, parsed, query)
            case "POST", False:
                if resource.namespaced and parsed.namespace is None:
                    raise errors.method_not_allowed()
                body = await read_object(request, self._registry.schema_of)
                outcome = self._writer.create(resource, namespace, body, self._options(request, user))
                if resource.storage == CUSTOM_DEFINITIONS:
                    self._customs.establish(outcome.record.name)
                return self._written(request, resource, outcome)
            case "PUT", True:
                body = await read_object(request, self._registry.schema_of)
                options = self._options(request, user)
                outcome = self._writer.replace(resource, namespace, parsed.name, body, options)
                return self._written(request, resource, outcome)
            case "PATCH", True:
                outcome = await self._patch(request, resource, parsed, user, "")
                return self._written(request, resource, outcome)
            case "DELETE", True:
                body = await read_object(request, self._registry.schema_of, optional=True)
                options_ = DeleteOptions.of(body, dict(query))
                return self._deleted(
                    request, resource, self._deleter.delete(resource, namespace, parsed.name, options_)
                )
            case "DELETE", False:
                return await self._delete_collection(request, resource, parsed, query)
        raise errors.method_not_allowed()

    async def _read(
        self,
        request: web.BaseRequest,
        resource: Resource,
        parsed: ResourcePath,
        query: Mapping[str, str],
    ) -> web.StreamResponse:
        form = negotiate(request.headers.get("Accept", ""))
        if parsed.name:
            record = self._writer.present(resource, parsed.namespace or "", parsed.name)
            return _json(self._reader.one(resource, record, form, query))
        if is_true(query, "watch"):
            return await self._watcher.serve(request, resource, parsed.namespace, form, query)
        return _json(self._reader.many(resource, parsed.namespace, form, query))

    def _written(self, request: web.BaseRequest, resource: Resource, outcome: Outcome) -> web.Response:
        form = negotiate(request.headers.get("Accept", ""))
        body = self._reader.one(resource, outcome.record, form, request.query)
        return _json(body, 201 if outcome.created else 200, outcome.warnings)

    def _deleted(self, request: web.BaseRequest, resource: Resource, deleted: Deleted) -> web.Response:
        if not deleted.gone or resource.storage == "pods":
            form = negotiate(request.headers.get("Accept", ""))
            return _json(self._reader.one(resource, deleted.record, form, request.query))
        details = {
            "name": deleted.record.name,
            "group": resource.group,
            "kind": resource.plural,
            "uid": deleted.record.obj["metadata"]["uid"],
        }
        return _json_response(
            {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": {key: value for key, value in details.items() if value},
            }
        )

    async def _delete_collection(
        self,
        request: web.BaseRequest,
        resource: Resource,
        parsed: ResourcePath,
        query: Mapping[str, str],
    ) -> web.Response:
        if resource.namespaced and parsed.namespace is None:
            raise errors.method_not_allowed()
        body = await read_object(request, self._registry.schema_of, optional=True)
        options = DeleteOptions.of(body, dict(query))
        matches = selection(resource, query)
        deleted_records: list[Record] = []
        for record in self._store.items(resource.storage, parsed.namespace):
            if matches is None or matches(record.obj):
                deleted = self._deleter.delete(resource, record.namespace, record.name, options)
                deleted_records.append(deleted.record)
        items = [convert.from_stored(resource, record.obj) for record in deleted_records]
        return _json_response(
            {
                "kind": f"{resource.kind}List",
                "apiVersion": resource.api_version,
                "metadata": {"resourceVersion": str(self._store.revision)},
                "items": items,
            }
        )

    def _options(self, request: web.BaseRequest, user: str) -> WriteOptions:
        query = request.query
        validation = query.get("fieldValidation", WARN)
        if validation not in (IGNORE, WARN, STRICT):
            field_errors = [errors.unsupported("fieldValidation", validation, ("", IGNORE, WARN, STRICT))]
            raise errors.invalid("CreateOptions", "meta.k8s.io", "", field_errors)
        if query.get("dryRun", "All") != "All":
            field_errors = [errors.unsupported("dryRun", query["dryRun"], ("All",))]
            raise errors.invalid("CreateOptions", "meta.k8s.io", "", field_errors)
        return WriteOptions(
            user=user,
            dry_run="dryRun" in query,
            validation=validation,
        )

    async def _patch(
        self,
        request: web.BaseRequest,
        resource: Resource,
        parsed: ResourcePath,
        user: str,
        subresource: str,
    ) -> Outcome:
        body, media = await read_body(request), media_type(request)
        options, namespace = self._options(request, user), parsed.namespace or ""
        patch = decode_json(body)
        match media:
            case "application/json-patch+json":
                return self._writer.patch(
                    resource,
                    namespace,
                    parsed.name,
                    lambda obj: json_patch(obj, patch),
                    options,
                    subresource,
                )
            case "application/merge-patch+json":
                if not isinstance(patch, dict):
                    raise errors.bad_request("a merge patch is an object")
                return self._writer.patch(
                    resource,
                    namespace,
                    parsed.name,
                    lambda obj: merge_patch(obj, patch),
                    options,
                    subresource,
                )
            case "application/strategic-merge-patch+json":
                return self._writer.patch(
                    resource,
                    namespace,
                    parsed.name,
                    lambda obj: strategic_merge(resource.schema, obj, patch),
                    options,
                    subresource,
                )
        raise errors.unsupported_media(media, _PATCH_TYPES)

    async def _subresource(
        self, request: web.BaseRequest, resource: Resource, parsed: ResourcePath, user: str
    ) -> web.StreamResponse:
        name, namespace = parsed.subresource, parsed.namespace or ""
        if name == "scale" and name in resource.subresources:
            return await self._scale(request, resource, parsed, user)
        if resource.plural == "nodes" and name.partition("/")[0] == "proxy" and request.method == "GET":
            return await self._proxy.node(request, parsed.name, name.removeprefix("proxy"))
        if resource.storage == "services" and name.partition("/")[0] == "proxy":
            return await pass_on(request, self._store, namespace, parsed.name, name.partition("/")[2])
        if name not in resource.subresources:
            raise errors.unknown_path()
        if name in _PROXIED:
            record = self._writer.present(resource, namespace, parsed.name)
            return await self._proxy.serve(request, record, name)
        if name in ("status", "finalize", "resize"):
            return await self._part(request, resource, parsed, user)
        if request.method != "POST":
            raise errors.method_not_allowed()
        body = await read_object(request, self._registry.schema_of)
        record = self._writer.present(resource, namespace, parsed.name)
        if name == "token":
            return _json_response(self._accounts.request(record, body), 201)
        if name == "binding":
            self._writer.admit_binding(resource, body, user)
            return _json_response(bind(self._store, record, body, self._now), 201)
        return _json_response(evict(self._store, self._deleter, resource, record, body), 201)

    async def _part(
        self, request: web.BaseRequest, resource: Resource, parsed: ResourcePath, user: str
    ) -> web.StreamResponse:
        namespace = parsed.namespace or ""
        # Finalizing a namespace writes the object itself.
        part = parsed.subresource if parsed.subresource in ("status", "resize") else ""
        match request.method:
            case "GET":
                record = self._writer.present(resource, namespace, parsed.name)
                form = negotiate(request.headers.get("Accept", ""))
                return _json(self._reader.one(resource, record, form, request.query))
            case "PUT":
                body = await read_object(request, self._registry.schema_of)
                options = self._options(request, user)
                return self._written(
                    request,
                    resource,
                    self._writer.replace(resource, namespace, parsed.name, body, options, part),
                )
            case "PATCH":
                return self._written(
                    request, resource, await self._patch(request, resource, parsed, user, part)
                )
        raise errors.method_not_allowed()

    async def _scale(
        self, request: web.BaseRequest, resource: Resource, parsed: ResourcePath, user: str
    ) -> web.StreamResponse:
        record = self._writer.present(resource, parsed.namespace or "", parsed.name)
        scale: Object = scale_of(record)
        match request.method:
            case "GET":
                return _json_response(scale)
            case "PUT":
                wanted = await read_object(request, self._registry.schema_of)
            case "PATCH":
                patch = decode_json(await read_body(request))
                if media_type(request) == JSON_PATCH:
                    wanted = json_patch(scale, patch)
                else:
                    wanted = merge_patch(scale, patch)
            case _:
                raise errors.method_not_allowed()
        # The body was awaited: the workload may have changed meanwhile.
        record = self._writer.present(resource, parsed.namespace or "", parsed.name)
        written = set_scale(self._writer, resource, record, wanted, self._options(request, user))
        return _json_response(scale_of(written))
