"""The HTTP proxy for the API server, if any, from the environment.

The rules are those of kubectl and other common programs: ``HTTPS_PROXY`` for https, ``HTTP_PROXY`` for http, each also in lower case,
``NO_PROXY`` with names, suffixes, addresses, networks and ports, and no proxy for the local machine.
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def environment_proxy(server: str, environ: Mapping[str, str]) -> str:
    """The proxy's address for ``server``, or empty."""
    parts = urlsplit(server)
    host = parts.hostname or ""
    name = f"{parts.scheme}_proxy"
    proxy = environ.get(name.upper()) or environ.get(name) or ""
    if not proxy or _is_local(host):
        return ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    exceptions = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if any(_matches(entry.strip().lower(), host, port) for entry in exceptions.split(",")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _is_local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _matches(entry: str, host: str, port: int) -> bool:
    if entry in ("", "*"):
        return entry == "*"
    address = _address(host)
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, colon, wanted_port = entry.rpartition(":")
    if colon and wanted_port.isdigit() and _address(entry) is None:
        if int(wanted_port) != port:
            return False
        entry = name
    entry = entry.strip("[]")
    if address is not None:
        return address == _address(entry)
    suffix = entry.removeprefix("*").lstrip(".")
    return host.endswith(f".{suffix}") or (host == suffix and not entry.startswith((".", "*")))
