"""Whether the namespace that was named is there: only the API server's own word that it is not counts."""

import json
from typing import Any

import pytest

from gpushare.doctor.cluster.reader import Reader
from gpushare.doctor.options import ROLE
from gpushare.kube.client.errors import ApiError
from gpushare.options.reading import read
from tests.unit.doctor.test_reading_of_the_webhook import Server


class Answering(Server):
    """Answers for namespaces with a status."""

    def __init__(self, status: int) -> None:
        super().__init__({})
        self._status = status

    async def request(self, method: str, path: str, **others: Any) -> bytes:
        if path.startswith("/api/v1/namespaces/") and path.count("/") == 4:
            self.asked.append(path)
            if self._status != 200:
                raise ApiError(self._status, "", "no", path)
            return json.dumps({"metadata": {"name": "foo"}}).encode()
        return await super().request(method, path, **others)


@pytest.mark.parametrize(("status", "there"), [(200, True), (404, False), (403, True)])
async def test_a_namespace_is_missed_where_the_api_server_says_so(status: int, there: bool) -> None:
    server = Answering(status)
    facts = await Reader(server, 1.0, "foo").read()  # type: ignore[arg-type]
    assert (facts.namespace, facts.namespace_is_there) == ("foo", there)
    assert "/api/v1/namespaces/foo" in server.asked


async def test_where_none_is_named_none_is_asked_for() -> None:
    server = Answering(404)
    facts = await Reader(server, 1.0).read()  # type: ignore[arg-type]
    assert (facts.namespace, facts.namespace_is_there) == ("", True)
    assert not [path for path in server.asked if path.count("/") == 4 and "namespaces/" in path]


def test_it_is_named_as_kubectl_names_it() -> None:
    assert read(ROLE, ["-n", "foo"], {}).namespace == "foo"
