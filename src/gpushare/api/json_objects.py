"""Accessors for Kubernetes objects as parsed JSON, for code that passes whole objects on or reads rare fields.

Objects from a cache or an answer must not be changed in place.
"""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


def name_of(item: Json) -> str:
    """``metadata.name``."""
    return str(item["metadata"]["name"])


def namespace_of(item: Json) -> str:
    """``metadata.namespace``, empty for objects of the whole cluster."""
    return str(item["metadata"].get("namespace") or "")


def uid_of(item: Json) -> str:
    """``metadata.uid``."""
    return str(item["metadata"].get("uid") or "")


def key_of(item: Json) -> str:
    """``namespace/name``, or ``name`` for objects of the whole cluster."""
    namespace = namespace_of(item)
    return f"{namespace}/{name_of(item)}" if namespace else name_of(item)


def labels_of(item: Json) -> Mapping[str, str]:
    """``metadata.labels``, never ``None``."""
    return item["metadata"].get("labels") or {}


def annotations_of(item: Json) -> Mapping[str, str]:
    """``metadata.annotations``, never ``None``."""
    return item["metadata"].get("annotations") or {}


def spec_of(item: Json) -> Json:
    """``spec``, never ``None``."""
    return item.get("spec") or {}


def status_of(item: Json) -> Json:
    """``status``, never ``None``."""
    return item.get("status") or {}
