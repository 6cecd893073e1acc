"""The content of cells: functions from an object and the current time to a text or number."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from gpushare_playground.apiserver.errors import Object
from gpushare_playground.apiserver.kinds.selectors import selector_text

Cell = Callable[[Object, datetime], Any]
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400
_YEAR: Final = 365 * _DAY


def short_duration(seconds: float) -> str:
    """``59s``, ``5m30s``, ``3h4m``, ``2d``: a duration as kubectl shows it, with two units if they matter."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 0:
        return "0s"
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    if whole < 10 * _MINUTE:
        rest = whole % _MINUTE
        return f"{whole // _MINUTE}m{rest}s" if rest else f"{whole // _MINUTE}m"
    if whole < 3 * _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < 8 * _HOUR:
        rest = whole // _MINUTE % 60
        return f"{whole // _HOUR}h{rest}m" if rest else f"{whole // _HOUR}h"
    if whole < 2 * _DAY:
        return f"{whole // _HOUR}h"
    if whole < 8 * _DAY:
        rest = whole // _HOUR % 24
        return f"{whole // _DAY}d{rest}h" if rest else f"{whole // _DAY}d"
    if whole < 2 * _YEAR:
        return f"{whole // _DAY}d"
    if whole < 8 * _YEAR:
        rest = whole // _DAY % 365
        return f"{whole // _YEAR}y{rest}d" if rest else f"{whole // _YEAR}y"
    return f"{whole // _YEAR}y"


def moment(text: Any) -> datetime | None:
    """The time of a time stamp, None without one."""
    if not isinstance(text, str):
        return None
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo is not None else None


def _span(start: Any, end: datetime) -> str:
    start_time = moment(start)
    return "<unknown>" if start_time is None else short_duration((end - start_time).total_seconds())


def dig(obj: Any, path: str) -> Any:
    """The value at a dotted path, None if a step is missing."""
    value = obj
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return value


def age(obj: Object, now: datetime) -> str:
    """Time since the object was created."""
    return _span(obj["metadata"].get("creationTimestamp"), now)


def text(path: str, absent: str) -> Cell:
    """The text at ``path``, ``absent`` if it has none."""

    def cell(obj: Object, _now: datetime) -> str:
        value = dig(obj, path)
        return absent if value is None or value == "" else str(value)

    return cell


def node_kernel(obj: Object, _now: datetime) -> str:
    """A node's kernel and architecture."""
    kernel, machine = dig(obj, "status.nodeInfo.kernelVersion"), dig(obj, "status.nodeInfo.architecture")
    return f"{kernel or '<unknown>'} ({machine})" if machine else str(kernel or "<unknown>")


def number(path: str) -> Cell:
    """The number at ``path``, 0 if it has none."""
    return lambda obj, _now: dig(obj, path) or 0


def yes_no(path: str) -> Cell:
    """``true`` or ``false``, as text."""
    return lambda obj, _now: "true" if dig(obj, path) else "false"


def data_count(obj: Object, _now: datetime) -> int:
    """Number of entries of a config map or secret."""
    return len(obj.get("data") or ()) + len(obj.get("binaryData") or ())


def _pairs(pairs: Object | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((pairs or {}).items())) or "<none>"


def map_selector(obj: Object, _now: datetime) -> str:
    """A service's selector."""
    return _pairs(dig(obj, "spec.selector"))


def selector(obj: Object, _now: datetime) -> str:
    """A workload's selector."""
    return selector_text(dig(obj, "spec.selector")) or "<none>"


def template_containers(obj: Object, _now: datetime) -> str:
    """Names of a template's containers."""
    return ",".join(one.get("name", "") for one in dig(obj, "spec.template.spec.containers") or ())


def template_images(obj: Object, _now: datetime) -> str:
    """Images of a template's containers."""
    return ",".join(one.get("image", "") for one in dig(obj, "spec.template.spec.containers") or ())


def ready_of_replicas(obj: Object, _now: datetime) -> str:
    """``1/3``."""
    return f"{dig(obj, 'status.readyReplicas') or 0}/{dig(obj, 'spec.replicas') or 0}"


def node_status(node: Object, _now: datetime) -> str:
    """``Ready``, ``NotReady``, ``Unknown``, with ``,SchedulingDisabled`` on a cordoned node."""
    states = ["Unknown"]
    for condition in dig(node, "status.conditions") or ():
        if condition.get("type") == "Ready":
            states = ["Ready" if condition.get("status") == "True" else "NotReady"]
    if dig(node, "spec.unschedulable"):
        states.append("SchedulingDisabled")
    return ",".join(states)


def node_roles(node: Object, _now: datetime) -> str:
    """Roles from the node's labels."""
    labels = node["metadata"].get("labels") or {}
    prefix = "node-role.kubernetes.io/"
    roles = {key.removeprefix(prefix) for key in labels if key.startswith(prefix)}
    if labels.get("kubernetes.io/role"):
        roles.add(labels["kubernetes.io/role"])
    return ",".join(sorted(role for role in roles if role)) or "<none>"


def node_address(kind: str) -> Cell:
    """A node's address of one type."""

    def cell(node: Object, _now: datetime) -> str:
        for address in dig(node, "status.addresses") or ():
            if address.get("type") == kind:
                return str(address.get("address", ""))
        return "<none>"

    return cell


def external_addresses(service: Object, _now: datetime) -> str:
    """A service's external addresses."""
    if dig(service, "spec.type") == "ExternalName":
        return dig(service, "spec.externalName") or "<none>"
    addresses = list(dig(service, "spec.externalIPs") or ())
    addresses += [
        one.get("ip") or one.get("hostname") for one in dig(service, "status.loadBalancer.ingress") or ()
    ]
    return ",".join(addresses) or "<none>"


def service_ports(service: Object, _now: datetime) -> str:
    """``80/TCP,443:30443/TCP``."""
    return (
        ",".join(
            f"{port['port']}:{port['nodePort']}/{port['protocol']}"
            if port.get("nodePort")
            else f"{port['port']}/{port['protocol']}"
            for port in dig(service, "spec.ports") or ()
        )
        or "<none>"
    )


def quota(prefix: str) -> Cell:
    """``cpu: 1/2``: used of hard, for requests (and counts) or for limits."""

    def cell(obj: Object, _now: datetime) -> str:
        hard, used = dig(obj, "status.hard") or dig(obj, "spec.hard") or {}, dig(obj, "status.used") or {}
        return ", ".join(
            f"{name}: {used.get(name, '0')}/{hard[name]}"
            for name in sorted(hard)
            if name.startswith("limits.") == (prefix == "limits.")
        )

    return cell


def _condition(obj: Object, kind: str) -> bool:
    return any(
        one.get("type") == kind and one.get("status") == "True" for one in dig(obj, "status.conditions") or ()
    )


def job_status(job: Object, _now: datetime) -> str:
    """``Complete``, ``Failed``, ``Terminating`` or ``Running``."""
    for kind, word in (("Complete", "Complete"), ("Failed", "Failed")):
        if _condition(job, kind):
            return word
    if job["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if _condition(job, "FailureTarget"):
        return "FailureTarget"
    return "SuccessCriteriaMet" if _condition(job, "SuccessCriteriaMet") else "Running"


def job_completions(job: Object, _now: datetime) -> str:
    """``0/1``, or ``0/1 of 3`` for a work queue."""
    done, wanted = dig(job, "status.succeeded") or 0, dig(job, "spec.completions")
    if wanted is not None:
        return f"{done}/{wanted}"
    parallel = dig(job, "spec.parallelism") or 0
    return f"{done}/1 of {parallel}" if parallel > 1 else f"{done}/1"


def job_duration(job: Object, now: datetime) -> str:
    """From start to completion, or until now."""
    start = dig(job, "status.startTime")
    if start is None:
        return ""
    return _span(start, moment(dig(job, "status.completionTime")) or now)


def event_part(leaf: str) -> Cell:
    """A field of the reference to the object that an event is about."""
    return lambda event, _now: (event.get("involvedObject") or event.get("regarding") or {}).get(leaf, "")


def event_object(event: Object, _now: datetime) -> str:
    """``pod/NAME``."""
    about = event.get("involvedObject") or event.get("regarding") or {}
    kind, name = about.get("kind", "").lower(), about.get("name", "")
    return f"{kind}/{name}" if name else kind


def event_source(event: Object, _now: datetime) -> str:
    """Component and host that reported it."""
    source = event.get("source") or event.get("deprecatedSource") or {}
    component = source.get("component") or event.get("reportingComponent") or event.get("reportingController")
    host = source.get("host") or event.get("reportingInstance")
    return ", ".join(part for part in (component, host) if part)


def event_message(event: Object, _now: datetime) -> str:
    """The event's message."""
    return str(event.get("message") or event.get("note") or "").strip()


def _event_times(event: Object) -> tuple[Any, Any]:
    first = event.get("firstTimestamp") or event.get("deprecatedFirstTimestamp") or event.get("eventTime")
    last = (
        (event.get("series") or {}).get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("deprecatedLastTimestamp")
        or first
    )
    return first, last


def event_first_seen(event: Object, now: datetime) -> str:
    """When it was first seen."""
    return _span(_event_times(event)[0], now)


def event_last_seen(event: Object, now: datetime) -> str:
    """When it was last seen."""
    return _span(_event_times(event)[1], now)


def event_count(event: Object, _now: datetime) -> int:
    """How often it was seen."""
    series = (event.get("series") or {}).get("count")
    return series or event.get("count") or event.get("deprecatedCount") or 1


def row_conditions(pod: Object) -> list[Object]:
    """Row conditions: an ended pod's row is ``Completed``."""
    phase = dig(pod, "status.phase")
    if phase not in ("Succeeded", "Failed"):
        return []
    reason = dig(pod, "status.reason") or ""
    message = "The pod has completed successfully." if phase == "Succeeded" else "The pod failed."
    return [{"type": "Completed", "status": "True", "reason": reason or phase, "message": message}]


def custom_column(column: Object) -> tuple[str, int, Cell]:
    """A printer column of a CustomResourceDefinition; its JSON path may be dotted, quoted and indexed."""
    steps = _json_path(column["jsonPath"])
    is_date = column.get("type") == "date"

    def cell(obj: Object, now: datetime) -> Any:
        value: Any = obj
        for step in steps:
            if isinstance(value, dict) and isinstance(step, str):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and -len(value) <= step < len(value):
                value = value[step]
            else:
                return None
        if is_date:
            return None if value is None else _span(value, now)
        if isinstance(value, (dict, list)):
            return str(value)
        return value

    return column["name"], column.get("priority", 0), cell


def _json_path(path: str) -> list[str | int]:
    steps: list[str | int] = []
    word, position = "", 0
    while position < len(path):
        sign = path[position]
        if sign == "\\" and position + 1 < len(path):
            word += path[position + 1]
            position += 2
            continue
        if sign in ".[":
            if word:
                steps.append(word)
            word = ""
        if sign == "[":
            end = path.find("]", position)
            inner = path[position + 1 : end if end > 0 else len(path)].strip("'\"")
            steps.append(int(inner) if inner.lstrip("-").isdecimal() else inner)
            position = end if end > 0 else len(path)
        elif sign != ".":
            word += sign
        position += 1
    return [*steps, word] if word else steps
