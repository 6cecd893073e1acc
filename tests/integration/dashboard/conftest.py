"""Shared by the tests of this folder: one Chromium, and a dashboard with short intervals."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from gpushare.dashboard.data import pending
from gpushare.dashboard.server import app, sessions
from tests.integration.dashboard.bed import Bed, bed, browser


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the server's intervals: nothing here is about their length."""
    monkeypatch.setattr(app, "WRONG_TOKEN_DELAY_S", 0.05)
    monkeypatch.setattr(sessions, "TICK_S", 0.05)
    monkeypatch.setattr(pending, "FRESH_S", 0.05)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def window() -> AsyncIterator[Browser]:
    """One browser for all tests; each test gets a page without state of earlier ones."""
    async with browser() as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def made(tmp_path: Path) -> AsyncIterator[Bed]:
    async with bed(tmp_path) as started:
        yield started
