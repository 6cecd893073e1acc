"""What the integration tests share: servers in the test's own process end without delay."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn.server

# kubectl, which is started a thousand times, ends before garbage would be in its way; a quarter of its time went into that.
# Real servers do not end: they collect theirs.
os.environ.setdefault("GOGC", "100" if os.environ.get("GPUSHARE_TEST_CONTROL_PLANE") else "off")

_UVICORN_PACE = 0.05
"""uvicorn looks every 0.1 s whether it is to end, and whether its connections have ended: this much of that here."""


class _Prompt:
    """asyncio as uvicorn's server uses it, with shorter pauses."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        pause = asyncio.sleep
        await pause(seconds * _UVICORN_PACE)


@pytest.fixture(scope="session", autouse=True)
def servers_end_promptly() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.server, "asyncio", _Prompt())
        yield
