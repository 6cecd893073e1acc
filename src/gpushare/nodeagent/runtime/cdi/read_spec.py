"""A CDI spec read from a file, validated as far as it is used. Pure.

Any error in a spec makes all of it unusable, as in container runtimes. Unknown fields are passed on unchanged: the runtime that
reads them may know them.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from gpushare.nodeagent.errors import NodeAgentError

#: Versions of the format in which the fields that are read here have the same meaning.
_VERSION: Final = re.compile(r"v?(0\.[3-9]|1)\.\d+")
_KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*/[A-Za-z][A-Za-z0-9_.-]*")
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_LISTS: Final = {"env": str, "deviceNodes": dict, "mounts": dict, "hooks": dict}


class BadDescription(NodeAgentError):
    """A CDI file that cannot be used; ``subject`` is its path."""


@dataclass(frozen=True, slots=True)
class CdiDevice:
    """One device: its name and the changes to a container that gets it (the format's ``containerEdits``)."""

    name: str
    edits: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CdiDescription:
    """One CDI file. ``edits`` apply to every container that gets any of its devices."""

    path: str
    version: str
    kind: str
    edits: dict[str, Any]
    devices: tuple[CdiDevice, ...]


def cdi_description(path: str, content: object) -> CdiDescription:
    """The spec in ``content``, which was parsed from JSON or YAML; raises ``BadDescription``."""
    whole = _mapping(path, "the file", content)
    version, kind = whole.get("cdiVersion"), whole.get("kind")
    if not isinstance(version, str) or _VERSION.fullmatch(version) is None:
        raise BadDescription(path, f"cdiVersion is {version!r}, which is no version from 0.3.0 to 1.x")
    if not isinstance(kind, str) or _KIND.fullmatch(kind) is None:
        raise BadDescription(path, f"kind is {kind!r}, which is not of the form vendor/class")
    listed = whole.get("devices")
    if not isinstance(listed, list) or not listed:
        raise BadDescription(path, "it has no devices")
    devices = tuple(_device(path, entry) for entry in listed)
    names = [device.name for device in devices]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise BadDescription(path, f"device {duplicates[0]!r} is there twice")
    return CdiDescription(path, version, kind, _edits(path, "containerEdits", whole), devices)


def _device(path: str, content: object) -> CdiDevice:
    device = _mapping(path, "a device", content)
    name = device.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise BadDescription(path, f"a device has the name {name!r}, which is none that CDI allows")
    return CdiDevice(name, _edits(path, f"containerEdits of device {name!r}", device))


def _edits(path: str, subject: str, content: dict[str, Any]) -> dict[str, Any]:
    edits = content.get("containerEdits")
    if edits is None:
        return {}
    edits = _mapping(path, subject, edits)
    for field, kind in _LISTS.items():
        items = edits.get(field)
        if items is not None and not (
            isinstance(items, list) and all(isinstance(item, kind) for item in items)
        ):
            raise BadDescription(path, f"{field} in {subject} is not a list of {kind.__name__}")
    return edits


def _mapping(path: str, subject: str, content: object) -> dict[str, Any]:
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise BadDescription(path, f"{subject} is not a mapping")
    return content
