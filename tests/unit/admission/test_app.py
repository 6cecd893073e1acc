"""Reviews that come at once, in the webhook's own application."""

import asyncio
from collections import Counter
from typing import Any

from gpushare.admission.metrics import Metrics
from gpushare.admission.review.http_app import ReviewApp
from tests.unit.admission.reviews import reviewer


async def test_of_many_reviews_that_come_at_once_one_begins_in_each_pass_of_the_event_loop(
    monkeypatch: Any,
) -> None:
    """So what keeps connections open is done between them: a handshake takes several passes."""
    passes, begun_in = 0, Counter[int]()

    async def validate(self: object, body: bytes) -> bytes:
        begun_in[passes] += 1
        return b"{}"

    monkeypatch.setattr("gpushare.admission.review.dispatcher.Reviewer.validate", validate)
    app = ReviewApp(reviewer(), Metrics())

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Any) -> None:
        pass

    async with asyncio.TaskGroup() as asking:
        scope = {"path": "/validate", "method": "POST"}
        tasks = [asking.create_task(app(scope, receive, send)) for _ in range(50)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            passes += 1
    assert begun_in.total() == 50
    assert max(begun_in.values()) == 1
