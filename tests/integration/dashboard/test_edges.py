"""The right edge of the window, with scrollbars that take space and without: content reaches it,
and nothing moves.
"""

import base64
import json

import pytest
from playwright.async_api import Browser, Page, expect

from tests.integration.dashboard.bed import Bed, browser, looking

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Where the bar and the dialog are, and how much of the window's width is left next to its content.
PLACES = """() => {
    const place = (selector) => { const { left, right } = document.querySelector(selector).getBoundingClientRect(); return [left, right]; };
    return { bar: place("header.bar"), main: place("main"), beside: innerWidth - document.documentElement.clientWidth };
}"""
#: Lightness of the picture at some points of a line across it, 0 to 255.
LIGHT = """async ([picture, places]) => {
    const bytes = Uint8Array.from(atob(picture), (letter) => letter.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
    const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    return places.map(([x, y]) => { const [red, green, blue] = context.getImageData(x, y, 1, 1).data; return (red + green + blue) / 3; });
}"""


@pytest.mark.parametrize("hidden", [True, False], ids=["no scrollbars", "scrollbars that take room"])
async def test_nothing_moves_and_no_strip_stays_light_when_a_dialog_opens(made: Bed, hidden: bool) -> None:
    async with browser(hide_scrollbars=hidden) as window, looking(window, made) as look:
        page = look.page
        await look.tile("GPUs", "160")
        before = await page.evaluate(PLACES)
        assert before["bar"] == [0, 1280 - before["beside"]]
        assert (before["beside"] == 0) is hidden
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
        assert await page.evaluate(PLACES) == before
        # Next to the dialog and at the very edge, away from the bar and from a scrollbar's thumb.
        middle, edge = await _light(window, page, [[1100, 780], [1277, 780]])
        assert edge <= middle + 2, json.dumps([middle, edge])
        await page.keyboard.press("Escape")
        # A view that is longer than the window, and one that is not.
        for view in ("#/nodes", "#/history"):
            await page.evaluate("hash => (location.hash = hash)", view)
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
            assert await page.evaluate(PLACES) == before


async def _light(window: Browser, page: Page, places: list[list[int]]) -> list[float]:
    picture = base64.b64encode(await page.screenshot()).decode()
    # In a page of its own: ours may load pictures only from its server.
    reader = await window.new_page()
    found: list[float] = await reader.evaluate(LIGHT, [picture, places])
    await reader.close()
    return found
