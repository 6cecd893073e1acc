"""Probes are answered whoever holds connections: what is not answered fails the kubelet's liveness probe, and ends the agent."""

import asyncio
import contextlib

from gpushare.kube.reviews import AccessReviews
from gpushare.nodeagent.probes import Probes
from gpushare.serving.readers import Readers

TENANT, KUBELET = "127.0.0.2", "127.0.0.3"


@contextlib.asynccontextmanager
async def listening():
    probes = Probes(list, {}, {}, Readers(AccessReviews(None)))
    async with await probes.start("127.0.0.1", 0) as listener:
        yield listener.sockets[0].getsockname()


async def probed(address):
    reader, writer = await asyncio.open_connection(*address, local_addr=(KUBELET, 0))
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(5):
            return (await reader.read()).partition(b"\r\n")[0]
    finally:
        writer.close()


async def test_idle_connections_of_others_keep_no_probe_out():
    async with listening() as address, contextlib.AsyncExitStack() as stack:
        for number in range(100):
            _, writer = await asyncio.open_connection(*address, local_addr=(TENANT, 0))
            stack.callback(writer.close)
            if number % 10 == 0:
                writer.write(b"GET /half")
                assert await probed(address) == b"HTTP/1.1 200 OK"


async def test_who_holds_the_most_connections_loses_the_oldest():
    async with listening() as address, contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(17):
            reader, writer = await asyncio.open_connection(*address, local_addr=(TENANT, 0))
            stack.callback(writer.close)
            readers.append(reader)
        async with asyncio.timeout(5):
            assert await readers[0].read() == b""
        assert not readers[1].at_eof()
