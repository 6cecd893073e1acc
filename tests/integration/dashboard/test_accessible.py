"""axe-core over every view in both themes: nothing serious."""

from collections.abc import Awaitable

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, expect

from benchmarks.api_server import node_name
from tests.integration.dashboard.bed import Bed, Look, looking
from tests.integration.dashboard.test_page import WAITS

pytestmark = pytest.mark.asyncio(loop_scope="session")

VIEWS = {
    "overview": ("#/", "canvas"),
    "nodes": ("#/nodes", "table"),
    "node": (f"#/node/{node_name(0)}", "article"),
    "gpu": (f"#/node/{node_name(0)}/gpu/0", "article"),
    "pod": ("#/pod/default/pod-0", "table"),
    "pod that waits": ("#/pod/default/pod-60", ".suggestion"),
    "waiting": ("#/waiting", "table"),
    "fragmentation": ("#/fragmentation", "table"),
    "history": ("#/history", "svg.never, .chart svg"),
}


#: Narrow phones and usual ones; both are below the same breakpoint.
WIDTHS = (360, 400)
#: Rules about colours; everything else that axe checks is the same in both themes and at each width.
COLOURS = {"runOnly": ["color-contrast"]}


async def serious(page: object, options: dict[str, list[str]] | None = None) -> list[str]:
    """Findings of axe that are serious or worse; ``options`` are its own."""
    found = await Axe().run(page, options=options)  # type: ignore[arg-type]
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes'][:3]]}"
        for one in found.response["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_view_has_a_serious_finding(window: Browser, made: Bed, scheme: str) -> None:
    made.line = [WAITS]
    # The page's policy blocks axe, too: it is injected past it.
    async with looking(window, made, color_scheme=scheme, bypass_csp=True) as look:
        findings, options = [], COLOURS if scheme == "dark" else None
        for name, (address, there) in VIEWS.items():
            await look.page.evaluate("hash => (location.hash = hash)", address)
            await expect(look.page.locator(f"main {there}").first).to_be_visible()
            findings += [f"{name}: {one}" for one in await serious(look.page, options)]
        await look.page.keyboard.press("?")
        findings += [f"help: {one}" for one in await serious(look.page, options)]
        assert findings == []


def aside(look: Look) -> Awaitable[list[str]]:
    """What of the page is reachable only by scrolling sideways, except what is hidden on purpose."""
    return look.page.evaluate(  # type: ignore[no-any-return]
        """() => {
          const wide = document.documentElement.clientWidth, found = [];
          if (document.scrollingElement.scrollWidth > wide) found.push(`the page is ${document.scrollingElement.scrollWidth} wide`);
          for (const one of document.querySelectorAll("header *, main *")) {
            if (one.closest(".sr, [hidden], svg, .cards thead:not(:has(.sort))") || !one.checkVisibility()) continue;
            const box = one.getBoundingClientRect();
            if (box.width && (box.left < -1 || box.right > wide + 1)) found.push(one.outerHTML.slice(0, 120));
          }
          return found;
        }"""
    )


@pytest.mark.parametrize("width", WIDTHS)
async def test_on_a_phone_everything_is_visible_without_scrolling_sideways(
    window: Browser, made: Bed, width: int
) -> None:
    long = {
        **WAITS,
        "key": f"default/{'a-long-name-' * 5}0",
        "asks": "1,000,000 GiB of GPU memory, 100% of compute",
    }
    made.line = [
        WAITS,
        {**long, "reason": "each node in its turn says more than a line, " * 5, "suggestion": ""},
    ]
    size = {"width": width, "height": 800}
    async with looking(window, made, viewport=size, has_touch=True, bypass_csp=True) as look:
        page, findings = look.page, []
        for name, (address, there) in VIEWS.items():
            await page.evaluate("hash => (location.hash = hash)", address)
            await expect(page.locator(f"main {there}").first).to_be_visible()
            findings += [f"{name}: {one}" for one in await aside(look)]
            if width == WIDTHS[0]:
                findings += [f"{name}: {one}" for one in await serious(page)]
        # What opens over the page stays within it, too.
        await page.evaluate("location.hash = '#/'")
        for column in (0.02, 0.5, 0.98):
            box = await page.locator("canvas").bounding_box()
            assert box is not None
            await page.mouse.move(box["x"] + column * box["width"], box["y"] + 30)
            findings += [f"tip at {column}: {one}" for one in await aside(look)]
        await page.locator("#search").fill("cn-")
        await expect(page.locator("#found li").first).to_be_visible()
        findings += [f"search: {one}" for one in await aside(look)]
        await page.keyboard.press("Escape")
        assert findings == []
        # Each row is a card: the head next to each cell, and still a table with its rows to a screen reader.
        await page.evaluate("location.hash = '#/waiting'")
        row = page.get_by_role("row").filter(has_text="free 3 units on one GPU")
        await expect(row.get_by_role("cell")).to_have_count(5)
        announced = (
            await row.get_by_role("cell")
            .nth(3)
            .evaluate("cell => getComputedStyle(cell, '::before').content")
        )
        assert announced == '"Reason"'
        await page.evaluate("location.hash = '#/nodes'")
        await page.get_by_role("button", name="Memory allocated").click()
        await expect(page.get_by_role("columnheader", name="Memory allocated")).to_have_attribute(
            "aria-sort", "ascending"
        )


async def test_the_login_has_no_serious_finding(window: Browser, made: Bed) -> None:
    async with looking(window, made, log_in=False, bypass_csp=True) as look:
        await expect(look.page.get_by_role("dialog")).to_be_visible()
        assert await serious(look.page) == []
