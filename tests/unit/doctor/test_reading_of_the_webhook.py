"""The webhook's backends are read in the namespaces that its configurations name, with no more rights than that."""

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.doctor.cluster.facts import ClusterFacts, ready_endpoints
from gpushare.doctor.cluster.reader import Reader
from gpushare.doctor.findings import Unread
from gpushare.kube.client.errors import ApiError, MalformedAnswer
from tests.unit.doctor.healthy_cluster import endpoints
from tests.unit.doctor.test_webhook_checks import ALL, deployment, hooks

SERVICE = "kubernetes.io/service-name"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"


class Server:
    """Stands in for a session: lists by path, and for those that a query narrows by path and query; all others are empty."""

    def __init__(self, lists: Mapping[str, list[Any]], forbidden: str = "none") -> None:
        self._lists = lists
        self._forbidden = forbidden
        self.access = SimpleNamespace(server="https://s")
        self.server_date = ""
        self.requests: list[str] = []

    async def request(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, **others: Any
    ) -> bytes:
        query = {key: value for key, value in (params or {}).items() if key != "limit"}
        key = "?".join([path, *query.values()])
        self.requests.append(key)
        if self._forbidden in path:
            raise ApiError(403, "Forbidden", "you may not", path)
        if path.endswith("/configmaps/gpushare-playground"):
            raise ApiError(404, "NotFound", "there is none", path)
        return json.dumps({"metadata": {}, "items": self._lists.get(key, [])}).encode()


async def read(server: Server) -> ClusterFacts:
    return await Reader(server, 1.0).read()  # type: ignore[arg-type]


async def test_the_webhook_is_searched_where_it_is_called() -> None:
    mine = {**deployment(2)[0], "metadata": {"name": "ack-co-scheduler", "namespace": "gpu"}}
    server = Server(
        {
            f"{HOOKS}?metadata.name=gpushare-admission": list(ALL),
            "/apis/apps/v1/deployments?metadata.name=ack-co-scheduler": [mine],
            DEPLOYMENTS.format("kube-system") + "?metadata.name=gpushare-admission": deployment(2),
            SLICES.format("kube-system") + f"?{SERVICE}=gpushare-admission": [
                endpoints("gpushare-admission", True)
            ],
            SLICES.format("gpu") + f"?{SERVICE}=ack-co-scheduler": [endpoints("ack-co-scheduler", True)],
        }
    )
    facts = await read(server)
    assert facts.webhook_deployments == deployment(2)
    assert not isinstance(facts.endpoint_slices, Unread)
    assert ready_endpoints(facts.endpoint_slices, "kube-system", "gpushare-admission") == 1
    assert len(facts.endpoint_slices) == 2


async def test_endpoints_are_not_read_without_webhook_and_scheduler() -> None:
    server = Server({})
    facts = await read(server)
    assert (facts.webhook_deployments, facts.endpoint_slices) == ([], [])
    assert not [path for path in server.requests if "endpointslices" in path]


@pytest.mark.parametrize(
    ("forbidden", "field"),
    [("endpointslices", "endpoint_slices"), ("namespaces/far/deployments", "webhook_deployments")],
)
async def test_forbidden_objects_are_unread(forbidden: str, field: str) -> None:
    configuration = hooks("requests", namespace="far")
    server = Server({f"{HOOKS}?metadata.name=gpushare-admission": [configuration]}, forbidden)
    found = getattr(await read(server), field)
    assert isinstance(found, Unread)
    assert found.refused


async def test_an_address_that_serves_something_else_is_an_error_that_names_the_path() -> None:
    class Page(Server):
        async def request(self, method: str, path: str, **others: Any) -> bytes:
            return b"<html>Log in"

    with pytest.raises(MalformedAnswer, match="/version"):
        await read(Page({}))
