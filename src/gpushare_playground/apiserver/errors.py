"""Rejections as clients of the Kubernetes API know them: a ``Status`` with code, reason, message and details."""

import json
from typing import Any

Object = dict[str, Any]
"""A Kubernetes object as decoded from JSON."""

_MAX_TEXT = 4096


class ApiError(Exception):
    """A rejected request.

    ``code`` is the HTTP status, ``reason`` the value that client-go's ``apierrors.Is…`` functions read,
    ``details`` the optional ``StatusDetails``. Base class of all errors that this package raises on purpose.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Object | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message if len(message) <= _MAX_TEXT else message[:_MAX_TEXT] + "…"
        self.details = details
        self.headers = headers or {}

    def status(self) -> Object:
        """The ``v1`` ``Status`` object for the response."""
        body: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if self.details:
            body["details"] = self.details
        body["code"] = self.code
        return body


def qualified(plural: str, group: str) -> str:
    """``pods`` or ``jobs.batch``: the name of a resource in messages."""
    return f"{plural}.{group}" if group else plural


def _details(plural: str, group: str, name: str) -> Object:
    details: Object = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    details["kind"] = plural
    return details


def not_found(plural: str, group: str, name: str) -> ApiError:
    """404: no such object."""
    return ApiError(
        404, "NotFound", f'{qualified(plural, group)} "{name}" not found', _details(plural, group, name)
    )


def unknown_path() -> ApiError:
    """404: nothing is served at this path."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(plural: str, group: str, name: str) -> ApiError:
    """409: an object of that name exists."""
    return ApiError(
        409,
        "AlreadyExists",
        f'{qualified(plural, group)} "{name}" already exists',
        _details(plural, group, name),
    )


def conflict(plural: str, group: str, name: str, reason: str) -> ApiError:
    """409: the object is not in the state that the writer expected."""
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {reason}',
        _details(plural, group, name),
    )


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def bad_request(message: str) -> ApiError:
    """400: the request itself is malformed."""
    return ApiError(400, "BadRequest", message)


def forbidden(plural: str, group: str, name: str, reason: str) -> ApiError:
    """403: understood and rejected."""
    what = f'{qualified(plural, group)} "{name}"' if name else qualified(plural, group)
    return ApiError(403, "Forbidden", f"{what} is forbidden: {reason}", _details(plural, group, name))


def unauthorized() -> ApiError:
    """401: no token, or an unknown one."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def method_not_allowed() -> ApiError:
    """405: the resource does not support this verb."""
    return ApiError(
        405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {}
    )


def unsupported_media(media_type: str, accepted: str) -> ApiError:
    """415: the format of the body is not supported."""
    return ApiError(
        415,
        "UnsupportedMediaType",
        f"the body of the request was in an unknown format - accepted media types include: {accepted}"
        f" (got {media_type or 'none'})",
    )


def expired(message: str) -> ApiError:
    """410: the client's revision is older than the server's history; it must list again."""
    return ApiError(410, "Expired", message)


def too_large_revision(requested: int, current: int) -> ApiError:
    """504: a ``resourceVersion`` from the future (client-go retries)."""
    return ApiError(
        504,
        "Timeout",
        f"Too large resource version: {requested}, current: {current}",
        {
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        },
    )


class FieldError:
    """One error in one field: ``path`` as ``spec.containers[0].name``, ``reason`` a cause."""

    __slots__ = ("detail", "path", "reason", "value")

    def __init__(self, reason: str, path: str, detail: str = "", value: Any = None) -> None:
        self.reason = reason
        self.path = path
        self.detail = detail
        self.value = value

    @property
    def message(self) -> str:
        """The message of the field's cause, without the path."""
        match self.reason:
            case "FieldValueRequired":
                return f"Required value: {self.detail}" if self.detail else "Required value"
            case "FieldValueDuplicate":
                return f"Duplicate value: {_shown(self.value)}"
            case "FieldValueNotSupported":
                return f"Unsupported value: {_shown(self.value)}: {self.detail}"
            case "FieldValueForbidden":
                return f"Forbidden: {self.detail}"
            case "FieldValueNotFound":
                return f"Not found: {_shown(self.value)}"
            case "FieldValueTooMany":
                return f"Too many: {_shown(self.value)}: {self.detail}"
            case _:
                return f"Invalid value: {_shown(self.value)}: {self.detail}"

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, (dict, list)):
        return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)[:400]
    return str(value)


def required(path: str, detail: str = "") -> FieldError:
    """The field is missing."""
    return FieldError("FieldValueRequired", path, detail)


def invalid_value(path: str, value: Any, detail: str) -> FieldError:
    """The field's value is wrong."""
    return FieldError("FieldValueInvalid", path, detail, value)


def duplicate(path: str, value: Any) -> FieldError:
    """The value may occur only once."""
    return FieldError("FieldValueDuplicate", path, "", value)


def forbidden_field(path: str, detail: str) -> FieldError:
    """The field must not be set, or not be changed."""
    return FieldError("FieldValueForbidden", path, detail)


def unsupported(path: str, value: Any, supported: tuple[str, ...]) -> FieldError:
    """The value is not one of the supported ones."""
    words = ", ".join(f'"{word}"' for word in sorted(supported))
    return FieldError("FieldValueNotSupported", path, f"supported values: {words}", value)


def invalid(kind: str, group: str, name: str, errors: list[FieldError]) -> ApiError:
    """422: fields of the object are invalid; each is a cause."""
    texts = [str(error) for error in errors]
    joined = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    kind_name = f"{kind}.{group}" if group else kind
    details = _details(kind, group, name)
    details["causes"] = [
        {"reason": error.reason, "message": error.message, "field": error.path} for error in errors
    ]
    return ApiError(422, "Invalid", f'{kind_name} "{name}" is invalid: {joined}', details)
