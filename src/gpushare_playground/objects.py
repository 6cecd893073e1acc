"""Kubernetes objects as plain JSON, for the parts that simulate Kubernetes itself.

Controllers and scheduler pass complete objects on (a pod template, a pod in an extender's body), so they
keep them as parsed JSON. An object from a cache or a response is never changed in place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec

from gpushare.api.json_objects import Json as Json
from gpushare.api.json_objects import annotations_of as annotations_of
from gpushare.api.json_objects import key_of as key_of
from gpushare.api.json_objects import labels_of as labels_of
from gpushare.api.json_objects import name_of as name_of
from gpushare.api.json_objects import namespace_of as namespace_of
from gpushare.api.json_objects import spec_of as spec_of
from gpushare.api.json_objects import status_of as status_of
from gpushare.api.json_objects import uid_of as uid_of
from gpushare.kube.client.errors import ApiError


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object and the API path at which it is served."""

    api_version: str
    name: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of an object, or of the list (of one namespace, or of all) if ``name`` is empty."""
        parts = ["/api" if "/" not in self.api_version else "/apis", self.api_version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)


PODS: Final = Kind("v1", "Pod", "pods")
NODES: Final = Kind("v1", "Node", "nodes", namespaced=False)
JOBS: Final = Kind("batch/v1", "Job", "jobs")
STATEFUL_SETS: Final = Kind("apps/v1", "StatefulSet", "statefulsets")
REPLICA_SETS: Final = Kind("apps/v1", "ReplicaSet", "replicasets")
DEPLOYMENTS: Final = Kind("apps/v1", "Deployment", "deployments")


def split_key(key: str) -> tuple[str, str]:
    """Namespace and name of ``namespace/name``."""
    namespace, _, name = key.rpartition("/")
    return namespace, name


def is_deleting(item: Json) -> bool:
    """Whether its deletion has begun."""
    return bool(item["metadata"].get("deletionTimestamp"))


def controller_of(item: Json) -> Json | None:
    """The owner reference with ``controller: true``."""
    references = item["metadata"].get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), None)


def controller_reference(kind: Kind, owner: Json) -> Json:
    """The owner reference in a controller's object."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "name": name_of(owner),
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def condition_of(item: Json, kind: str) -> Json | None:
    """The condition of type ``kind`` in its status."""
    conditions: list[Json] = status_of(item).get("conditions") or []
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def is_true(item: Json, kind: str) -> bool:
    """Whether it has the condition of type ``kind`` with status ``True``."""
    return (condition_of(item, kind) or {}).get("status") == "True"


def with_condition(conditions: list[Json], new: Json) -> list[Json]:
    """``conditions`` with ``new`` in place of that of its type; the same list if nothing changes.

    ``lastTransitionTime`` of the old one is kept if the status is the same.
    """
    result = []
    replaced = False
    for old in conditions:
        if old.get("type") != new["type"]:
            result.append(old)
            continue
        replaced = True
        if old.get("status") == new["status"] and "lastTransitionTime" in old:
            new = {**new, "lastTransitionTime": old["lastTransitionTime"]}
        result.append(new)
    if not replaced:
        result.append(new)
    return conditions if result == conditions else result


def time_text(time_ns: int) -> str:
    """A time stamp as the API writes it: whole seconds, UTC."""
    return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str | None) -> float | None:
    """Seconds since 1970 of a time stamp, ``None`` for none or for a text that is not a time stamp."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


class Wire(Protocol):
    """Sends requests to the API server: ``gpushare.kube.client.session.Session``, or a test's."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout_s: float = 10.0,
    ) -> bytes:
        """The response's body; raises ``ApiError`` and ``Unreachable``."""


class Objects:
    """Reads and writes of complete objects; every method raises what ``Wire.request`` raises."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """The current object."""
        return _read(await self._wire.request("GET", kind.path(namespace, name)))

    async def create(self, kind: Kind, namespace: str, body: Json) -> Json:
        """Create it; returns it as stored by the server."""
        sent = {"apiVersion": kind.api_version, "kind": kind.name, **body}
        return _read(await self._wire.request("POST", kind.path(namespace), body=msgspec.json.encode(sent)))

    async def replace_status(self, kind: Kind, item: Json, status: Json) -> Json:
        """Write ``status`` to the version ``item``; ``ApiError.conflict`` if a newer one exists."""
        path = kind.path(namespace_of(item), name_of(item), "status")
        body = {"apiVersion": kind.api_version, "kind": kind.name, **item, "status": status}
        return _read(await self._wire.request("PUT", path, body=msgspec.json.encode(body)))

    async def merge(self, kind: Kind, item: Json, patch: Json, subresource: str = "") -> Json:
        """Apply a JSON merge patch to ``item``, only if it is still the object with that UID."""
        path = kind.path(namespace_of(item), name_of(item), subresource)
        metadata = {"uid": uid_of(item), **(patch.get("metadata") or {})}
        body = msgspec.json.encode({**patch, "metadata": metadata})
        content_type = "application/merge-patch+json"
        return _read(await self._wire.request("PATCH", path, body=body, content_type=content_type))

    async def merge_lists(self, kind: Kind, item: Json, patch: Json, subresource: str = "") -> Json:
        """Like ``merge``, but lists (conditions) are merged by their keys: a strategic merge patch."""
        metadata = {"uid": uid_of(item), **(patch.get("metadata") or {})}
        body = msgspec.json.encode({**patch, "metadata": metadata})
        path = kind.path(namespace_of(item), name_of(item), subresource)
        content_type = "application/strategic-merge-patch+json"
        return _read(await self._wire.request("PATCH", path, body=body, content_type=content_type))

    async def bind(self, pod: Json, node: str) -> None:
        """Bind ``pod`` to ``node``."""
        metadata = {"name": name_of(pod), "namespace": namespace_of(pod), "uid": uid_of(pod)}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        path = PODS.path(namespace_of(pod), name_of(pod), "binding")
        await self._wire.request("POST", path, body=msgspec.json.encode(body))

    async def delete(self, kind: Kind, item: Json, *, grace_s: int | None = None) -> None:
        """Delete ``item``, if it is still the object with that UID; a missing one is accepted."""
        options: Json = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid_of(item)},
        }
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        path = kind.path(namespace_of(item), name_of(item))
        try:
            await self._wire.request("DELETE", path, body=msgspec.json.encode(options))
        except ApiError as error:
            if not (error.not_found or error.conflict):
                raise


def _read(raw: bytes) -> Json:
    return msgspec.json.decode(raw, type=dict[str, Any])
