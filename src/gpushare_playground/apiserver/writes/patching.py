"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386). Neither changes its arguments."""

import copy
import logging
from typing import Any, Final

from gpushare_playground.apiserver.errors import ApiError, Object, bad_request

_log = logging.getLogger(__name__)
MAX_OPERATIONS: Final = 10_000


def merge_patch(target: Any, patch: Any) -> Any:
    """``patch`` merged into ``target``: maps merge, null removes, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def _refused(reason: str) -> ApiError:
    # The real server does not report what was wrong.
    _log.info("a JSON patch is refused: %s", reason)
    return ApiError(422, "Invalid", "the server rejected our request due to an error in our request")


def _steps(pointer: Any) -> list[str]:
    if pointer == "":
        return []
    if not isinstance(pointer, str) or not pointer.startswith("/"):
        raise _refused(f"JSON pointer {pointer!r} must start with /")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")]


def _index(items: list[Any], step: str, *, end: bool) -> int:
    if step == "-" and end:
        return len(items)
    limit = len(items) if end else len(items) - 1
    if not step.isdecimal() or (len(step) > 1 and step[0] == "0") or int(step) > limit:
        raise _refused(f"array index {step!r} is out of bounds")
    return int(step)


def _get(document: Any, pointer: Any) -> Any:
    value = document
    for step in _steps(pointer):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list):
            value = value[_index(value, step, end=False)]
        else:
            raise _refused(f"path {pointer!r} does not exist")
    return value


def _set(document: Any, pointer: Any, value: Any, *, insert: bool) -> Any:
    steps = _steps(pointer)
    if not steps:
        return value
    parent = _get(document, pointer[: pointer.rindex("/")])
    last = steps[-1]
    if isinstance(parent, dict):
        if not insert and last not in parent:
            raise _refused(f"path {pointer!r} does not exist")
        parent[last] = value
    elif isinstance(parent, list):
        if insert:
            parent.insert(_index(parent, last, end=True), value)
        else:
            parent[_index(parent, last, end=False)] = value
    else:
        raise _refused(f"path {pointer!r} does not exist")
    return document


def _remove(document: Any, pointer: Any) -> Any:
    steps = _steps(pointer)
    if not steps:
        raise _refused("the whole document cannot be removed")
    parent = _get(document, pointer[: pointer.rindex("/")])
    if isinstance(parent, dict) and steps[-1] in parent:
        return parent.pop(steps[-1])
    if isinstance(parent, list):
        return parent.pop(_index(parent, steps[-1], end=False))
    raise _refused(f"path {pointer!r} does not exist")


def json_patch(target: Object, operations: Any) -> Object:
    """``operations`` applied in order to a copy of ``target``.

    Raises ``ApiError`` 400 if they are not a list of operations, 422 if one cannot be applied.
    """
    if not isinstance(operations, list):
        raise bad_request("a JSON patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise ApiError(
            413,
            "RequestEntityTooLarge",
            f"the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}",
        )
    document: Any = copy.deepcopy(target)
    for operation in operations:
        if not isinstance(operation, dict) or "path" not in operation:
            raise bad_request("each operation of a JSON patch is an object with op and path")
        document = _operate(document, operation)
    if not isinstance(document, dict):
        raise _refused("the patched document is no object")
    return document


def _operate(document: Any, operation: Object) -> Any:
    path, kind = operation["path"], operation.get("op")
    if kind in ("add", "replace", "test") and "value" not in operation:
        raise bad_request(f"the operation {kind} of a JSON patch needs a value")
    match kind:
        case "add":
            return _set(document, path, copy.deepcopy(operation["value"]), insert=True)
        case "replace":
            return _set(document, path, copy.deepcopy(operation["value"]), insert=False)
        case "remove":
            _remove(document, path)
            return document
        case "test":
            if _get(document, path) != operation["value"]:
                raise _refused(f"testing path {path!r} failed")
            return document
        case "copy":
            return _set(document, path, copy.deepcopy(_get(document, operation.get("from"))), insert=True)
        case "move":
            return _set(document, path, _remove(document, operation.get("from")), insert=True)
    raise bad_request(f"unknown JSON patch operation {kind!r}")
