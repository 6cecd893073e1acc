"""Metrics of node agents: read with bounds, and forgotten when an agent stops answering."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.dashboard.data import agent_client
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


def test_the_reason_of_a_degraded_node_is_read_from_agents_of_0_1_0_too() -> None:
    text = (
        'gpushare_nodeagent_trouble{reason="NoGPU"} 1\n'
        'gpushare_nodeagent_trouble{reason="CDIUnavailable"} 0\n'
    )
    assert read(text).troubles == ("NoGPU",)


def test_the_drivers_figures_of_a_whole_gpu_take_precedence_over_sums() -> None:
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
def test_any_text_can_be_read(text: str) -> None:
    read(text)
    read(f'gpushare_gpu_memory_used_bytes{{UUID="{text}"}} 5\ngpushare_nodeagent_degraded{{{text}}} 1')


async def shown_node() -> Shown:
    shown = Shown()
    shown.add(described("a", gpu("a", 0)))
    await shown.cluster.refresh()
    shown.addresses["a"] = "10.0.0.1:9452"
    return shown


URL = "http://10.0.0.1:9452/metrics"


async def test_an_agent_is_queried_once_for_all_readers_and_not_again_immediately() -> None:
    shown = await shown_node()
    shown.http.responses[URL] = exposed(one=(300, 30))
    found = await asyncio.gather(*(shown.agents.read("a") for _ in range(5)))
    assert [figures is not None for figures, _ in found] == [True] * 5
    await shown.agents.read("a")
    assert len(shown.http.requested) == 1
    await shown.clock.turn(agent_client.FRESH_S)
    await shown.agents.read("a")
    assert len(shown.http.requested) == 2
    assert shown.cluster.board.plane("used_mib")[0, 0] == 300


async def test_a_node_that_stops_responding_has_no_figures_but_a_reason() -> None:
    shown = await shown_node()
    shown.http.responses[URL] = exposed(one=(300, 30))
    await shown.agents.read("a")
    del shown.http.responses[URL]
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
    shown.http.responses[URL] = exposed(one=(300, 30))
    page_is_open = False
    names = ["a", *(f"n{number}" for number in range(20))]
    sweep = asyncio.create_task(shown.agents.sweep(lambda: names, lambda: page_is_open))

    async def turn(seconds: float) -> None:
        await shown.clock.turn(seconds)
        for _ in range(50):
            await asyncio.sleep(0)

    await turn(10)
    assert shown.http.requested == []
    page_is_open = True
    await turn(agent_client.IDLE_S)
    assert shown.http.requested == [URL]
    await turn(0.1)
    assert len(shown.http.requested) == 1
    names[:] = ["a"]
    for _ in range(8):
        await turn(agent_client.ROUND_S)
    assert len(shown.http.requested) > 3
    page_is_open = False
    await turn(agent_client.ROUND_S)
    requests = len(shown.http.requested)
    await turn(60)
    assert len(shown.http.requested) == requests
    sweep.cancel()
    await asyncio.gather(sweep, return_exceptions=True)


async def test_while_no_page_is_open_usage_is_unknown_and_not_in_the_history() -> None:
    shown = await shown_node()
    shown.http.responses[URL] = exposed(one=(300, 30))
    page = shown.stream.listen("")
    sweep = asyncio.create_task(shown.agents.sweep(lambda: ["a"], lambda: shown.stream.pages > 0))

    async def turn(seconds: float) -> Sample:
        await shown.clock.turn(seconds)
        for _ in range(50):
            await asyncio.sleep(0)
        await shown.live.tick()
        return shown.history.samples()[-1]

    assert (await turn(agent_client.ROUND_S)).used_mib == 300
    # A page that is reopened immediately still finds the metrics.
    shown.stream.leave(page)
    assert (await turn(agent_client.ROUND_S)).used_mib == 300
    for _ in range(3):
        last = await turn(agent_client.ROUND_S)
    assert (last.used_mib, last.reporting_gpus) == (UNKNOWN, 0)
    assert len(shown.http.requested) < 4
    shown.stream.listen("")
    assert (await turn(agent_client.ROUND_S)).used_mib == 300
    sweep.cancel()
    await asyncio.gather(sweep, return_exceptions=True)


class Slow:
    """Agents of which some never answer."""

    def __init__(self, dead: int) -> None:
        self.dead = dead
        self.under_way = self.most = 0
        self.requested: list[str] = []

    async def get(self, url: str, token: str = "") -> bytes:
        self.requested.append(url)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            if int(url.split("/")[2]) < self.dead:
                await asyncio.Event().wait()
            return b""
        finally:
            self.under_way -= 1


async def test_unresponsive_agents_delay_no_others_and_parallel_requests_are_limited() -> None:
    clock = TurnedClock()
    http = Slow(dead=agent_client.MAX_PARALLEL - 1)
    names = [str(number) for number in range(300)]
    agents = Agents(http, lambda node: node, lambda node: [], lambda node, figures: None, clock)
    sweep = asyncio.create_task(agents.sweep(lambda: names, lambda: True))
    for _ in range(60):
        await clock.turn(0.2)
        for _ in range(50):
            await asyncio.sleep(0)
    assert set(http.requested) == {f"http://{name}/metrics" for name in names}
    assert http.most == agent_client.MAX_PARALLEL
    sweep.cancel()
    await asyncio.gather(sweep, return_exceptions=True)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def test_nodes_with_allocations_come_first() -> None:
    shown = Shown()
    shown.add(*(described(name, gpu(name, 0)) for name in ("a", "b", "c")))
    shown.add(holder("one", "b", share("b", 0, 3)))
    await shown.live.tick()
    assert shown.cluster.by_interest() == ["b", "a", "c"]
