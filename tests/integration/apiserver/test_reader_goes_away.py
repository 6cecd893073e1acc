"""A client that vanishes in the middle of an answer is no error of the server's."""

import asyncio
import logging

import pytest

from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import Unreachable
from gpushare.kube.client.session import Session
from gpushare_playground.apiserver.reads.watches import Watcher


@pytest.mark.parametrize("gone", [True, False])
async def test_a_watch_that_is_cut_while_it_is_written_to_is_logged_only_if_the_fault_is_ours(
    server, monkeypatch, caplog, gone
):
    ended = asyncio.Event()

    async def cut(self, response, *arguments, **options):
        try:
            if not gone:
                raise ConnectionResetError("something behind us")
            response._req.transport.abort()
            await response.write(b"to no reader")
        finally:
            asyncio.get_running_loop().call_soon(ended.set)

    monkeypatch.setattr(Watcher, "_follow", cut)
    async with Session(load_access(str(server.kubeconfig_path))) as session:
        with caplog.at_level(logging.ERROR), pytest.raises(Unreachable):
            async for _ in session.stream("/api/v1/pods", {"watch": "1"}, idle_timeout_s=5.0):
                pass
        async with asyncio.timeout(5):
            await ended.wait()
    assert ("Error handling request" in caplog.text) is not gone
