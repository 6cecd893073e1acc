"""Pending pods: read from the leading scheduler, or a clear statement that none answers."""

import msgspec
import pytest

from gpushare.dashboard.data import pending
from gpushare.dashboard.data.pending import ReservedShare, Source, Waiting
from gpushare.kube.client.errors import Unreachable
from tests.unit.dashboard.live_pages import FakeHttp
from tests.unit.scheduler.world import TurnedClock

HERE = "http://10.0.0.1:9452/gpushare/decisions"
THERE = "http://10.0.0.2:9452/gpushare/decisions"
ALONE = "http://scheduler/gpushare/decisions"
LEADER_FRESH_S = 5.0
ONE = Waiting("default/one", 20.0, "3 units", "memory", "no GPU has so much free", "free 3 units", "uid-one")
TWO = Waiting("default/two", 10.0, "1 unit", "compute", "no node gives compute", "label one")


class Replicas:
    """Two schedulers; ``kube-system/a`` leads."""

    def __init__(self) -> None:
        self.http, self.clock = FakeHttp(), TurnedClock()
        self.leads = "kube-system/a"
        self.addresses = {"kube-system/a": "10.0.0.1:9452", "kube-system/b": "10.0.0.2:9452"}
        self.source = Source(
            self.http,
            "http://unused",
            self.clock,
            leader=self.leader,
            address=lambda pod: self.addresses.get(pod, ""),
        )

    async def leader(self) -> str:
        if self.leads == "?":
            raise Unreachable("/lease", "no answer", sent=False)
        return self.leads


async def test_the_leading_scheduler_is_queried() -> None:
    replicas = Replicas()
    replicas.http.responses[HERE] = msgspec.json.encode({"scheduler": {"name": "x"}, "waiting": [ONE, TWO]})
    line = await replicas.source.line()
    assert [one.key for one in line.pods] == ["default/two", "default/one"]
    assert (line.count, line.problem, line.by_category) == (2, "", {"memory": 1, "compute": 1})
    assert await replicas.source.line() is line
    await replicas.clock.turn(pending.FRESH_S)
    assert await replicas.source.line() is not line


async def test_a_plain_list_is_accepted_too() -> None:
    http = FakeHttp()
    http.responses[ALONE] = msgspec.json.encode([ONE])
    assert (await Source(http, "http://scheduler", TurnedClock()).line()).pods == (ONE,)


async def test_another_scheduler_is_queried_once_it_leads() -> None:
    replicas = Replicas()
    replicas.http.responses[HERE] = msgspec.json.encode([ONE, TWO])
    assert (await replicas.source.line()).answered_by == "kube-system/a"
    replicas.leads = "kube-system/b"
    replicas.http.responses[THERE] = msgspec.json.encode([ONE])
    await replicas.clock.turn(LEADER_FRESH_S)
    line = await replicas.source.line()
    assert (line.pods, line.answered_by) == ((ONE,), "kube-system/b")
    replicas.http.responses[f"{THERE}/default/one/nodes"] = b'{"said":""}'
    assert await replicas.source.decision("default/one") == (b'{"said":""}', "")
    replicas.http.responses[f"{THERE}/default/one"] = b'{"said":"short"}'
    assert await replicas.source.decision("default/one", nodes=False) == (b'{"said":"short"}', "")


@pytest.mark.parametrize(
    ("leads", "problem"),
    [
        ("", "no scheduler leads"),
        ("kube-system/c", "its address is unknown"),
        ("?", "which scheduler leads"),
        ("kube-system/b", "cannot be asked"),
    ],
)
async def test_without_a_responding_leader_the_problem_is_reported_and_no_pods(
    leads: str, problem: str
) -> None:
    replicas = Replicas()
    replicas.leads = leads
    line = await replicas.source.line()
    assert problem in line.problem
    assert line.pods == ()
    body, reported = await replicas.source.decision("default/one")
    assert body == b""
    assert reported


async def test_an_older_scheduler_and_a_malformed_answer_are_reported_differently() -> None:
    replicas = Replicas()
    replicas.http.responses[HERE] = None
    assert "older version" in (await replicas.source.line()).problem
    await replicas.clock.turn(pending.FRESH_S)
    replicas.http.responses[HERE] = b"{"
    assert "of another version" in (await replicas.source.line()).problem
    replicas.http.responses[f"{HERE}/default/one/nodes"] = None
    assert await replicas.source.decision("default/one") == (b"", "")


async def test_of_many_pods_only_some_are_shown_but_all_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pending, "MOST_SHOWN", 1)
    http = FakeHttp()
    http.responses[ALONE] = msgspec.json.encode([ONE, TWO])
    line = await Source(http, "http://scheduler", TurnedClock()).line()
    assert (len(line.pods), line.count) == (1, 2)


async def test_of_a_current_scheduler_only_the_shown_pods_are_read_with_the_numbers_of_all() -> None:
    http = FakeHttp()
    document = {"waiting": [ONE, TWO], "count": 20_000, "byCategory": {"memory": 19_999, "compute": 1}}
    http.responses[f"{ALONE}/oldest"] = msgspec.json.encode(document)
    line = await Source(http, "http://scheduler", TurnedClock()).line()
    assert [one.key for one in line.pods] == ["default/two", "default/one"]
    assert (line.count, line.by_category) == (20_000, {"memory": 19_999, "compute": 1})
    assert http.requested == [f"{ALONE}/oldest"]


async def test_a_token_for_reading_is_sent_and_renewed_before_it_expires() -> None:
    http, clock, made = FakeHttp(), TurnedClock(), []

    async def token() -> str:
        made.append(f"token-{len(made)}")
        if len(made) == 3:
            raise Unreachable("/token", "no answer", sent=False)
        return made[-1]

    http.responses[ALONE] = msgspec.json.encode([ONE])
    source = Source(http, "http://scheduler", clock, token=token)
    for expected in ("token-0", "token-0", "token-1"):
        assert (await source.line()).problem == ""
        assert http.tokens[-1] == expected
        await clock.turn(pending.TOKEN_S / 2 - pending.FRESH_S)
    await clock.turn(pending.TOKEN_S)
    assert "cannot get a token for reading: /token: no answer" in (await source.line()).problem


async def test_reserved_capacity_comes_with_the_pending_pods_and_an_older_scheduler_has_none() -> None:
    http, clock = FakeHttp(), TurnedClock()
    source = Source(http, "http://scheduler", clock)
    share = {"node": "a", "gpu": 1, "uuid": "GPU-a-1", "units": 2, "MiB": 2048, "corePercent": 30}
    reserved = [{"whom": "gang tenant/g", "shares": [share]}]
    http.responses[ALONE] = msgspec.json.encode({"scheduler": {}, "waiting": [], "kept": reserved})
    [one] = (await source.line()).kept
    assert (one.whom, one.shares) == ("gang tenant/g", (ReservedShare("a", 1, 2048, 30),))
    await clock.turn(pending.FRESH_S)
    http.responses[ALONE] = msgspec.json.encode({"scheduler": {}, "waiting": []})
    assert (await source.line()).kept == ()
