"""``services/NAME/proxy`` of the playground's API server: requests of the real kubectl reach the
Service's endpoint.
"""

import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from tests.integration.apiserver.conftest import Kubectl


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server that echoes the request it received."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/missing":
            return web.Response(status=404, text="nothing here")
        return web.json_response({"path": request.path, "query": dict(request.query)})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def published(kubectl: Kubectl, port: int, *addresses: str) -> None:
    metadata = {"name": "web", "namespace": "default"}
    subset = {"addresses": [{"ip": one} for one in addresses], "ports": [{"name": "health", "port": port}]}
    # Its number is the Service's own.
    ports = [{"name": "health", "port": 80, "targetPort": port}]
    items = [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": ports}},
        {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": metadata,
            "subsets": [subset] if addresses else [],
        },
    ]
    await kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def path(name: str, rest: str = "a/b?c=d") -> str:
    return f"/api/v1/namespaces/default/services/{name}/proxy/{rest}"


async def test_a_get_is_forwarded_to_the_named_port(kubectl: Kubectl, port: int) -> None:
    await published(kubectl, port, "127.0.0.1")
    for name in ("web", "web:health", "web:80", "http:web:health", ":web:health"):
        answer = await kubectl("get", "--raw", path(name))
        assert answer.json == {"path": "/a/b", "query": {"c": "d"}}, (name, answer.err)


async def test_unreachable_targets_are_reported(kubectl: Kubectl, port: int) -> None:
    await published(kubectl, port, "127.0.0.1")
    for name, rest, message in (
        ("other", "", 'services "other" not found'),
        ("web:other", "", 'no endpoints available for service "web:other"'),
        (f"web:{port}", "", f'no endpoints available for service "web:{port}"'),
        ("ftp:web:health", "", "invalid service request"),
        ("https:web:health", "", "error trying to reach service"),
        ("web", "missing", "the server could not find the requested resource"),
    ):
        answer = await kubectl("get", "--raw", path(name, rest), code=1)
        assert message in answer.err
    assert "not allow" in (await kubectl("delete", "--raw", path("web"), code=1)).err


async def test_a_service_without_endpoints_is_reported(kubectl: Kubectl, port: int) -> None:
    await published(kubectl, port)
    assert "no endpoints available" in (await kubectl("get", "--raw", path("web"), code=1)).err
