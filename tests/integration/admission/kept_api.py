"""The part of an API server that certificate handling needs: one Secret, two configurations, one
pod; over real HTTP.
"""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

SECRET = "/api/v1/namespaces/n/secrets/gpushare-admission"
ROOT = "/apis/admissionregistration.k8s.io/v1"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
CONFIGURATIONS = tuple(f"{ROOT}/{kind}/gpushare-admission" for kind in KINDS)


def _configuration(webhooks: int) -> dict[str, Any]:
    return {
        "metadata": {"name": "gpushare-admission", "resourceVersion": "1"},
        "webhooks": [{"name": f"w{number}", "clientConfig": {"service": {}}} for number in range(webhooks)],
    }


@dataclass
class KeptApi:
    """Objects by path; ``down`` answers 503, ``forbidden`` 403."""

    url: str = ""
    objects: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {
            SECRET: {"metadata": {"name": "gpushare-admission", "resourceVersion": "1"}},
            CONFIGURATIONS[0]: _configuration(1),
            CONFIGURATIONS[1]: _configuration(3),
        }
    )
    down: bool = False
    forbidden: bool = False
    requests: list[str] = field(default_factory=list)

    def ca(self) -> str:
        """The CA bundle for ``/validate``; the same in each of its webhooks."""
        [bundle] = self._bundles(CONFIGURATIONS[1])
        return bundle

    def authorities(self) -> int:
        """Number of distinct CA bundles over all webhooks."""
        found = self._bundles(CONFIGURATIONS[0]) | self._bundles(CONFIGURATIONS[1])
        return max(bundle.count("BEGIN CERTIFICATE") for bundle in found)

    def _bundles(self, path: str) -> set[str]:
        return {
            base64.b64decode(webhook["clientConfig"].get("caBundle", "")).decode()
            for webhook in self.objects[path]["webhooks"]
        }

    def forget(self) -> None:
        """Empty the Secret."""
        self.objects[SECRET].pop("data", None)
        self._changed(self.objects[SECRET])

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append(f"{request.method} {request.path}")
        if self.down or self.forbidden:
            code, reason = (503, "ServiceUnavailable") if self.down else (403, "Forbidden")
            return _status(code, reason, "not now" if self.down else "User cannot get resource")
        found = self.objects.get(request.path)
        if found is None:
            return _status(404, "NotFound", "not found")
        if request.method == "PATCH":
            patch = json.loads(await request.read())
            made = _patched(found, patch, request.content_type)
            if made["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
                return _status(409, "Conflict", "the object has been modified")
            self._changed(made)
            self.objects[request.path] = found = made
        return web.json_response(found)

    def _changed(self, obj: dict[str, Any]) -> None:
        obj["metadata"]["resourceVersion"] = str(int(obj["metadata"]["resourceVersion"]) + 1)


def _status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(
        {"kind": "Status", "code": code, "reason": reason, "message": message}, status=code
    )


def _patched(obj: dict[str, Any], patch: Any, kind: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(obj))
    if kind == "application/merge-patch+json":
        _merge(made, patch)
        return made
    assert kind == "application/json-patch+json"
    for step in patch:
        *way, last = step["path"].strip("/").split("/")
        place: Any = made
        for part in way:
            place = place[int(part)] if isinstance(place, list) else place[part]
        assert step["op"] == "add" or (step["op"] == "replace" and last in place)
        place[last] = step["value"]
    return made


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


@asynccontextmanager
async def kept_api() -> AsyncIterator[KeptApi]:
    """Serve one on a free port of this machine."""
    api = KeptApi()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.handle)
    server = TestServer(app, skip_url_asserts=True)
    await server.start_server(shutdown_timeout=0.05)
    api.url = str(server.make_url("")).rstrip("/")
    try:
        yield api
    finally:
        await server.close()
