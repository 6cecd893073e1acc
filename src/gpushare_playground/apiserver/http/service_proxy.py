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
    found = store.get("services", namespace, service)
    if found is None:
        raise errors.not_found("services", "", service)
    address = _endpoint(store, namespace, service, _named(found.obj, port))
    if address is None:
        raise ApiError(503, "ServiceUnavailable", f'no endpoints available for service "{name}"')
    url = f"{scheme}://{address}/{path}"
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, params=request.query, headers=passed_on(request.headers)) as answer,
        ):
            headers = {one: answer.headers[one] for one in _RELAYED if one in answer.headers}
            return web.Response(status=answer.status, body=await answer.read(), headers=headers)
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
    return next((one.get("name") or "" for one in ports if str(one.get("port")) == port), port)


def _endpoint(store: Store, namespace: str, service: str, port: str) -> str | None:
    record = store.get("endpoints", namespace, service)
    found = []
    for subset in (record.obj.get("subsets") or ()) if record is not None else ():
        for one in subset.get("ports") or ():
            if port in ("", one.get("name")):
                found += [f"{at['ip']}:{one['port']}" for at in subset.get("addresses") or ()]
    return found[secrets.randbelow(len(found))] if found else None
