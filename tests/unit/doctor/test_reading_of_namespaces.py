"""Whether the given namespace exists: only a definite answer of the API server counts."""

import json
from typing import Any

import pytest

from gpushare.doctor.cluster.reader import Reader
from gpushare.doctor.options import ROLE
from gpushare.kube.client.errors import ApiError
from gpushare.options.reading import read
from tests.unit.doctor.test_reading_of_the_webhook import Server


class Answering(Server):
    """Answers namespace requests with a status."""

    def __init__(self, status: int) -> None:
        super().__init__({})
        self._status = status

    async def request(self, method: str, path: str, **others: Any) -> bytes:
        if path.startswith("/api/v1/namespaces/") and path.count("/") == 4:
            self.requests.append(path)
            if self._status != 200:
                raise ApiError(self._status, "", "no", path)
            return json.dumps({"metadata": {"name": "foo"}}).encode()
        return await super().request(method, path, **others)


@pytest.mark.parametrize(("status", "there"), [(200, True), (404, False), (403, True)])
async def test_a_namespace_is_missing_if_the_api_server_reports_so(status: int, there: bool) -> None:
    server = Answering(status)
    facts = await Reader(server, 1.0, "foo").read()  # type: ignore[arg-type]
    assert (facts.namespace, facts.namespace_is_there) == ("foo", there)
    assert "/api/v1/namespaces/foo" in server.requests


async def test_without_a_given_namespace_none_is_requested() -> None:
    server = Answering(404)
    facts = await Reader(server, 1.0).read()  # type: ignore[arg-type]
    assert (facts.namespace, facts.namespace_is_there) == ("", True)
    assert not [path for path in server.requests if path.count("/") == 4 and "namespaces/" in path]


def test_it_is_named_as_in_kubectl() -> None:
    assert read(ROLE, ["-n", "foo"], {}).namespace == "foo"
