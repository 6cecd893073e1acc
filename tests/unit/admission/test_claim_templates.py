"""Templates that pods get their claims from, at an API server that is slow, refuses, or has others of the name."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from gpushare.admission.claims.templates import MANAGED_BY, MOST_TEMPLATES, Templates, TemplateUnavailable
from gpushare.kube.client.errors import ApiError, Unreachable

PATH = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaimtemplates"
SPEC = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"count": 1}}]}}}
STORED = {
    "spec": {
        "spec": {
            "devices": {
                "requests": [{"name": "gpu", "exactly": {"count": 1, "allocationMode": "ExactCount"}}]
            }
        }
    }
}


class Server:
    """Answers in turn: objects, or errors to raise."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, str]] = []
        self.body: dict[str, Any] = {}

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes = b"{}",
        timeout_s: float,
    ) -> bytes:
        self.asked.append((method, path))
        self.body = json.loads(body)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer).encode()


MISSING = ApiError(404, "NotFound", "not found", f"{PATH}/a")
NONE: dict[str, Any] = {"items": []}
EXISTS = ApiError(409, "AlreadyExists", "exists", PATH)


async def provide(server: Any) -> None:
    await Templates(server).provide("team", {"a": SPEC})


async def test_a_template_that_is_missing_is_created() -> None:
    server = Server(MISSING, NONE, {})
    await provide(server)
    assert server.asked == [("GET", f"{PATH}/a"), ("GET", PATH), ("POST", PATH)]
    assert server.body["spec"] == SPEC
    assert server.body["metadata"]["labels"] == {"app.kubernetes.io/managed-by": MANAGED_BY}


async def test_a_template_that_exists_is_used() -> None:
    server = Server(STORED)
    await provide(server)
    assert server.asked == [("GET", f"{PATH}/a")]


async def test_of_two_that_create_it_at_once_both_use_it() -> None:
    server = Server(MISSING, NONE, EXISTS, STORED)
    await provide(server)
    assert [method for method, _ in server.asked] == ["GET", "GET", "POST", "GET"]


@pytest.mark.parametrize(
    "other",
    [
        {"spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"count": 2}}]}}}},
        {"spec": {"spec": {"devices": {"requests": []}}}},
        {"spec": {}},
        [],
    ],
)
async def test_another_template_of_the_name_is_not_used(other: Any) -> None:
    with pytest.raises(
        TemplateUnavailable, match="team/a is not the one that gpushare creates under this name"
    ):
        await provide(Server(other))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ApiError(403, "Forbidden", "exceeded quota: x", PATH), "403 Forbidden: exceeded quota: x"),
        (Unreachable(PATH, "connection refused", sent=False), "connection refused"),
    ],
)
async def test_what_cannot_be_created_says_why(error: Exception, reason: str) -> None:
    with pytest.raises(TemplateUnavailable) as caught:
        await provide(Server(MISSING, NONE, error))
    assert str(caught.value) == (
        f"ResourceClaimTemplate team/a, from which the pod gets its share, cannot be created: {reason}"
    )


async def test_a_namespace_gets_only_so_many() -> None:
    full = {"items": [{}] * MOST_TEMPLATES}
    server = Server(MISSING, full)
    with pytest.raises(
        TemplateUnavailable, match="namespace team has 200 ResourceClaimTemplates of gpushare"
    ):
        await provide(server)
    assert [method for method, _ in server.asked] == ["GET", "GET"]


async def test_a_slow_api_server_is_not_waited_for() -> None:
    class Slow:
        async def request(self, *_: Any, **__: Any) -> bytes:
            await asyncio.Event().wait()
            return b""

    with pytest.raises(TemplateUnavailable, match="was not created within 0 s: the API server is slow"):
        await Templates(Slow(), within_s=0.01).provide("team", {"a": SPEC})  # type: ignore[arg-type]
