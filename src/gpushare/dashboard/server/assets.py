"""The page's static files, read once from the package, each with an ETag from its content."""

import gzip
import hashlib
from importlib import resources
from typing import Final, NamedTuple

_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
INDEX: Final = "/index.html"


class Asset(NamedTuple):
    """A file, ready to be sent."""

    kind: bytes
    body: bytes
    compressed: bytes
    tag: bytes


def load() -> dict[str, Asset]:
    """All assets by path; ``/`` is the index page."""
    assets: dict[str, Asset] = {}
    for entry in resources.files("gpushare.dashboard").joinpath("static").iterdir():
        suffix = "." + entry.name.rpartition(".")[2]
        if suffix in _TYPES:
            body = entry.read_bytes()
            tag = b'"%s"' % hashlib.sha256(body).hexdigest()[:32].encode()
            assets[f"/{entry.name}"] = Asset(_TYPES[suffix], body, gzip.compress(body, 9, mtime=0), tag)
    assets["/"] = assets[INDEX]
    return assets
