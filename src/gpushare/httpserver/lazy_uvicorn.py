"""uvicorn, imported without its command line, which brings process supervisors and a parser of options along, and its logging."""

import sys
from typing import Final

from gpushare.process.lazy_import import deferring, initialize_later

_UNUSED: Final = {"logging.config": ()}
initialize_later("uvicorn")
with deferring(_UNUSED):
    from uvicorn.config import Config
    from uvicorn.protocols.http.flow_control import FlowControl
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
    from uvicorn.server import Server

# What uvicorn's own modules take from the package when a server starts: asking for it would run all of its ``__init__``.
sys.modules["uvicorn"].Config = Config  # type: ignore[attr-defined]

__all__ = ["STATUS_LINE", "Config", "FlowControl", "HttpToolsProtocol", "Server"]
