"""Manifests read from files, as parsed JSON."""

from pathlib import Path
from typing import Any, Final

from gpushare.api.json_objects import Json
from gpushare.simulate.errors import SimulateError

#: The file names that kubectl takes for manifests in a folder.
_ENDINGS: Final = (".json", ".yaml", ".yml")


def files_of(path: Path) -> list[Path]:
    """The file itself, or the manifests in a folder (not recursively), by name; raises ``SimulateError``."""
    if not path.is_dir():
        return [path]
    found = sorted(one for one in path.iterdir() if one.suffix in _ENDINGS and one.is_file())
    if not found:
        raise SimulateError(str(path), f"the directory has no file that ends with {', '.join(_ENDINGS)}")
    return found


def read_documents(raw: bytes, subject: str) -> list[Json]:
    """The objects in a YAML or JSON file, items of Lists one by one; raises ``SimulateError``."""
    from gpushare.options.yaml_text import documents

    try:
        read = [_as_json(document, {}) for document in documents(raw)]
    except (ValueError, RecursionError) as error:
        raise SimulateError(subject, f"is no YAML: {' '.join(str(error).split())}") from None
    found: list[Json] = []
    for number, document in enumerate(read, 1):
        if document is None:
            continue
        kind = _kind_of(document, subject, f"document {number}")
        if kind.endswith("List") and isinstance(document.get("items"), list):
            for place, item in enumerate(document["items"], 1):
                _kind_of(item, subject, f"item {place} of document {number}")
                found.append(item)
        else:
            found.append(document)
    return found


def _kind_of(document: Any, subject: str, which: str) -> str:
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(kind, str) or not kind:
        raise SimulateError(subject, f"{which} is no Kubernetes object: it has no kind")
    return kind


def _as_json(value: Any, seen: dict[int, Any]) -> Any:
    """``value`` without cycles and with text keys, as ``kubectl`` converts it; raises ``ValueError``.

    Values repeated by aliases are converted once: ``seen`` has them by identity.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if id(value) not in seen:
        if isinstance(value, dict):
            seen[id(value)] = {_key(key): _as_json(each, seen) for key, each in value.items()}
        elif isinstance(value, list):
            seen[id(value)] = [_as_json(each, seen) for each in value]
        else:
            raise ValueError(f"a {type(value).__name__} has no place in a manifest; write a text, in quotes")
    return seen[id(value)]


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return str(key).lower()
    if isinstance(key, str | int):
        return str(key)
    raise ValueError(f"{key!r} is no key; write a text, in quotes")
