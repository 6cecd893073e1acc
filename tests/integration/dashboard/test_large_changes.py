"""Many nodes that change at once, in a real Chromium: the change is applied in parts with time for
others between, and drawn completely.
"""

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from benchmarks.api_server import node_name
from tests.integration.dashboard.bed import bed, looking

pytestmark = pytest.mark.asyncio(loop_scope="session")

NODES = 600
#: The names of the measures for each part that is applied, and for each drawing.
WATCH = """() => {
    const take = (entries) => { for (const one of entries) seen.push(one.name); };
    window.seen = [];
    window.observer = new PerformanceObserver((list) => take(list.getEntries()));
    observer.observe({ entryTypes: ["measure"] });
    window.last = () => { take(observer.takeRecords()); return seen.at(-1); };
}"""
UNDER_THE_RING = """() => {
    const canvas = document.querySelector("canvas"), ring = document.querySelector(".ring");
    const ratio = canvas.width / canvas.clientWidth, at = new DOMMatrix(ring.style.transform), middle = ring.offsetWidth / 2;
    const [red, green, blue] = canvas.getContext("2d").getImageData((at.e + middle) * ratio, (at.f + middle) * ratio, 1, 1).data;
    const is = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const seen = `#${[red, green, blue].map((part) => part.toString(16).padStart(2, "0")).join("")}`;
    return ["--state-in-service", "--state-unhealthy"].find((name) => is(name) === seen) ?? seen;
}"""


async def colours(page: Page) -> list[str]:
    """The map's colours by health: the last node's last and first GPU, and the first node's."""
    found = []
    for keys in (["End"], ["ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowUp"], ["Home"]):
        for key in keys:
            await page.keyboard.press(key)
        found.append(await page.evaluate(UNDER_THE_RING))
    return found


async def test_a_change_of_all_nodes_is_applied_in_parts_and_drawn_completely(
    window: Browser, tmp_path: Path
) -> None:
    async with bed(tmp_path, NODES) as made, looking(window, made) as look:
        page = look.page
        await look.tile("GPUs", "4,800")
        await page.keyboard.press("6")
        # It is drawn with the next frame.
        await expect(page.locator("canvas")).to_have_attribute("aria-label", re.compile("Health"))
        await page.locator("canvas").focus()
        assert await colours(page) == ["--state-in-service"] * 3
        await page.evaluate(WATCH)
        for number in range(NODES):
            made.break_gpu(number, "XID 79")
        await look.tile("GPUs", "600 unhealthy")
        await page.wait_for_function("() => window.last() === 'gpushare:draw'")
        frames: list[str] = await page.evaluate("window.seen")
        parts, drawn = frames.count("gpushare:apply"), frames.count("gpushare:draw")
        assert parts >= NODES // 128
        # At most one frame per part, on a slow machine, and the last one.
        assert drawn <= parts + 1
        assert await colours(page) == ["--state-in-service", "--state-unhealthy", "--state-unhealthy"]
        # And single changes afterwards.
        await page.evaluate("seen.length = 0")
        made.remove_node(NODES - 1)
        await look.tile("GPUs", "599 unhealthy")
        await page.evaluate("hash => (location.hash = hash)", f"#/node/{node_name(0)}")
        await expect(page.get_by_text("XID 79")).to_be_visible()
