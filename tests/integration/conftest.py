"""Shared by the integration tests: servers in the test's own process stop without delay."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn.server

# kubectl, which is started a thousand times, exits before garbage matters; collecting took a quarter of
# its time. Real servers keep running: they do collect.
os.environ.setdefault("GOGC", "100" if os.environ.get("GPUSHARE_TEST_CONTROL_PLANE") else "off")

_UVICORN_PACE = 0.05
"""uvicorn polls every 0.1 s whether to stop, and whether its connections have closed; here the interval is shortened by this factor."""


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
