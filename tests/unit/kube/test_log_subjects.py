"""Log lines about unreadable objects and about events that are not written name the object."""

import asyncio
from typing import Any

import pytest

from gpushare.api.objects import ObjectReference
from gpushare.kube.watch.informer import Informer
from tests.unit.kube.scripted import PATH, ScriptedClock, ScriptedServer, View, decode
from tests.unit.kube.test_event_recorder import Recording, refusal


@pytest.mark.parametrize(
    ("regarding", "expected"),
    [
        (ObjectReference("Pod", "a", "default", "uid-a"), ("default/a", "uid-a", "", "uid-a")),
        (ObjectReference("Node", "n1"), ("", "", "n1", "")),
        (ObjectReference("ElasticQuotaTree", "tree", "kube-system", "uid-t"), None),
        (ObjectReference("Pod", "a\udc80", "default", "uid-\udc80"), ("default/a\\udc80", "uid-\\udc80", "", "uid-\\udc80")),
    ],
    ids=["pod", "node", "neither", "no-text"],
)  # fmt: skip
async def test_the_log_line_of_a_dropped_event_names_its_object(
    caplog: Any, regarding: ObjectReference, expected: Any
) -> None:
    recording = Recording(refusal(403))
    recording.record(regarding=regarding)
    await recording.settle()
    (line,) = (one for one in caplog.records if "is not written" in one.getMessage())
    assert line.__dict__.get("about") == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/v1/pods", ("n/a", "uid-1", "", "uid-1")),
        ("/api/v1/namespaces/n/pods", ("n/a", "uid-1", "", "uid-1")),
        ("/api/v1/nodes", ("", "", "n/a", "")),
        ("/apis/example.com/v1/podgroups", None),
    ],
)
async def test_the_log_line_of_an_unreadable_object_names_it(
    caplog: pytest.LogCaptureFixture, path: str, expected: object
) -> None:
    server = ScriptedServer()
    server.create("a", "odd")
    session: Any = server

    class Anywhere:
        async def request(self, method: str, requested_path: str, **options: Any) -> bytes:
            response: bytes = await session.request(method, PATH, **options)
            return response

        def stream(self, requested_path: str, *rest: Any, **options: Any) -> Any:
            return session.stream(PATH, *rest, **options)

    at: Any = Anywhere()
    informer = Informer(at, path, decode, View(), clock=ScriptedClock())
    task = asyncio.create_task(informer.run())
    await informer.synced.wait()
    task.cancel()
    (line,) = (one for one in caplog.records if "cannot be read" in one.getMessage())
    assert line.__dict__.get("about") == expected
