"""A real control plane under ``dra`` nodes: kube-scheduler allocates claims from slices that our publishers write.

etcd, API server, controllers and scheduler run with Kubernetes' own limits of requests; kwok simulates nodes and pods. Each node has its
own ``SlicePublisher``, all in this process.
"""

import asyncio
import re
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.api_server import GPUS_PER_NODE, node_name
from benchmarks.budgets import Figures
from benchmarks.cluster.api import Api, Bound, connect
from benchmarks.cluster.measuring import percentile
from benchmarks.cluster.objects import GPU_MIB, NAMESPACE, PLAYED
from benchmarks.cluster.processes import WORK_S, Program, cpu_of, program, until
from benchmarks.processes import rss_mb
from gpushare.api import names
from gpushare.api.node.device import Device
from gpushare.kube.auth.access import load_access
from gpushare.kube.client.session import Session
from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.nodeagent.dra.publisher import SlicePublisher
from gpushare.nodeagent.dra.slices import Owner, devices_of
from gpushare.nodeagent.driver.nvml import Hardware
from gpushare_playground.controlplane import ControlPlane

_STAGES: Final = Path(__file__).parents[1] / "cluster" / "stages.yaml"
_RESOURCE: Final = "/apis/resource.k8s.io/v1"
_TEMPLATE: Final = "share"
_SHARES: Final = 16
_BEGIN_AT_ONCE: Final = 32
_HARDWARE: Final = Hardware("Hopper", "9.0", "580.65.06", "pci0000:17")
_WRITES: Final = re.compile(
    r'^apiserver_request_total\{(?=[^}]*resource="resourceslices")(?=[^}]*dry_run="")(?=[^}]*verb="(?:POST|PUT|PATCH|DELETE)")[^}]*\} (\S+)$',
    re.MULTILINE,
)


@dataclass(frozen=True)
class Bed:
    """A running control plane with nodes; ``pids`` by name of the process."""

    api: Api
    kubeconfig: Path
    pids: dict[str, int]
    programs: tuple[Program, ...]
    nodes: int


@asynccontextmanager
async def _api_server(binaries: Path, nodes: int) -> AsyncIterator[Bed]:
    """An API server with ``nodes`` nodes, and no other components."""
    with tempfile.TemporaryDirectory(prefix="gpushare-bench-") as folder:
        components = ("etcd", "kube-apiserver")
        plane = ControlPlane(binaries, Path(folder), components=components, report=lambda line: None)
        async with plane, connect(plane.kubeconfig) as api:
            await api.create_all("/api/v1/nodes", (_node(number) for number in range(nodes)))
            pids = {name: part.pid for name, part in plane.parts.items()}
            yield Bed(api, plane.kubeconfig, pids, (), nodes)


@asynccontextmanager
async def _plane(binaries: Path, nodes: int) -> AsyncIterator[Bed]:
    """``nodes`` ready nodes in mode ``dra``, our DeviceClass, and a template of claims in the namespace for pods."""
    with tempfile.TemporaryDirectory(prefix="gpushare-bench-") as folder:
        state = Path(folder)
        plane = ControlPlane(binaries, state, report=lambda line: None)
        async with plane, connect(plane.kubeconfig) as api:
            await _prepare(api)
            command = [
                *(str(binaries / "kwok"), f"--kubeconfig={plane.kubeconfig}", f"--config={_STAGES}"),
                f"--manage-nodes-with-label-selector={PLAYED}=true",
                *("--node-lease-duration-seconds=40", "--v=ERROR"),
            ]
            with program("kwok", command, state / "kwok.log") as kwok:
                await api.create_all("/api/v1/nodes", (_node(number) for number in range(nodes)))

                async def ready() -> bool:
                    return await api.nodes_ready(nodes)

                await until(ready, f"{nodes} nodes are ready", [kwok], deadline_s=WORK_S, every_s=1.0)
                pids = {name: part.pid for name, part in plane.parts.items()} | {"kwok": kwok.pid}
                yield Bed(api, plane.kubeconfig, pids, (kwok,), nodes)


async def _prepare(api: Api) -> None:
    await api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    selector = {"cel": {"expression": f"device.driver == '{names.DRA_DRIVER}'"}}
    await api.create(
        f"{_RESOURCE}/deviceclasses",
        {"metadata": {"name": names.DRA_DRIVER}, "spec": {"selectors": [selector]}},
    )
    capacity = {"requests": {"memory": "3Gi", "compute": "10"}}
    request = {"name": "gpu", "exactly": {"deviceClassName": names.DRA_DRIVER, "capacity": capacity}}
    await api.create(
        f"{_RESOURCE}/namespaces/{NAMESPACE}/resourceclaimtemplates",
        {"metadata": {"name": _TEMPLATE}, "spec": {"spec": {"devices": {"requests": [request]}}}},
    )


def _node(number: int) -> dict[str, Any]:
    capacity = {"cpu": "128", "memory": "1056404Mi", "pods": "256"}
    labels = {
        PLAYED: "true",
        names.LABEL_MODE: "dra",
        "kubernetes.io/hostname": node_name(number),
        "kubernetes.io/os": "linux",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node_name(number), "labels": labels},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def _pod(name: str) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "registry.example/bench:1",
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "claims": [{"name": "gpu"}]},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "containers": [container],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": _TEMPLATE}],
            "terminationGracePeriodSeconds": 0,
        },
    }


@asynccontextmanager
async def _published(bed: Bed) -> AsyncIterator[float]:
    """A publisher for each node while the block runs; seconds until every slice existed."""
    found = await bed.api.get("/api/v1/nodes", resourceVersion="0")
    uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in found["items"]}
    async with Session(load_access(str(bed.kubeconfig)), connections=bed.nodes + 64) as session:
        started_s = time.perf_counter()
        publishers = []
        for name, uid in uids.items():
            gpus = [Device(at, f"GPU-{uid}-{at}", GPU_MIB, "NVIDIA H100") for at in range(GPUS_PER_NODE)]
            one = SlicePublisher(name, session, clock=SYSTEM_CLOCK, on_change=lambda: None)
            one.want(Owner(name, uid), devices_of(gpus, {gpu.uuid: _HARDWARE for gpu in gpus}, _SHARES))
            publishers.append(one)
        running: list[asyncio.Task[None]] = []
        try:
            # Agents of different nodes do not share a processor; here this many begin simultaneously.
            turns = asyncio.Semaphore(_BEGIN_AT_ONCE)
            await asyncio.gather(*(_begin(one, turns, running, bed) for one in publishers))
            yield time.perf_counter() - started_s
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _begin(
    one: SlicePublisher, turns: asyncio.Semaphore, running: "list[asyncio.Task[None]]", bed: Bed
) -> None:
    """Run the publisher, and wait until its slice exists."""

    async def published() -> bool:
        return one.there

    async with turns:
        running.append(asyncio.create_task(one.run()))
        try:
            await until(published, "a slice is published", bed.programs, deadline_s=WORK_S)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {one.fault}") from None


async def _slice_writes(api: Api) -> float:
    """Writes of ResourceSlices counted by the API server, including failed ones."""
    return sum(float(count) for count in _WRITES.findall((await api.raw("/metrics")).decode()))


async def slices(binaries: Path, nodes: int, idle_s: float) -> Figures:
    """The cost of publishing: when ``nodes`` agents start simultaneously, and during ``idle_s`` idle seconds."""
    async with _api_server(binaries, nodes) as bed, _published(bed) as took_s:
        started = await _slice_writes(bed.api)
        await asyncio.sleep(idle_s)
        idle = await _slice_writes(bed.api) - started
    return {
        f"dra_slice_writes_at_start_{nodes}": (started, ""),
        f"dra_slices_published_s_{nodes}": (took_s, "s"),
        f"dra_slice_writes_idle_{nodes}": (idle, ""),
    }


async def claims(binaries: Path, nodes: int, per_minute: int, count: int, backlog: int) -> Figures:
    """Pods with a claim each: ``count`` that arrive at a rate, then ``backlog`` simultaneously."""
    async with _plane(binaries, nodes) as bed, _published(bed), bed.api.bound() as bound:
        before = cpu_of(bed.pids)
        took_s = await _arrivals(bed, bound, count, per_minute / 60)
        spent = {name: (used - before[name]) * 1e3 / count for name, used in cpu_of(bed.pids).items()}
        started_s = time.perf_counter()
        await bed.api.create_pods(_pod(f"backlog-{number}") for number in range(backlog))
        await bound.reaches(count + backlog, bed.programs)
        backlog_s = time.perf_counter() - started_s
        memory = {name: rss_mb(pid) for name, pid in bed.pids.items()}
        allocated = await _allocated(bed.api)
    if allocated != count + backlog:
        raise RuntimeError(f"{count + backlog} pods have a node, and {allocated} claims are allocated")
    for name, used_ms in spent.items():
        print(f"  {name:<26}{used_ms:8.1f} ms of a processor per claim, {memory[name]:7.0f} MB", flush=True)
    return {
        f"dra_claim_p50_s_{nodes}": (percentile(took_s, 0.5), "s"),
        f"dra_claim_p99_s_{nodes}": (percentile(took_s, 0.99), "s"),
        f"dra_claims_per_minute_{nodes}": (60 * backlog / backlog_s, "1/min"),
    }


async def _arrivals(bed: Bed, bound: Bound, count: int, per_s: float) -> list[float]:
    """Seconds from each pod's creation to its node."""
    created_s: dict[str, float] = {}

    async def create(name: str) -> None:
        created_s[name] = time.perf_counter()
        await bed.api.create_pod(_pod(name))

    started_s = time.perf_counter()
    async with asyncio.TaskGroup() as creating:
        for number in range(count):
            await asyncio.sleep(max(started_s + number / per_s - time.perf_counter(), 0))
            creating.create_task(create(f"steady-{number}"))
    await bound.reaches(count, bed.programs)
    return [bound.at_s[name] - at_s for name, at_s in created_s.items()]


async def _allocated(api: Api) -> int:
    found = await api.get(f"{_RESOURCE}/namespaces/{NAMESPACE}/resourceclaims")
    return sum("allocation" in item.get("status", {}) for item in found["items"])
