"""An API server that fails with some events takes the others all the same."""

from typing import Any

from gpushare.api.objects import node_reference
from tests.unit.kube.test_event_recorder import PATH, Ears, Talk, refusal


class Webhooked(Ears):
    """A webhook that sees one namespace is away for a while, and nothing is written there without it."""

    async def request(self, method: str, path: str, **options: Any) -> bytes:
        answer = await super().request(method, path, **options)
        if path == PATH and len(self.requests) < 10:
            raise refusal(500)
        return answer


async def test_an_event_with_which_alone_the_server_fails_holds_up_no_others() -> None:
    talk = Talk()
    talk.recorder._session = talk.ears = Webhooked()  # type: ignore[assignment]
    talk.say()
    for name in ("n1", "n2", "n3"):
        talk.say(regarding=node_reference(name))
    await talk.settle()
    regarding = [body["regarding"]["name"] for _, _, body in talk.ears.requests]
    assert regarding[:4] == ["a", "n1", "n2", "n3"]
    assert set(regarding[4:]) == {"a"}
    assert (talk.recorder.written, talk.recorder.dropped) == (4, 0)
