"""An API server that fails for some events still accepts the others."""

from typing import Any

from gpushare.api.objects import node_reference
from tests.unit.kube.test_event_recorder import PATH, FakeSession, Recording, refusal


class Webhooked(FakeSession):
    """The webhook of one namespace is unavailable for a while, and nothing is written there without it."""

    async def request(self, method: str, path: str, **options: Any) -> bytes:
        response = await super().request(method, path, **options)
        if path == PATH and len(self.requests) < 10:
            raise refusal(500)
        return response


async def test_an_event_for_which_alone_the_server_fails_delays_no_others() -> None:
    recording = Recording()
    recording.recorder._session = recording.session = Webhooked()  # type: ignore[assignment]
    recording.record()
    for name in ("n1", "n2", "n3"):
        recording.record(regarding=node_reference(name))
    await recording.settle()
    regarding = [body["regarding"]["name"] for _, _, body in recording.session.requests]
    assert regarding[:4] == ["a", "n1", "n2", "n3"]
    assert set(regarding[4:]) == {"a"}
    assert (recording.recorder.written, recording.recorder.dropped) == (4, 0)
