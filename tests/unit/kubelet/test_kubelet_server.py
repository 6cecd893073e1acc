"""Readers of logs that leave."""

import asyncio
import logging
from types import SimpleNamespace

import pytest

from gpushare.playground.kubelet.server import Server

TOKEN = "token-of-the-test"
LINE = b"2026-01-01T00:00:01.000000001Z stdout F "


class OnePod:
    """A pod whose container runs, and says what a test writes into its log."""

    def __init__(self, log):
        self.log = log

    def attempt(self, namespace, pod, container, *, previous):
        return SimpleNamespace(log=self.log, ended=None)

    def described_pods(self):
        return []


@pytest.fixture
async def served(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(LINE + b"one\n")
    server = Server(OnePod(log), TOKEN)
    port = await server.start("127.0.0.1", 0)
    yield log, port
    await server.stop()


def handlers():
    return [task for task in asyncio.all_tasks() if "RequestHandler" in repr(task.get_coro())]


@pytest.mark.parametrize("says_more", [True, False], ids=["the container says more", "it is silent"])
async def test_a_reader_that_goes_leaves_neither_an_error_nor_a_handler(served, caplog, says_more):
    log, port = served
    caplog.set_level(logging.INFO)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"GET /containerLogs/default/p/c?follow=true HTTP/1.1\r\nHost: x\r\n"
        b"Authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    )
    async with asyncio.timeout(10):
        await reader.readuntil(b"one\n")
        assert handlers()
        writer.transport.abort()
        if says_more:
            with log.open("ab") as stream:
                stream.write(LINE + b"more\n")
        while handlers():
            await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records] == []
