"""Readers of logs that disconnect, and access to the server."""

import asyncio
import logging
import ssl
from types import SimpleNamespace

import aiohttp
import pytest

from gpushare_playground.certificate_authority import Authority
from gpushare_playground.kubelet.errors import BadSettings
from gpushare_playground.kubelet.server import Server
from gpushare_playground.kubelet.settings import TlsFiles

TOKEN = "token-of-the-test"
LINE = b"2026-01-01T00:00:01.000000001Z stdout F "


class OnePod:
    """A pod with a running container, whose log tests write."""

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


@pytest.mark.parametrize("writes_more", [True, False], ids=["the container says more", "it is silent"])
async def test_a_reader_that_disconnects_leaves_neither_an_error_nor_a_handler(served, caplog, writes_more):
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
        if writes_more:
            with log.open("ab") as stream:
                stream.write(LINE + b"more\n")
        while handlers():
            await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records] == []


@pytest.fixture
async def over_tls(tmp_path):
    """(port, TLS contexts by client) of a kubelet that serves HTTPS."""
    authority, stranger = Authority.new("authority"), Authority.new("stranger")
    identities = {
        "server": authority.issue("kubelet", hosts=["127.0.0.1"]),
        "API server": authority.issue("kube-apiserver-kubelet-client", organizations=["system:masters"]),
        "node": authority.issue("system:node:other", organizations=["system:nodes"]),
        "anonymous": None,
        "stranger": stranger.issue("kube-apiserver-kubelet-client", organizations=["system:masters"]),
    }
    (tmp_path / "ca.crt").write_bytes(authority.identity.certificate_pem)
    contexts = {}
    for name, identity in identities.items():
        context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
        if identity is not None:
            (tmp_path / f"{name}.crt").write_bytes(identity.certificate_pem)
            (tmp_path / f"{name}.key").write_bytes(identity.key_pem)
            context.load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
        contexts[name] = context
    files = TlsFiles(tmp_path / "server.crt", tmp_path / "server.key", tmp_path / "ca.crt")
    server = Server(OnePod(tmp_path / "log"), "", files)
    port = await server.start("127.0.0.1", 0)
    yield port, contexts
    await server.stop()


@pytest.mark.parametrize(
    ("user", "status"), [("API server", 200), ("node", 401), ("anonymous", 401), ("stranger", None)]
)
async def test_over_tls_only_the_api_server_has_access(over_tls, user, status):
    port, contexts = over_tls
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=contexts[user])) as client:
        request = client.get(f"https://127.0.0.1:{port}/pods")
        if status is None:
            with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
                await request
            return
        async with request as answer:
            assert answer.status == status


async def test_an_empty_token_is_refused_over_tls(over_tls):
    port, contexts = over_tls
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=contexts["anonymous"])) as client,
        client.get(f"https://127.0.0.1:{port}/pods", headers={"Authorization": "Bearer "}) as answer,
    ):
        assert answer.status == 401


def test_a_key_of_another_certificate_is_reported(tmp_path):
    authority = Authority.new("authority")
    one, other = (authority.issue("kubelet", hosts=["127.0.0.1"]) for _ in range(2))
    (tmp_path / "crt").write_bytes(one.certificate_pem)
    (tmp_path / "key").write_bytes(other.key_pem)
    with pytest.raises(BadSettings, match="--tls"):
        Server(OnePod(tmp_path / "log"), "", TlsFiles(tmp_path / "crt", tmp_path / "key", tmp_path / "crt"))
