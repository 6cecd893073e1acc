"""How every process of ours logs: one line an event on stderr, as text or as JSON."""

import json
import logging
import sys
import time
from typing import Final, Literal

LAYOUTS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")


class _JsonLines(logging.Formatter):
    """``{"time", "level", "logger", "message"}`` and ``error`` where there is a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str = "info", layout: Literal["text", "json"] | str = "text") -> None:
    """Set logging up for this process; ``level`` is one of ``LEVELS``, ``layout`` one of ``LAYOUTS``."""
    handler = logging.StreamHandler(sys.stderr)
    if layout == "json":
        handler.setFormatter(_JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
