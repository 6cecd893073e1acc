"""A client that disconnects in the middle of a response is not logged as a server error."""

import asyncio
import logging

import pytest

from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import Unreachable
from gpushare.kube.client.session import Session
from gpushare_playground.apiserver.reads.watches import Watcher


@pytest.mark.parametrize("gone", [True, False])
async def test_a_watch_cut_during_a_write_is_logged_only_if_the_server_caused_it(
    server, monkeypatch, caplog, gone
):
    closed = asyncio.Event()

    async def cut(self, response, *arguments, **options):
        try:
            if not gone:
                raise ConnectionResetError("something behind us")
            response._req.transport.abort()
            await response.write(b"to no reader")
        finally:
            asyncio.get_running_loop().call_soon(closed.set)

    monkeypatch.setattr(Watcher, "_follow", cut)
    async with Session(load_access(str(server.kubeconfig_path))) as session:
        with caplog.at_level(logging.ERROR), pytest.raises(Unreachable):
            async for _ in session.stream("/api/v1/pods", {"watch": "1"}, idle_timeout_s=5.0):
                pass
        async with asyncio.timeout(5):
            await closed.wait()
    assert ("Error handling request" in caplog.text) is not gone
