"""Which servers the session trusts, and how it authenticates."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trustme

from gpushare.kube.auth.access import Access
from gpushare.kube.client.errors import Unreachable
from gpushare.kube.client.session import Session
from tests.integration.kube.served import Served, serving

CA = trustme.CA()
OTHER_CA = trustme.CA()
CA_PEM = CA.cert_pem.bytes()


@asynccontextmanager
async def secured(*names: str, ask_certificate: bool = False) -> AsyncIterator[Served]:
    """A server whose certificate, signed by ``CA``, has those names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    CA.issue_cert(*names).configure_cert(context)
    if ask_certificate:
        CA.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    async with serving(context) as served:
        yield served


async def reach(access: Access) -> bytes:
    async with Session(access) as session:
        return await session.request("GET", "/version")


async def test_a_server_of_the_configured_ca_is_trusted() -> None:
    async with secured("127.0.0.1") as served:
        assert served.url.startswith("https://127.0.0.1:")
        assert await reach(Access(served.url, ca=CA_PEM)) == b"{}"


@pytest.mark.parametrize("ca", [OTHER_CA.cert_pem.bytes(), b""], ids=["another", "none"])
async def test_a_server_of_another_ca_is_refused(ca: bytes) -> None:
    async with secured("127.0.0.1") as served:
        with pytest.raises(
            Unreachable, match=r"certificate is not trusted.*check certificate-authority"
        ) as caught:
            await reach(Access(served.url, ca=ca))
    assert caught.value.sent is False
    assert served.requests == []


async def test_a_server_of_another_name_is_refused() -> None:
    async with secured("other.lab") as served:
        with pytest.raises(Unreachable, match=r"certificate is not trusted.*tls-server-name"):
            await reach(Access(served.url, ca=CA_PEM))
    assert served.requests == []


async def test_the_expected_server_name_can_be_configured() -> None:
    async with secured("other.lab") as served:
        assert await reach(Access(served.url, ca=CA_PEM, tls_server_name="other.lab")) == b"{}"


async def test_verification_is_skipped_only_when_configured() -> None:
    async with secured("other.lab") as served:
        assert await reach(Access(served.url, insecure=True)) == b"{}"


async def test_a_client_certificate_is_sent_and_accepted() -> None:
    leaf = CA.issue_cert("me")
    async with secured("127.0.0.1", ask_certificate=True) as served:
        access = Access(
            served.url,
            ca=CA_PEM,
            client_certificate=leaf.cert_chain_pems[0].bytes(),
            client_key=leaf.private_key_pem.bytes(),
        )
        assert await reach(access) == b"{}"


async def test_a_server_that_requires_a_client_certificate_refuses_clients_without_one() -> None:
    async with secured("127.0.0.1", ask_certificate=True) as served:
        with pytest.raises(Unreachable):
            await reach(Access(served.url, ca=CA_PEM))
    assert served.requests == []


async def test_a_server_that_speaks_no_tls_is_reported() -> None:
    async with serving() as served:
        with pytest.raises(Unreachable, match="check that the address speaks TLS") as caught:
            await reach(Access(served.url.replace("http:", "https:"), ca=CA_PEM))
    assert caught.value.sent is False


@asynccontextmanager
async def tunnelling() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A proxy that answers CONNECT by joining the client to the named server; its port, and the request
    heads that it received.
    """
    heads: list[bytes] = []

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while piece := await source.read(65536):
            sink.write(piece)
        sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        host, port = heads[-1].split()[1].decode().split(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        for end in (far_writer, writer):
            await end.wait_closed()
        done.set()

    done = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
        await asyncio.wait_for(done.wait(), 5)


async def test_tls_goes_through_a_proxy_from_end_to_end() -> None:
    async with secured("other.lab") as served, tunnelling() as (proxy, heads):
        access = Access(
            served.url,
            ca=CA_PEM,
            tls_server_name="other.lab",
            token="secret",
            proxy=f"http://user:word@{proxy}",
        )
        assert await reach(access) == b"{}"
    assert heads[0].startswith(b"CONNECT 127.0.0.1:")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"user:word") in heads[0]
    assert b"secret" not in heads[0]
    assert served.requests[0].headers["Authorization"] == "Bearer secret"
