"""Label and field selectors: parsed once, evaluated for every object."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare_playground.apiserver.errors import ApiError, Object, bad_request

_TOKEN: Final = re.compile(r"\s*(==|!=|=|!|>|<|,|\(|\)|[^\s=!<>,()]+)")
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

Predicate = Callable[[Object], bool]


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label: ``operator`` is in, notin, exists, absent, gt or lt."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels satisfies the condition."""
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value is not None and value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "absent":
                return value is None
        if value is None or not re.fullmatch(r"-?\d{1,19}", value):
            return False
        bound = int(next(iter(self.values)))
        return int(value) > bound if self.operator == "gt" else int(value) < bound


def is_label_key(key: str) -> bool:
    """Whether ``key`` is a valid label key: an optional DNS prefix and a name of at most 63 characters."""
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= 253 and _PREFIX.fullmatch(prefix)):
        return False
    return _NAME.fullmatch(name) is not None


def is_label_value(value: str) -> bool:
    """Whether ``value`` is a valid label value."""
    return _VALUE.fullmatch(value) is not None


def _unreadable(reason: str) -> ApiError:
    return bad_request(f"unable to parse requirement: {reason[:200]}")


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        position, text_end = 0, len(text.rstrip())
        while position < text_end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise _unreadable(f"cannot read from position {position}")
            self.tokens.append(match[1])
            position = match.end()
        self.position = 0

    def peek(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self) -> str:
        token = self.peek()
        if token is None:
            raise _unreadable("it ends too early")
        self.position += 1
        return token

    def key(self) -> str:
        token = self.take()
        if not is_label_key(token):
            raise _unreadable(f"{token!r} is not a label key")
        return token

    def value(self) -> str:
        following = self.peek()
        if following is None or following == ",":
            return ""
        token = self.take()
        if not is_label_value(token):
            raise _unreadable(f"{token!r} is not a label value")
        return token

    def value_set(self) -> frozenset[str]:
        if (token := self.take()) != "(":
            raise _unreadable(f"found '{token}' expected: '('")
        values: set[str] = set()
        while True:
            token = self.take()
            if token == ")":
                return frozenset(values or {""})
            if token == ",":
                continue
            if not is_label_value(token):
                raise _unreadable(f"{token!r} is not a label value")
            values.add(token)

    def requirement(self) -> Requirement:
        if self.peek() == "!":
            self.take()
            return Requirement(self.key(), "absent")
        key = self.key()
        operator = self.peek()
        if operator is None or operator == ",":
            return Requirement(key, "exists")
        self.take()
        match operator:
            case "=" | "==":
                return Requirement(key, "in", frozenset((self.value(),)))
            case "!=":
                return Requirement(key, "notin", frozenset((self.value(),)))
            case "in" | "notin":
                return Requirement(key, operator, self.value_set())
            case ">" | "<":
                value = self.take()
                if not re.fullmatch(r"-?\d{1,19}", value):
                    raise _unreadable(f"{value!r} is not an integer")
                return Requirement(key, "gt" if operator == ">" else "lt", frozenset((value,)))
        raise _unreadable(f"unknown operator {operator!r}")


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """Read ``a=b,c!=d,e in (f,g),!h``. Raises ``ApiError`` 400."""
    parser = _Parser(text)
    if parser.peek() is None:
        return ()
    requirements = [parser.requirement()]
    while parser.peek() is not None:
        if parser.take() != ",":
            raise _unreadable("expected a comma between conditions")
        requirements.append(parser.requirement())
    return tuple(requirements)


def selector_requirements(selector: Object | None) -> tuple[Requirement, ...] | None:
    """The conditions of a ``LabelSelector`` object; None (matches nothing) without a selector."""
    if selector is None:
        return None
    requirements = [
        Requirement(key, "in", frozenset((value,)))
        for key, value in (selector.get("matchLabels") or {}).items()
    ]
    operators = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}
    for expression in selector.get("matchExpressions") or ():
        operator = operators.get(expression.get("operator", ""), "absent")
        requirements.append(
            Requirement(expression.get("key", ""), operator, frozenset(expression.get("values") or ()))
        )
    return tuple(requirements)


def selector_text(selector: Object | None) -> str:
    """A ``LabelSelector`` object as text, as the scale subresource shows it."""
    parts: list[str] = []
    for requirement in selector_requirements(selector) or ():
        values = ",".join(sorted(requirement.values))
        match requirement.operator:
            case "in":
                parts.append(
                    f"{requirement.key}={values}"
                    if len(requirement.values) == 1
                    else f"{requirement.key} in ({values})"
                )
            case "notin":
                parts.append(f"{requirement.key} notin ({values})")
            case "exists":
                parts.append(requirement.key)
            case _:
                parts.append(f"!{requirement.key}")
    return ",".join(parts)


# Fields that can be selected by, in addition to metadata.name and metadata.namespace.
_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "pods": (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
        "spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName",
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "services": ("spec.clusterIP", "spec.type"),
    "jobs.batch": ("status.successful",),
    "replicasets.apps": ("status.replicas",),
    "events": (
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
        "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
        "reason", "reportingComponent", "source", "type",
    ),
    "resourceslices.resource.k8s.io": ("spec.nodeName", "spec.driver"),
}  # fmt: skip
_ALIASES: Final[dict[str, dict[str, str]]] = {
    "events": {
        **{
            f"regarding.{leaf}": f"involvedObject.{leaf}"
            for leaf in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
        },
        "reportingController": "reportingComponent",
    }
}
_FALSE_WHEN_ABSENT: Final = frozenset(("spec.unschedulable", "spec.hostNetwork"))


def _dig(obj: Object, path: tuple[str, ...]) -> str:
    value: Any = obj
    for step in path:
        if not isinstance(value, dict):
            return ""
        value = value.get(step)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _reader(storage: str, name: str) -> Callable[[Object], str]:
    if storage == "events" and name == "source":
        return lambda obj: _dig(obj, ("source", "component")) or _dig(obj, ("reportingComponent",))
    path = tuple(name.split("."))
    if name in _FALSE_WHEN_ABSENT:
        return lambda obj: _dig(obj, path) or "false"
    return lambda obj: _dig(obj, path)


def parse_fields(text: str, storage: str, extra: tuple[str, ...] = ()) -> list[Predicate]:
    """Read ``spec.nodeName=a,status.phase!=Failed`` for a collection; ``extra`` are a CRD's selectable fields.

    Raises ``ApiError`` 400 for a field that cannot be selected by.
    """
    predicates: list[Predicate] = []
    for term in re.split(r"(?<!\\),", text):
        if not term.strip():
            continue
        match = re.fullmatch(r"\s*([^=!]+?)\s*(==|!=|=)(.*)", term)
        if match is None:
            raise bad_request(f"invalid field selector: {term[:200]!r}; can't understand it")
        name, operator = match[1], match[2]
        wanted = re.sub(r"\\([,=\\])", r"\1", match[3].strip())
        name = _ALIASES.get(storage, {}).get(name, name)
        if name not in ("metadata.name", "metadata.namespace", *_FIELDS.get(storage, ()), *extra):
            raise bad_request(f"field label not supported: {match[1]}")
        predicates.append(_compare(_reader(storage, name), operator != "!=", wanted))
    return predicates


def _compare(read: Callable[[Object], str], equal: bool, wanted: str) -> Predicate:  # noqa: FBT001
    if equal:
        return lambda obj: read(obj) == wanted
    return lambda obj: read(obj) != wanted


def predicate(
    label_text: str, field_text: str, storage: str, extra: tuple[str, ...] = ()
) -> Predicate | None:
    """One test for both selectors of a request; None if everything matches."""
    requirements = parse_labels(label_text) if label_text else ()
    fields = parse_fields(field_text, storage, extra) if field_text else []
    if not requirements and not fields:
        return None

    def matches(obj: Object) -> bool:
        if requirements:
            labels = obj.get("metadata", {}).get("labels") or {}
            if not all(one.matches(labels) for one in requirements):
                return False
        return all(one(obj) for one in fields)

    return matches
