"""Metrics of node agents: read with bounds, and forgotten when an agent stops answering."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.dashboard.data import agent_client as asking_agents
from gpushare.dashboard.data.agent_client import Agents
from gpushare.dashboard.data.heatmap import UNKNOWN, Real
from gpushare.dashboard.data.history import Sample
from gpushare.dashboard.data.metrics_parser import ContainerUse, read
from gpushare.nodeagent.observability.metrics import Metrics
from tests.unit.dashboard.live_pages import Shown, described, exposed, gpu, holder, share
from tests.unit.scheduler.world import TurnedClock


def test_containers_and_reasons_of_a_degraded_node_are_read_as_the_agent_writes_them() -> None:
    metrics = Metrics()
    metrics.degraded.set("driver is away", value=1)
    metrics.degraded.set("cdi", value=0)
    figures = read(metrics.exposition().decode() + exposed(one=(300, 30), two=(200, 0)).decode())
    assert figures.containers == (
        ContainerUse("default/one", "main", "GPU-a-0", 300, 30),
        ContainerUse("default/two", "main", "GPU-a-0", 200, 0),
    )
    assert figures.troubles == ("driver is away",)
    assert figures.of_gpu("GPU-a-0") == Real(500, 30)
    assert figures.of_gpu("GPU-a-1") == Real(UNKNOWN, UNKNOWN)


def test_the_reason_of_a_degraded_node_is_read_of_an_agent_of_0_1_0_too() -> None:
    text = (
        'gpushare_nodeagent_trouble{reason="NoGPU"} 1\n'
        'gpushare_nodeagent_trouble{reason="CDIUnavailable"} 0\n'
    )
    assert read(text).troubles == ("NoGPU",)


def test_what_the_driver_says_of_a_whole_gpu_goes_before_sums() -> None:
    text = exposed(one=(300, 30)).decode() + (
        '\ngpushare_gpu_memory_used_bytes{node="a \\"b\\" \\\\ c",gpu="0",UUID="GPU-a-0"} 536870912 1700000000000\n'
        'gpushare_gpu_utilization_ratio{gpu="0",UUID="GPU-a-0"} 0.456\n'
        'gpushare_gpu_memory_used_bytes{gpu="1",UUID="GPU-a-1"} NaN\n'
        'gpushare_gpu_memory_used_bytes{gpu="1",UUID="GPU-a-1"} x\n'
        'gpushare_gpu_memory_used_bytes{gpu="1",UUID="GPU-a-1"} 1e300\n'
        "gpushare_gpu_memory_used_bytes 3\n"
    )
    figures = read(text)
    assert figures.of_gpu("GPU-a-0") == Real(512, 46)
    assert figures.of_gpu("GPU-a-1") == Real()


def test_a_container_that_uses_nothing_is_listed_next_to_one_that_does() -> None:
    page = "\n".join(
        f'{name}{{namespace="default",pod="{pod}",container="main",node="a",gpu="0",UUID="GPU-a-0"}} {value}'
        for name, values in (
            ("gpushare_container_memory_used_bytes", {"idle": 0, "one": 300 << 20}),
            ("gpushare_container_memory_limit_bytes", {"one": 14 << 30}),
            ("gpushare_container_compute_used_ratio", {"idle": 0, "one": 0.3, "usage_unknown": 0.1}),
        )
        for pod, value in values.items()
    )
    figures = read(page)
    assert figures.containers == (
        ContainerUse("default/idle", "main", "GPU-a-0", 0, 0),
        ContainerUse("default/one", "main", "GPU-a-0", 300, 30, 14336),
        ContainerUse("default/usage_unknown", "main", "GPU-a-0", UNKNOWN, 10),
    )


@given(st.text())
def test_no_text_breaks_the_reading(text: str) -> None:
    read(text)
    read(f'gpushare_gpu_memory_used_bytes{{UUID="{text}"}} 5\ngpushare_nodeagent_degraded{{{text}}} 1')


async def shown_node() -> Shown:
    shown = Shown()
    shown.add(described("a", gpu("a", 0)))
    await shown.cluster.refresh()
    shown.addresses["a"] = "10.0.0.1:9452"
    return shown


URL = "http://10.0.0.1:9452/metrics"


async def test_an_agent_is_asked_once_for_all_who_look_and_not_again_at_once() -> None:
    shown = await shown_node()
    shown.asks.answers[URL] = exposed(one=(300, 30))
    found = await asyncio.gather(*(shown.agents.read("a") for _ in range(5)))
    assert [figures is not None for figures, _ in found] == [True] * 5
    await shown.agents.read("a")
    assert len(shown.asks.asked) == 1
    await shown.clock.turn(asking_agents.FRESH_S)
    await shown.agents.read("a")
    assert len(shown.asks.asked) == 2
    assert shown.cluster.board.plane("used_mib")[0, 0] == 300


async def test_a_node_that_stops_answering_has_no_figures_and_says_why() -> None:
    shown = await shown_node()
    shown.asks.answers[URL] = exposed(one=(300, 30))
    await shown.agents.read("a")
    del shown.asks.answers[URL]
    await shown.clock.turn(60)
    figures, why = await shown.agents.read("a")
    assert figures is None
    assert "no such server" in why
    assert shown.cluster.board.plane("used_mib")[0, 0] == UNKNOWN
    shown.addresses.clear()
    await shown.clock.turn(60)
    assert "no node agent" in (await shown.agents.read("a"))[1]


async def test_agents_are_scraped_in_turn_and_only_while_a_page_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = await shown_node()
    shown.asks.answers[URL] = exposed(one=(300, 30))
    looking = False
    names = ["a", *(f"n{number}" for number in range(20))]
    sweep = asyncio.create_task(shown.agents.sweep(lambda: names, lambda: looking))

    async def turn(seconds: float) -> None:
        await shown.clock.turn(seconds)
        for _ in range(50):
            await asyncio.sleep(0)

    await turn(10)
    assert shown.asks.asked == []
    looking = True
    await turn(asking_agents.IDLE_S)
    assert shown.asks.asked == [URL]
    await turn(0.1)
    assert len(shown.asks.asked) == 1
    names[:] = ["a"]
    for _ in range(8):
        await turn(asking_agents.ROUND_S)
    assert len(shown.asks.asked) > 3
    looking = False
    await turn(asking_agents.ROUND_S)
    asked = len(shown.asks.asked)
    await turn(60)
    assert len(shown.asks.asked) == asked
    sweep.cancel()
    await asyncio.gather(sweep, return_exceptions=True)


async def test_while_no_page_is_open_use_is_unknown_and_no_history_is_made_of_old_figures() -> None:
    shown = await shown_node()
    shown.asks.answers[URL] = exposed(one=(300, 30))
    page = shown.stream.listen("")
    sweep = asyncio.create_task(shown.agents.sweep(lambda: ["a"], lambda: shown.stream.pages > 0))

    async def turn(seconds: float) -> Sample:
        await shown.clock.turn(seconds)
        for _ in range(50):
            await asyncio.sleep(0)
        await shown.live.tick()
        return shown.history.samples()[-1]

    assert (await turn(asking_agents.ROUND_S)).used_mib == 300
    # A page that is reopened at once still finds the metrics.
    shown.stream.leave(page)
    assert (await turn(asking_agents.ROUND_S)).used_mib == 300
    for _ in range(3):
        last = await turn(asking_agents.ROUND_S)
    assert (last.used_mib, last.reporting_gpus) == (UNKNOWN, 0)
    assert len(shown.asks.asked) < 4
    shown.stream.listen("")
    assert (await turn(asking_agents.ROUND_S)).used_mib == 300
    sweep.cancel()
    await asyncio.gather(sweep, return_exceptions=True)


class Slow:
    """Agents of which some never answer."""

    def __init__(self, dead: int) -> None:
        self.dead = dead
        self.under_way = self.most = 0
        self.asked: list[str] = []

    async def get(self, url: str, token: str = "") -> bytes:
        self.asked.append(url)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if int(url.split("/")[2]) < self.dead:
                await asyncio.Event().wait()
            return b""
        finally:
            self.under_way -= 1


async def test_agents_that_do_not_answer_hold_up_no_others_and_so_many_are_asked_at_once_as_may() -> None:
    clock = TurnedClock()
    asks = Slow(dead=asking_agents.MAX_PARALLEL - 1)
    names = [str(number) for number in range(300)]
    agents = Agents(asks, lambda node: node, lambda node: [], lambda node, figures: None, clock)
    sweep = asyncio.create_task(agents.sweep(lambda: names, lambda: True))
    for _ in range(60):
        await clock.turn(0.2)
        for _ in range(50):
            await asyncio.sleep(0)
    assert set(asks.asked) == {f"http://{name}/metrics" for name in names}
    assert asks.most == asking_agents.MAX_PARALLEL
    sweep.cancel()
    await asyncio.gather(sweep, return_exceptions=True)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def test_nodes_that_pods_hold_something_of_come_first() -> None:
    shown = Shown()
    shown.add(*(described(name, gpu(name, 0)) for name in ("a", "b", "c")))
    shown.add(holder("one", "b", share("b", 0, 3)))
    await shown.live.tick()
    assert shown.cluster.by_interest() == ["b", "a", "c"]
