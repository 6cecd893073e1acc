"""axe-core over every view in both themes: nothing serious."""

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, expect

from benchmarks.api_server import node_name
from tests.integration.dashboard.bed import Bed, looking
from tests.integration.dashboard.test_page import WAITS

VIEWS = {
    "overview": ("#/", "canvas"),
    "nodes": ("#/nodes", "table"),
    "node": (f"#/node/{node_name(0)}", "article"),
    "gpu": (f"#/node/{node_name(0)}/gpu/0", "article"),
    "pod": ("#/pod/default/pod-0", "table"),
    "pod that waits": ("#/pod/default/pod-60", ".remedy"),
    "waiting": ("#/waiting", "table"),
    "fragmentation": ("#/fragmentation", "table"),
    "history": ("#/history", "svg.never, .chart svg"),
}


async def serious(page: object) -> list[str]:
    """What axe finds that is serious or worse."""
    found = await Axe().run(page)  # type: ignore[arg-type]
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes'][:3]]}"
        for one in found.response["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_view_has_a_serious_finding(window: Browser, made: Bed, scheme: str) -> None:
    made.line = [WAITS]
    # The policy of the page keeps axe out, too: it is injected past it.
    async with looking(window, made, color_scheme=scheme, bypass_csp=True) as look:
        findings = []
        for name, (address, there) in VIEWS.items():
            await look.page.evaluate("hash => (location.hash = hash)", address)
            await expect(look.page.locator(f"main {there}").first).to_be_visible()
            findings += [f"{name}: {one}" for one in await serious(look.page)]
        await look.page.keyboard.press("?")
        findings += [f"help: {one}" for one in await serious(look.page)]
        assert findings == []


async def test_neither_has_the_login(window: Browser, made: Bed) -> None:
    async with looking(window, made, log_in=False, bypass_csp=True) as look:
        await expect(look.page.get_by_role("dialog")).to_be_visible()
        assert await serious(look.page) == []
