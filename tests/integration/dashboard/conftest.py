"""What the tests of this folder share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.dashboard.bed import Bed, bed, window

__all__ = ["made", "window"]


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Bed]:
    async with bed(tmp_path) as started:
        yield started
