"""Who waits: asked of the scheduler that leads, or said plainly that nobody can tell."""

import msgspec
import pytest

from gpushare.dashboard import waiting
from gpushare.dashboard.waiting import Line, Source, Waiting
from gpushare.kube.errors import Unreachable
from tests.unit.dashboard.showing import Answering
from tests.unit.scheduler.world import TurnedClock

HERE = "http://scheduler/gpushare/decisions"
ONE = Waiting("default/one", 20.0, "3 units", "memory", "no GPU has so much free", "free 3 units", "uid-one")
TWO = Waiting("default/two", 10.0, "1 unit", "compute", "no node gives compute", "label one")


class Beside:
    """Two replicas: we are ``kube-system/a``."""

    def __init__(self) -> None:
        self.asks, self.clock = Answering(), TurnedClock()
        self.leads = "kube-system/a"
        self.peers = {"kube-system/b": "10.0.0.2:9453"}
        self.source = Source(
            self.asks,
            "http://scheduler/",
            self.clock,
            leader=self.leader,
            own="kube-system/a",
            peer=lambda pod: self.peers.get(pod, ""),
            token=lambda: b"secret",
        )

    async def leader(self) -> str:
        if self.leads == "?":
            raise Unreachable("/lease", "nobody answers", sent=False)
        return self.leads


async def test_the_scheduler_beside_us_is_asked_where_it_leads() -> None:
    beside = Beside()
    beside.asks.answers[HERE] = msgspec.json.encode({"scheduler": {"name": "x"}, "waiting": [ONE, TWO]})
    line = await beside.source.line()
    assert [one.key for one in line.pods] == ["default/two", "default/one"]
    assert (line.count, line.problem, line.by_category) == (2, "", {"memory": 1, "compute": 1})
    assert await beside.source.line() is line
    await beside.clock.turn(waiting.FRESH_S)
    assert await beside.source.line() is not line


async def test_a_plain_list_is_understood_too() -> None:
    asks = Answering()
    asks.answers[HERE] = msgspec.json.encode([ONE])
    assert (await Source(asks, "http://scheduler", TurnedClock()).line()).pods == (ONE,)


async def test_the_leading_dashboard_is_asked_with_the_token_where_another_leads() -> None:
    beside = Beside()
    beside.leads = "kube-system/b"
    there = Line((ONE,), 1, "", "kube-system/b", {"memory": 1})
    beside.asks.answers["http://10.0.0.2:9453/api/waiting?here=1"] = msgspec.json.encode(there)
    assert await beside.source.line() == there
    assert beside.asks.asked[-1][1] == {"Authorization": "Bearer secret"}
    decision = "http://10.0.0.2:9453/api/decision?here=1&pod=default%2Fone"
    beside.asks.answers[decision] = b'{"said":""}'
    assert await beside.source.decision("default/one") == (b'{"said":""}', "")
    beside.asks.answers[f"{decision}&nodes=0"] = b'{"said":"short"}'
    assert await beside.source.decision("default/one", nodes=False) == (b'{"said":"short"}', "")


async def test_what_another_asks_of_us_is_answered_from_beside_us_whoever_leads() -> None:
    beside = Beside()
    beside.leads = "kube-system/b"
    beside.asks.answers[HERE] = msgspec.json.encode([ONE])
    assert (await beside.source.line(here=True)).count == 1
    beside.asks.answers[f"{HERE}/default/one/nodes"] = b"{}"
    assert await beside.source.decision("default/one", here=True) == (b"{}", "")
    beside.asks.answers[f"{HERE}/default/one"] = b'{"nodes":null}'
    assert await beside.source.decision("default/one", here=True, nodes=False) == (b'{"nodes":null}', "")


@pytest.mark.parametrize(
    ("leads", "words"),
    [
        ("", "no scheduler leads"),
        ("kube-system/c", "has no dashboard"),
        ("?", "which scheduler leads"),
        ("kube-system/b", "cannot be asked"),
    ],
)
async def test_where_nobody_can_tell_it_says_so_and_shows_nobody(leads: str, words: str) -> None:
    beside = Beside()
    beside.leads = leads
    line = await beside.source.line()
    assert words in line.problem
    assert line.pods == ()
    body, problem = await beside.source.decision("default/one")
    assert body == b""
    assert problem


async def test_an_older_scheduler_and_one_that_talks_nonsense_are_told_apart() -> None:
    beside = Beside()
    beside.asks.answers[HERE] = None
    assert "older version" in (await beside.source.line()).problem
    await beside.clock.turn(waiting.FRESH_S)
    beside.asks.answers[HERE] = b"{"
    assert "does not understand" in (await beside.source.line()).problem
    beside.asks.answers[f"{HERE}/default/one/nodes"] = None
    assert await beside.source.decision("default/one") == (b"", "")


async def test_of_very_many_only_some_are_shown_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_SHOWN", 1)
    asks = Answering()
    asks.answers[HERE] = msgspec.json.encode([ONE, TWO])
    line = await Source(asks, "http://scheduler", TurnedClock()).line()
    assert (len(line.pods), line.count) == (1, 2)
