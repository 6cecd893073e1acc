"""The dashboard with a whole cluster: a bound pod appears live, a pending one shows its reason, an unhealthy
GPU is shown.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from playwright.async_api import expect

from gpushare_playground import gpus
from gpushare_playground.cluster.nodes import node
from tests.integration.dashboard.bed import Look, browser
from tests.integration.whole.world import World, gpu_pod, world

T4, V100 = "seen-t4", "seen-v100x4"


@pytest.fixture
async def cluster() -> AsyncIterator[World]:
    nodes = node(T4, "t4", "cgpu"), node(V100, "core-mem-4", "core_mem")
    async with world(*nodes, dashboard=True) as made:
        yield made


async def test_events_in_a_cluster_are_shown_on_the_page(cluster: World) -> None:
    url = cluster.playground.dashboard_url
    async with browser() as window:
        page = await window.new_page()
        look = Look(page, url.partition("#")[0])
        await page.goto(url)
        await look.state("Live")
        await look.tile("GPUs", "5")
        await look.tile("Pods", "0")
        # A pod is bound: it appears by itself, and leads to its node.
        await cluster.create(gpu_pod("seen", 3, node=T4))
        await look.tile("Pods", "1")
        await look.tile("Memory allocated", "3 GiB")
        assert look.snapshots() == 1
        await page.evaluate("hash => (location.hash = hash)", f"#/node/{T4}")
        await expect(page.get_by_role("link", name="default/seen", exact=True)).to_be_visible()
        await expect(page.get_by_text("Actual usage is unknown")).to_have_count(0)
        # One is pending, and its row has the reason.
        await cluster.create(gpu_pod("too-large", 20))
        await page.get_by_role("link", name=re.compile("^Pending")).click()
        row = page.get_by_role("row").filter(has_text="default/too-large")
        await expect(row).to_contain_text("the largest GPU has")
        await row.get_by_role("link").click()
        await expect(page.get_by_text("Suggestion")).to_be_visible()
        # A GPU fails.
        await page.get_by_role("link", name="Overview", exact=True).click()
        file = cluster.playground.gpu_file(V100)
        good = cluster.playground.gpus_of(V100)
        gpus.write(file, replace(good, gpus=(replace(good.gpus[0], fault="lost"), *good.gpus[1:])))
        await look.tile("GPUs", "1 unhealthy")
        # The dashboard is killed: the page shows that it is not live, and continues when it is back.
        cluster.playground.kill("dashboard")
        await look.state("Connection lost")
        await look.state("Live")
        await cluster.delete_all()
        await look.tile("Pods", "0")
        await look.tile("Pending", "0")
        assert look.bad == []
    cluster.assert_sound()
