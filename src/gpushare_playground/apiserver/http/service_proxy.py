"""``services/NAME/proxy``: a GET is forwarded to one of the Service's endpoints, as by the real API server.

The name may include scheme and port: ``http:NAME:PORT``, the port by its name or by the Service's number. Endpoints are taken from the
Endpoints object of that name.
"""

import secrets
from collections.abc import Mapping
from typing import Final

import aiohttp
from aiohttp import web

from gpushare_playground.apiserver import errors
from gpushare_playground.apiserver.errors import ApiError, Object
from gpushare_playground.apiserver.store import Store

_TIMEOUT_S: Final = 30.0
_RELAYED: Final = ("Content-Type",)


async def pass_on(
    request: web.BaseRequest, store: Store, namespace: str, name: str, path: str
) -> web.StreamResponse:
    """Forward a GET to the Service; raises ``ApiError`` if there is no Service or no endpoint."""
    if request.method != "GET":
        raise errors.method_not_allowed()
    scheme, service, port = _parts(name)
    record = store.get("services", namespace, service)
    if record is None:
        raise errors.not_found("services", "", service)
    address = _endpoint(store, namespace, service, _named(record.obj, port))
    if address is None:
        raise ApiError(503, "ServiceUnavailable", f'no endpoints available for service "{name}"')
    url = f"{scheme}://{address}/{path}"
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, params=request.query, headers=passed_on(request.headers)) as upstream,
        ):
            headers = {header: upstream.headers[header] for header in _RELAYED if header in upstream.headers}
            return web.Response(status=upstream.status, body=await upstream.read(), headers=headers)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ApiError(
            503, "ServiceUnavailable", f"error trying to reach service: {str(error) or 'it does not answer'}"
        ) from None


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that are forwarded: credentials are not."""
    return {name: value for name, value in headers.items() if name.title().startswith("X-")}


def _parts(name: str) -> tuple[str, str, str]:
    """Scheme, name and port of ``NAME``, ``NAME:PORT`` or ``SCHEME:NAME:PORT``."""
    match name.split(":"):
        case [service]:
            return "http", service, ""
        case [service, port]:
            return "http", service, port
        case [scheme, service, port] if scheme in ("", "http", "https"):
            return scheme or "http", service, port
    raise errors.bad_request(f"invalid service request {name!r}")


def _named(service: Object, port: str) -> str:
    """The name of a port that is specified by the Service's number, which may differ from the endpoint's."""
    ports = (service.get("spec") or {}).get("ports") or ()
    return next(
        (candidate.get("name") or "" for candidate in ports if str(candidate.get("port")) == port), port
    )


def _endpoint(store: Store, namespace: str, service: str, port: str) -> str | None:
    record = store.get("endpoints", namespace, service)
    addresses = []
    for subset in (record.obj.get("subsets") or ()) if record is not None else ():
        for endpoint_port in subset.get("ports") or ():
            if port in ("", endpoint_port.get("name")):
                addresses += [f"{at['ip']}:{endpoint_port['port']}" for at in subset.get("addresses") or ()]
    return addresses[secrets.randbelow(len(addresses))] if addresses else None
