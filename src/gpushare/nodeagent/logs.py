"""One line an event on stderr, as text or as JSON."""

import json
import logging
import sys
import time
from typing import Final, Literal

LEVELS: Final = ("debug", "info", "warning", "error")
_TEXT_LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _JsonFormatter(logging.Formatter):
    """Keys as structlog's JSON renderer has them, so that all of gpushare's logs read alike."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": f"{stamp}.{int(record.msecs):03d}Z",
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure(level: str, layout: Literal["text", "json"]) -> None:
    """Log from ``level`` (one of ``LEVELS``) on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if layout == "json" else logging.Formatter(_TEXT_LINE))
    logging.basicConfig(level=logging.getLevelNamesMapping()[level.upper()], handlers=[handler], force=True)
