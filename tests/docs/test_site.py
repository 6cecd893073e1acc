"""The site in a real Chromium: search finds a page, from files and from a server, without requests to other hosts."""

import contextlib
import functools
import http.server
import re
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, Request, expect
from playwright.async_api import TimeoutError as NotInTime

from documentation import site
from documentation.__main__ import DOCS
from tests.integration.dashboard.bed import browser


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from the pages as they are."""
    folder = tmp_path_factory.mktemp("built")
    site.build(DOCS, folder / "work", folder / "site", lambda _: None)
    return folder / "site"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def served(built: Path) -> Iterator[str]:
    """Its address on a server such as ``python -m http.server``."""
    handler = functools.partial(_Quiet, directory=str(built))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="site")
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(timeout=10)


@pytest_asyncio.fixture
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as started:
        yield started


@contextlib.asynccontextmanager
async def opened(chromium: Browser, address: str) -> AsyncIterator[tuple[Page, list[str], list[str]]]:
    """A page, its console's errors, and the addresses that it requested."""
    page = await chromium.new_page()
    troubles: list[str] = []
    addresses: list[str] = []

    def log(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            troubles.append(message.text)

    def requested(request: Request) -> None:
        addresses.append(request.url)

    page.on("console", log)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", requested)
    await page.goto(address)
    yield page, troubles, addresses
    await page.close()


async def search(page: Page, words: str) -> None:
    """Type into the search as a reader does, and follow the first page that it finds.

    The key that opens it works once the site's script runs, some time after the page is loaded, so it is pressed again
    if nothing appears.
    """
    box = page.locator("dialog[open] input")
    for _ in range(20):
        await page.keyboard.press("/")
        with contextlib.suppress(NotInTime):
            await box.wait_for(timeout=1000)
            break
    await box.fill(words)
    await expect(page.get_by_text(re.compile(r"^\d+ results?$"))).to_be_visible()
    await page.keyboard.press("Enter")


@pytest.mark.asyncio
@pytest.mark.parametrize("page_name", ["index.html", "guide/install.html"])
async def test_search_finds_a_page_in_a_site_opened_as_files(
    chromium: Browser, built: Path, page_name: str
) -> None:
    async with opened(chromium, (built / page_name).as_uri()) as (page, troubles, addresses):
        await search(page, "first shared gpu tutorial")
        await expect(page).to_have_url(
            re.compile(f"^{re.escape(built.as_uri())}/tutorial/first-shared-gpu.html")
        )
        assert not troubles
        assert all(url.startswith((built.as_uri(), "about:", "data:")) for url in addresses), addresses


@pytest.mark.asyncio
async def test_search_finds_a_page_in_a_served_site(chromium: Browser, served: str) -> None:
    async with opened(chromium, f"{served}/index.html") as (page, troubles, addresses):
        await search(page, "first shared gpu tutorial")
        await expect(page).to_have_url(re.compile(f"^{re.escape(served)}/tutorial/first-shared-gpu.html"))
        assert not troubles
        assert all(url.startswith((served, "about:", "data:", "blob:")) for url in addresses), addresses


@pytest.mark.asyncio
async def test_the_button_copies_commands_without_prompts_and_outputs(chromium: Browser, served: str) -> None:
    context = await chromium.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = await context.new_page()
    await page.goto(f"{served}/tutorial/first-shared-gpu.html")
    block = page.locator("pre").filter(has_text="kubectl get nodes -L")
    await block.hover()
    await block.get_by_title("Copy to clipboard").click()
    await expect(page.get_by_text("Copied to clipboard")).to_be_visible()
    copied: str = await page.evaluate("navigator.clipboard.readText()")
    lines = [line for line in copied.splitlines() if line.strip()]
    assert lines == ["kubectl get nodes -L ack.node.gpu.schedule", "kubectl inspect cgpu"]
    await context.close()
