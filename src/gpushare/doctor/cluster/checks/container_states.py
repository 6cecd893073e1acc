"""Containers of a pod, by its status: what one waits for, how it ended, and whether it ever had something to log."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

Json = dict[str, Any]
#: Reasons for which a container waits for its image.
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
#: It waits, and has run before.
_CRASHES: Final = "CrashLoopBackOff"
#: What a kubelet says of an image names it three times before it comes to the point.
_LONGEST: Final = 300


class Unpulled(NamedTuple):
    """A container that waits for its image, on a node (empty: not known)."""

    container: str
    image: str
    node: str


def statuses(pod: Json) -> Iterator[Json]:
    """Of all its containers that it has a status of, init containers first."""
    status = pod.get("status") or {}
    for kind in ("initContainerStatuses", "containerStatuses"):
        yield from status.get(kind) or ()


def status_of(pod: Json, container: str) -> Json:
    """That of one container; empty where there is none."""
    return next((one for one in statuses(pod) if one.get("name") == container), {})


def why_of(status: Json) -> str:
    """What a container waits for, or how it ended, with a colon before it; empty where nothing says it."""
    for state in (_state(status, "state", "waiting"), _state(status, "lastState", "terminated")):
        if state:
            words = state.get("message") or state.get("reason") or f"exit code {state.get('exitCode')}"
            return f": {shortened(str(words))}"
    return ""


def shortened(words: str) -> str:
    """On one line and not too long, cut between two words."""
    line = " ".join(words.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST + 1].rpartition(' ')[0]} …"


def has_log(pod: Json, container: str = "") -> bool:
    """Whether the container, or where none is named each of them, has begun: else nobody has logged anything."""
    seen = [one for one in statuses(pod) if container in ("", one.get("name"))]
    if not seen:
        return (pod.get("status") or {}).get("phase") != "Pending"
    return all(map(_has_begun, seen))


def unpulled(pod: Json) -> Unpulled | None:
    """The first of its containers that waits for its image."""
    node = str((pod.get("spec") or {}).get("nodeName") or "")
    for status in statuses(pod):
        if (_state(status, "state", "waiting") or {}).get("reason") in _OF_IMAGES:
            return Unpulled(str(status.get("name") or ""), str(status.get("image") or ""), node)
    return None


def _has_begun(status: Json) -> bool:
    waiting = _state(status, "state", "waiting")
    return (
        waiting is None
        or waiting.get("reason") == _CRASHES
        or bool(_state(status, "lastState", "terminated"))
    )


def _state(status: Json, when: str, kind: str) -> Any:
    return (status.get(when) or {}).get(kind)
