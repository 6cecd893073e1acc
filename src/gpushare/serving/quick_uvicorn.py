"""uvicorn, imported without its command line, which brings process supervisors and a parser of options along, and its logging."""

from typing import Final

from gpushare.putting_off import initialize_later, putting_off

_UNUSED: Final = {"logging.config": ()}
initialize_later("uvicorn")
with putting_off(_UNUSED):
    from uvicorn.config import Config
    from uvicorn.protocols.http.flow_control import FlowControl
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
    from uvicorn.server import Server

__all__ = ["STATUS_LINE", "Config", "FlowControl", "HttpToolsProtocol", "Server"]
