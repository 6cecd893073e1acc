"""Logging of every process: one line per event on stderr, as text or JSON.

What a line is about is a separate field, so that one search finds all that is about one pod: ``logger.info("…",
extra=about(pod=key, uid=uid))``. A pod's UID is the request that its lines carry, in every process that knows it: from the
review that admits it to the container that runs.
"""

import json
import logging
import sys
import time
from typing import Any, Final, Literal

LAYOUTS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")
#: Fields of a JSON line, in this order; empty ones are omitted, ``error`` is a traceback.
FIELDS: Final = ("ts", "level", "role", "msg", "pod", "uid", "node", "request", "logger", "error")
_ABOUT: Final = "about"
#: Control characters and other line separators, escaped as in Python.
_ESCAPED: Final = {
    code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029) if code != 9
}


def about(*, pod: str = "", uid: str = "", node: str = "", request: str = "") -> dict[str, Any]:
    """The ``extra`` of a line: the pod (``NAMESPACE/NAME``), its UID, the node, and the request if it is not the UID."""
    return {_ABOUT: (pod, uid, node, request or uid)}


class _Lines(logging.Formatter):
    """Text format: the message, followed by the request.

    Text from others cannot begin a line or move the cursor: every line that begins with a time is ours.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The line, with control characters escaped."""
        return super().formatMessage(record).translate(_ESCAPED)

    def format(self, record: logging.LogRecord) -> str:
        first, *traceback = super().format(record).split("\n")
        said = record.__dict__.get(_ABOUT)
        if said is not None and said[3]:
            first = f"{first} request={said[3]}"
        return "\n".join([first, *(f"  {line.translate(_ESCAPED)}" for line in traceback)])


class _JsonLines(logging.Formatter):
    """JSON format: an object per line, with ``FIELDS``."""

    def __init__(self, role: str, node: str) -> None:
        super().__init__()
        self._role = role
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        pod, uid, node, request = record.__dict__.get(_ABOUT) or ("", "", "", "")
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        error = self.formatException(record.exc_info) if record.exc_info else ""
        level = record.levelname.lower()
        values = (at, level, self._role, record.getMessage(), pod, uid, node or self._node, request)
        line = zip(FIELDS, (*values, record.name, error), strict=True)
        return json.dumps({name: value for name, value in line if value or name == "msg"}, ensure_ascii=False)


def configure(
    level: str = "info", layout: Literal["text", "json"] | str = "text", *, role: str = "", node: str = ""
) -> None:
    """Set logging up for this process; ``level`` is one of ``LEVELS``, ``layout`` one of ``LAYOUTS``.

    ``role`` is the process's role, ``node`` its node, if any.
    """
    handler = logging.StreamHandler(sys.stderr)
    if layout == "json":
        handler.setFormatter(_JsonLines(role, node))
    else:
        handler.setFormatter(_Lines("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
