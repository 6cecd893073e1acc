"""Every command of the documentation is typed into a playground, page by page, as a reader would."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from documentation.blocks import Block, Page, read_page
from documentation.navigation import in_order
from tests.docs.places import Place, Where, place_of
from tests.docs.playgrounds import Playground, Wanted, playground, wanted
from tests.docs.typist import PROJECT

_PAGE_S: Final = 600
_ENOUGH: Final = 5
BROUGHT: Final = "scripts/install-system-packages brings on Debian"
#: Property of a block: its line, and the result of ``place_of``.
BLOCK: Final = "block"


def _pages() -> list[Page]:
    """Pages with typed blocks in the navigation's order, those of one playground next to each other."""
    named = [*(f"docs/{path}" for path in in_order(PROJECT / "docs")), "README.md", "examples/README.md"]
    read = [read_page(name, (PROJECT / name).read_text()) for name in named]
    typed = [page for page in read if any(block.is_typed for block in page.blocks)]
    return sorted(typed, key=lambda page: " ".join(page.playground))


PAGES: Final = _pages()


def _runs(page: Page) -> bool:
    return any(block.is_for_playground for block in page.blocks)


class Playgrounds:
    """At most one runs: it is reused for the next page if that requires the same."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()
        self._running: tuple[Wanted, Playground] | None = None
        self._made = 0

    async def for_page(self, page: Page) -> Playground:
        want = wanted(page)
        if self._running and self._running[0] == want:
            return self._running[1]
        await self.end()
        self._made += 1
        made = await self._stack.enter_async_context(playground(want, self._folder / str(self._made)))
        self._running = want, made
        return made

    async def end(self) -> None:
        self._running = None
        await self._stack.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def playgrounds(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Playgrounds]:
    made = Playgrounds(tmp_path_factory.mktemp("docs"))
    yield made
    await made.end()


@pytest.mark.timeout(2 * _PAGE_S)
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "page",
    [pytest.param(one, id=one.name, marks=pytest.mark.xdist_group(f"of {one.playground}")) for one in PAGES],
)
async def test_the_commands_of_a_page_print_what_it_shows(
    page: Page, playgrounds: Playgrounds, record_property: Callable[[str, object], None]
) -> None:
    def note(block: Block, where: Where) -> None:
        record_property(BLOCK, (f"{page.name}:{block.line}", *map(str, where)))

    for block in page.blocks:
        if block.is_typed and not block.is_for_playground:
            note(block, place_of(block))
    if not _runs(page):
        return
    async with asyncio.timeout(_PAGE_S):
        there = await playgrounds.for_page(page)
        wrong: list[str] = []
        try:
            for block in page.blocks:
                wrong += await _follow(page, block, there, note)
                if len(wrong) >= _ENOUGH:
                    break
        finally:
            await there.tidy()
    assert not wrong, "\n\n".join(wrong)


async def _follow(
    page: Page, block: Block, there: Playground, note: Callable[[Block, Where], None]
) -> list[str]:
    if block.file:
        assert "/" not in block.file, (
            f"{page.name}:{block.line}: a file beside the commands, not {block.file}"
        )
        there.save(block)
    if not block.is_for_playground:
        return []
    if block.needs and there.lacks(block.needs):
        brought = "is no part of the project" if "/" in block.needs else BROUGHT
        note(block, (Place.NOWHERE, "", f"typed nowhere: needs {block.needs}, which {brought}"))
        return []
    note(block, place_of(block))
    return await there.follow(page, block)
