"""Two schedulers, a leader and a standby: the leader is killed in the middle of a gang, and of a stream of
Bindings.
"""

import asyncio
import contextlib
import itertools
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from yarl import URL

from gpushare.api import names
from gpushare.kube.auth.access import load_access
from gpushare.kube.auth.credentials import Credentials
from gpushare.kube.client.errors import ApiError
from gpushare.kube.client.session import MERGE_PATCH
from gpushare_playground.cluster.parts import Part
from gpushare_playground.cluster.real import RealControl
from tests.integration.whole.cluster import Json, node_of, record_of, waits_because
from tests.integration.whole.test_killed_parts import fits, never_above_capacity
from tests.integration.whole.world import World, gpu_pod, shared_node, until, world
from tests.patience import SLOWNESS

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

#: A leader on a busy machine may be late by seconds.
LEASE_S = 6 * SLOWNESS
GANG, SOME_OF_GANG = 8, 3
STREAM, LET_THROUGH = 50, 20
#: As many pods of 3 units as fit.
EVERYTHING, SOME = 40, 15
#: Pods that a unit of a policy may hold, and how many of them the first leader binds there.
MOST_ON_FOUR, LET_ON_FOUR = 10, 6
#: 15 GiB on each of eight GPUs.
NODES = (shared_node("four", "core-mem-4"), shared_node("more", "core-mem-4"))
NUMBERS = itertools.count()
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{names.SCHEDULER_NAME}"


def member(name: str) -> Json:
    """A pod of the gang."""
    labels = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: str(GANG)}
    return gpu_pod(name, 8, labels=labels)


class Narrows:
    """A relay to the API server that passes ``most`` Bindings and holds all others until their sender is dead."""

    def __init__(self, kubeconfig: Path) -> None:
        self.most = STREAM
        self.passed = 0
        self.blocked = asyncio.Event()
        self._hung = 0
        self._access = load_access(str(kubeconfig))

    @contextlib.asynccontextmanager
    async def opened(self, kubeconfig: Path) -> AsyncIterator[None]:
        """Serve; clients with ``kubeconfig`` connect through it."""
        credentials = Credentials(self._access)
        self._headers = {"Authorization": credentials.authorization} if credentials.authorization else {}
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=credentials.tls or True), timeout=aiohttp.ClientTimeout(None)
        ) as self._http:
            app = web.Application(client_max_size=1 << 24)
            app.router.add_route("*", "/{path:.*}", self._pass)
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            _write_kubeconfig(kubeconfig, f"http://{host}:{port}")
            try:
                yield
            finally:
                await runner.cleanup()

    def hang_watches(self) -> None:
        """Let nothing more through the open watches, and keep them open."""
        self._hung += 1

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if request.path.endswith("/binding"):
            if self.passed == self.most:
                self.blocked.set()
                await asyncio.Event().wait()
            self.passed += 1
        headers = dict(self._headers)
        if "Content-Type" in request.headers:
            headers["Content-Type"] = request.headers["Content-Type"]
        url = URL(self._access.server.rstrip("/") + request.raw_path, encoded=True)
        async with self._http.request(request.method, url, data=body, headers=headers) as answer:
            passed_on = web.StreamResponse(
                status=answer.status, headers={"Content-Type": answer.headers.get("Content-Type", "")}
            )
            await passed_on.prepare(request)
            hung = self._hung
            async for part in answer.content.iter_any():
                if request.query.get("watch") and self._hung != hung:
                    await asyncio.Event().wait()
                await passed_on.write(part)
            await passed_on.write_eof()
            return passed_on


def _write_kubeconfig(path: Path, server: str) -> None:
    context = {"name": "n", "context": {"cluster": "n", "user": "n"}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "n",
        "clusters": [{"name": "n", "cluster": {"server": server}}],
        "contexts": [context],
        "users": [{"name": "n", "user": {}}],
    }
    path.write_text(json.dumps(config))


class Replica:
    """An extender and its kube-scheduler, neither of which is restarted."""

    def __init__(self, cluster: World) -> None:
        self._cluster = cluster
        self._state = cluster.playground.state
        self.name = f"replica-{next(NUMBERS)}"
        self.way = Narrows(cluster.playground.control.access("extender"))
        self._parts: list[Part] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Replica"]:
        """Runs from the moment when it could lead."""
        kubeconfig = self._state / f"{self.name}.kubeconfig"
        port_file = self._state / f"{self.name}.port"
        async with self.way.opened(kubeconfig):
            self._start(
                "extender",
                ["gpushare", "scheduler", "--kubeconfig", str(kubeconfig), "--port-file", str(port_file)]
                + ["--listen", "127.0.0.1:0", "--lease", f"kube-system/{names.SCHEDULER_NAME}"],
            )

            async def ready() -> bool:
                if not port_file.exists():
                    return False
                url = f"http://127.0.0.1:{port_file.read_text().strip()}/readyz"
                async with aiohttp.ClientSession() as http:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with http.get(url) as answer:
                            return answer.status == 200
                return False

            try:
                await until(ready, f"the extender of {self.name} is ready")
                self._start(
                    "kubescheduler",
                    ["gpushare_playground.kubescheduler", "--lease-seconds", str(LEASE_S)]
                    + ["--kubeconfig", str(self._cluster.playground.control.access("kubescheduler"))]
                    + ["--extender", f"http://127.0.0.1:{port_file.read_text().strip()}/gpushare"],
                )
                yield self
            finally:
                await asyncio.gather(*(part.stop() for part in self._parts))

    def _start(self, what: str, arguments: list[str]) -> None:
        log = self._state / "log" / f"{self.name}-{what}.log"
        command = [sys.executable, "-m", *arguments]
        part = Part(f"{self.name} {what}", command, log, on_end=lambda: None)
        part.start()
        self._parts.append(part)

    def kill(self) -> None:
        """``kill -9`` of both, as when their node loses power."""
        for part in self._parts:
            part.kill(signal.SIGKILL)


async def leader(cluster: World) -> str:
    """The holder of the lease; empty where there is none."""
    try:
        lease = json.loads(await cluster.session.request("GET", LEASE))
    except ApiError:
        return ""
    return str(lease["spec"].get("holderIdentity") or "")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[World]:
    """A cluster without a scheduler, in which every GPU's allocation is checked."""
    async with world(*NODES, check=never_above_capacity) as cluster:
        if isinstance(cluster.playground.control, RealControl):
            pytest.skip(
                "the real kube-scheduler's fail-over is tried by tests/e2e/charts/test_scheduler_pod.py"
            )
        for part in ("kubescheduler", "extender"):
            await cluster.playground.parts[part].stop()
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def leaderless(cluster: World) -> AsyncIterator[World]:
    """The cluster, empty and without a lease."""
    yield cluster
    assert not cluster.over, "\n".join(cluster.over)
    await cluster.pods.until(lambda: fits(cluster), "no GPU is allocated more than once")
    cluster.assert_sound()
    await cluster.session.request("DELETE", LEASE)
    await cluster.delete_all()


@contextlib.asynccontextmanager
async def leading_and_waiting(cluster: World) -> AsyncIterator[tuple[Replica, Replica]]:
    """Two replicas; the first leads."""
    async with Replica(cluster).running() as first:
        await until(lambda: leader(cluster), "the first leads")
        async with Replica(cluster).running() as second:
            yield first, second


def bound(cluster: World) -> list[str]:
    return [key for key, pod in cluster.pods.items.items() if node_of(pod)]


async def killed_with(cluster: World, replica: Replica, bindings: int, *, runs_out: bool = False) -> None:
    """Wait until that many Bindings passed and another is in flight, and kill their sender.

    The next one leads once the lease ``runs_out``, or immediately: then the lease is released as it is
    afterwards.
    """
    async with asyncio.timeout(60):
        await replica.way.blocked.wait()
    await cluster.pods.until(
        lambda: len(bound(cluster)) == bindings,
        f"{bindings} are bound",
        detail=lambda: {key: waits_because(pod) for key, pod in cluster.pods.items.items()},
    )
    before = await leader(cluster)
    replica.kill()
    if not runs_out:
        free = json.dumps({"spec": {"holderIdentity": None}}).encode()
        await cluster.session.request("PATCH", LEASE, body=free, content_type=MERGE_PATCH)

    async def another() -> bool:
        return await leader(cluster) not in ("", before)

    await until(another, "another leads")


async def test_a_gang_is_complete_in_the_end_though_its_leader_died_during_its_bindings(
    leaderless: World,
) -> None:
    cluster = leaderless
    async with leading_and_waiting(cluster) as (first, _):
        first.way.most = SOME_OF_GANG
        members = [f"g-{number}" for number in range(GANG)]
        await cluster.create(*(member(name) for name in members))
        await killed_with(cluster, first, SOME_OF_GANG)
        await cluster.run_all(*members)
        gpus = [share["uuid"] for name in members for share in record_of(cluster.pod(name))]
        assert len(set(gpus)) == GANG


async def test_the_next_leader_releases_the_reservations_of_a_gang_that_stays_incomplete(
    leaderless: World,
) -> None:
    cluster = leaderless
    async with leading_and_waiting(cluster) as (first, _):
        first.way.most = 0
        members = [f"g-{number}" for number in range(GANG)]
        await cluster.create(*(member(name) for name in members))
        await killed_with(cluster, first, 0)
        await cluster.delete(members[0])
        others = [f"other-{number}" for number in range(GANG)]
        await cluster.create(*(gpu_pod(name, 15) for name in others))
        # The new leader may have decided for the gang before it noticed that one of it is gone: then that
        # one is bound, and the reservations of all others are released.
        await cluster.pods.until(
            lambda: f"default/{members[0]}" not in cluster.pods.items and len(bound(cluster)) >= GANG,
            "all GPUs are allocated",
            detail=lambda: {key: waits_because(pod) for key, pod in cluster.pods.items.items()},
        )


async def test_the_next_leader_lists_what_its_watches_have_not_delivered_before_it_decides(
    leaderless: World,
) -> None:
    cluster = leaderless
    async with leading_and_waiting(cluster) as (first, second):
        second.way.hang_watches()
        first.way.most = SOME
        # If any pod bound while its watches hung were forgotten, a GPU would be allocated twice.
        await cluster.create(*(gpu_pod(f"s-{number}", 3) for number in range(EVERYTHING)))
        await killed_with(cluster, first, SOME)
        await cluster.pods.until(
            lambda: len(bound(cluster)) == EVERYTHING and fits(cluster),
            "all are bound",
            120,
            detail=lambda: {
                key: waits_because(pod) for key, pod in cluster.pods.items.items() if not node_of(pod)
            },
        )


async def test_the_next_leader_reads_the_usage_of_a_policys_units_before_it_decides(
    leaderless: World,
) -> None:
    cluster = leaderless
    units = [{**_only("four"), "max": MOST_ON_FOUR}, _only("more")]
    applied = await cluster.apply(
        {
            "apiVersion": f"{names.POLICY_GROUP}/{names.POLICY_VERSION}",
            "kind": "ResourcePolicy",
            "metadata": {"name": "ordered", "namespace": "default"},
            "spec": {"strategy": "prefer", "units": units},
        }
    )
    assert applied.code == 0, applied.text
    try:
        async with leading_and_waiting(cluster) as (first, second):
            second.way.hang_watches()
            first.way.most = LET_ON_FOUR
            wanted = 2 * MOST_ON_FOUR
            await cluster.create(*(gpu_pod(f"s-{number}", 1) for number in range(wanted)))
            await killed_with(cluster, first, LET_ON_FOUR)
            await cluster.pods.until(
                lambda: len(bound(cluster)) == wanted,
                "all are bound",
                120,
                detail=lambda: {
                    key: waits_because(pod) for key, pod in cluster.pods.items.items() if not node_of(pod)
                },
            )
            on_four = [key for key, pod in cluster.pods.items.items() if node_of(pod) == "four"]
            assert len(on_four) == MOST_ON_FOUR
    finally:
        gone = await cluster.kubectl("delete", "resourcepolicy", "ordered")
        assert gone.code == 0, gone.text


def _only(node: str) -> Json:
    return {"resource": "ecs", "nodeSelector": {"kubernetes.io/hostname": node}}


async def test_a_stream_of_bindings_continues_under_the_next_leader(leaderless: World) -> None:
    cluster = leaderless
    async with leading_and_waiting(cluster) as (first, _):
        first.way.most = LET_THROUGH
        await cluster.create(*(gpu_pod(f"s-{number}", 1) for number in range(STREAM)))
        await killed_with(cluster, first, LET_THROUGH, runs_out=True)
        await cluster.pods.until(
            lambda: len(bound(cluster)) == STREAM,
            "all are bound",
            120,
            detail=lambda: {
                key: waits_because(pod) for key, pod in cluster.pods.items.items() if not node_of(pod)
            },
        )
        assert all(len(record_of(pod)) == 1 for pod in cluster.pods.items.values())
        assert (
            sum(share["units"] for pod in cluster.pods.items.values() for share in record_of(pod)) == STREAM
        )
