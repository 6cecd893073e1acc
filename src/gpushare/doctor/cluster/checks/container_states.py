"""States of a pod's containers: what one is waiting for, how it ended, and whether it may have logged anything."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

Json = dict[str, Any]
#: Reasons with which a container waits for its image.
_OF_IMAGES: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "ImageInspectError",
        "InvalidImageName",
        "RegistryUnavailable",
    }
)
#: It is waiting, but has run before.
_CRASHES: Final = "CrashLoopBackOff"
#: A kubelet's message about an image repeats its name three times before the actual problem.
_LONGEST: Final = 300


class Unpulled(NamedTuple):
    """A container that waits for its image, on a node (empty: unknown)."""

    container: str
    image: str
    node: str


def statuses(pod: Json) -> Iterator[Json]:
    """The statuses of all its containers, init containers first."""
    status = pod.get("status") or {}
    for kind in ("initContainerStatuses", "containerStatuses"):
        yield from status.get(kind) or ()


def status_of(pod: Json, container: str) -> Json:
    """The status of one container; empty if it has none."""
    return next((status for status in statuses(pod) if status.get("name") == container), {})


def why_of(status: Json) -> str:
    """What a container is waiting for, or how it ended, after a colon; empty if unknown."""
    for state in (_state(status, "state", "waiting"), _state(status, "lastState", "terminated")):
        if state:
            message = state.get("message") or state.get("reason") or f"exit code {state.get('exitCode')}"
            return f": {shortened(str(message))}"
    return ""


def shortened(text: str) -> str:
    """On one line and not too long, cut between words."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST + 1].rpartition(' ')[0]} …"


def has_log(pod: Json, container: str = "") -> bool:
    """Whether the container (or each one, without a name) has started: otherwise there is no log."""
    relevant = [status for status in statuses(pod) if container in ("", status.get("name"))]
    if not relevant:
        return (pod.get("status") or {}).get("phase") != "Pending"
    return all(map(_has_started, relevant))


def unpulled(pod: Json) -> Unpulled | None:
    """The first container that waits for its image."""
    node = str((pod.get("spec") or {}).get("nodeName") or "")
    for status in statuses(pod):
        if (_state(status, "state", "waiting") or {}).get("reason") in _OF_IMAGES:
            return Unpulled(str(status.get("name") or ""), str(status.get("image") or ""), node)
    return None


def _has_started(status: Json) -> bool:
    waiting = _state(status, "state", "waiting")
    return (
        waiting is None
        or waiting.get("reason") == _CRASHES
        or bool(_state(status, "lastState", "terminated"))
    )


def _state(status: Json, when: str, kind: str) -> Any:
    return (status.get(when) or {}).get(kind)
