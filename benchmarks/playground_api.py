"""The playground's API server under many pods: how fast they are made, and how a list grows with them.

Usage: ``python -m benchmarks [--quick] playground``.
"""

import asyncio
import json
import ssl
import statistics
import tempfile
import time
from pathlib import Path

import aiohttp

from gpushare_playground.apiserver import ApiServer
from gpushare_playground.apiserver.server import ADMIN

Figures = dict[str, tuple[float, str]]

PODS = "/api/v1/namespaces/default/pods"
AT_ONCE = 20
FEW, MANY = 2_000, 20_000
_LISTS = 5


def measure(*, quick: bool) -> Figures:
    """Pods made per second over TLS, seconds for a list of 20,000, and what a pod of it costs against one of 2,000."""
    return asyncio.run(_measure(200 if quick else 2_000))


async def _measure(made: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        async with ApiServer(Path(folder), kubelet_token="none", users=()) as server:
            trust = ssl.create_default_context(cadata=server.ca_pem.decode())
            headers = {"Authorization": f"Bearer {server.tokens[ADMIN]}"}
            async with aiohttp.ClientSession(
                server.url, headers=headers, connector=aiohttp.TCPConnector(ssl=trust)
            ) as session:
                return await _figures(server, session, made)


async def _figures(server: ApiServer, session: aiohttp.ClientSession, made: int) -> Figures:
    begun_s = time.perf_counter()
    for first in range(0, made, AT_ONCE):
        await asyncio.gather(*(_create(session, number) for number in range(first, first + AT_ONCE)))
    created_per_s = made / (time.perf_counter() - begun_s)
    record = server.store.get("pods", "default", "made-0")
    assert record is not None
    pattern = json.dumps(record.obj)
    list_s = {}
    for count in (FEW, MANY):
        for number in range(server.store.count("pods"), count):
            pod = json.loads(pattern)
            pod["metadata"] |= {"name": f"put-{number}", "uid": str(number)}
            server.store.put("pods", "default", f"put-{number}", pod)
        list_s[count] = statistics.median([await _list(session, count) for _ in range(_LISTS)])
    return {
        "playground_created_per_s": (created_per_s, "1/s"),
        f"playground_list_s_{MANY}": (list_s[MANY], "s"),
        f"playground_list_per_pod_ratio_{MANY}_to_{FEW}": (
            list_s[MANY] / MANY / (list_s[FEW] / FEW),
            "ratio",
        ),
    }


async def _create(session: aiohttp.ClientSession, number: int) -> None:
    container = {"name": "main", "image": "registry.example/bench:1"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"made-{number}", "labels": {"app": "bench"}},
        "spec": {"containers": [container]},
    }
    async with session.post(PODS, json=pod) as answer:
        if answer.status != 201:
            raise RuntimeError(f"{PODS}: {answer.status} {await answer.text()}")


async def _list(session: aiohttp.ClientSession, count: int) -> float:
    begun_s = time.perf_counter()
    async with session.get(PODS) as answer:
        body = await answer.read()
    taken_s = time.perf_counter() - begun_s
    listed = body.count(b'"kind":"Pod"')
    if listed != count:
        raise RuntimeError(f"{PODS}: {listed} pods, wanted {count}")
    return taken_s
