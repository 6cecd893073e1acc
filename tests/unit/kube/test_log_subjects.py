"""What the log says of an object that cannot be read, and of an event that is not written: of whom each line is."""

import asyncio
from typing import Any

import pytest

from gpushare.api.objects import ObjectReference
from gpushare.kube.watch.informer import Informer
from tests.unit.kube.scripted import PATH, ScriptedClock, ScriptedServer, View, decode
from tests.unit.kube.test_event_recorder import Talk, refusal


@pytest.mark.parametrize(
    ("regarding", "says"),
    [
        (ObjectReference("Pod", "a", "default", "uid-a"), ("default/a", "uid-a", "", "uid-a")),
        (ObjectReference("Node", "n1"), ("", "", "n1", "")),
        (ObjectReference("ElasticQuotaTree", "tree", "kube-system", "uid-t"), None),
        (ObjectReference("Pod", "a\udc80", "default", "uid-\udc80"), ("default/a\\udc80", "uid-\\udc80", "", "uid-\\udc80")),
    ],
    ids=["pod", "node", "neither", "no-text"],
)  # fmt: skip
async def test_the_log_line_of_a_dropped_event_names_its_object(
    caplog: Any, regarding: ObjectReference, says: Any
) -> None:
    talk = Talk(refusal(403))
    talk.say(regarding=regarding)
    await talk.settle()
    (line,) = (one for one in caplog.records if "is not written" in one.getMessage())
    assert line.__dict__.get("about") == says


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/api/v1/pods", ("n/a", "uid-1", "", "uid-1")),
        ("/api/v1/namespaces/n/pods", ("n/a", "uid-1", "", "uid-1")),
        ("/api/v1/nodes", ("", "", "n/a", "")),
        ("/apis/example.com/v1/podgroups", None),
    ],
)
async def test_the_log_line_of_an_unreadable_object_names_it(
    caplog: pytest.LogCaptureFixture, path: str, says: object
) -> None:
    server = ScriptedServer()
    server.create("a", "odd")
    session: Any = server

    class Anywhere:
        async def request(self, method: str, asked: str, **options: Any) -> bytes:
            answer: bytes = await session.request(method, PATH, **options)
            return answer

        def stream(self, asked: str, *rest: Any, **options: Any) -> Any:
            return session.stream(PATH, *rest, **options)

    at: Any = Anywhere()
    informer = Informer(at, path, decode, View(), clock=ScriptedClock())
    task = asyncio.create_task(informer.run())
    await informer.synced.wait()
    task.cancel()
    (line,) = (one for one in caplog.records if "cannot be read" in one.getMessage())
    assert line.__dict__.get("about") == says
