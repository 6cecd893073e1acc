"""A cluster on the board, fed as by informers, with a clock that tests advance and agents that respond from a table."""

from typing import Any

from gpushare.api.allocation.allocation import Allocation, GpuShare
from gpushare.api.node.device import Device, NodeDevices
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request
from gpushare.dashboard.data.agent_client import Agents
from gpushare.dashboard.data.cluster import Cluster
from gpushare.dashboard.data.history import History
from gpushare.dashboard.data.http_get import NotFound, RequestFailed
from gpushare.dashboard.data.pending import Source
from gpushare.dashboard.server.event_stream import Stream
from gpushare.dashboard.server.sessions import Live
from gpushare.scheduler.cache.cache import NodeRecord
from gpushare.scheduler.cache.pod_records import PodRecord
from tests.unit.scheduler.world import TurnedClock

MIB = 16384


def gpu(node: str, index: int, **more: Any) -> Device:
    return Device(index, f"GPU-{node}-{index}", MIB, "Tesla V100", **more)


def described(name: str, *devices: Device, mode: NodeMode = NodeMode.SHARE, refusal: str = "") -> NodeRecord:
    return NodeRecord(NodeDevices(name, mode, MemoryUnit.GIB, devices, refusal=refusal), "")


def share(node: str, index: int, units: int, core_percent: int = 0) -> GpuShare:
    return GpuShare(f"GPU-{node}-{index}", index, units * 1024, units, 16, core_percent)


def holder(name: str, node: str, *shares: GpuShare, **more: Any) -> PodRecord:
    allocation = Allocation(shares, {"main": shares}, MemoryUnit.GIB)
    return PodRecord(f"uid-{name}", f"default/{name}", node, False, allocation=allocation, **more)


def waiter(name: str, units: int = 2, **more: Any) -> PodRecord:
    request = Request(units, 0, (ContainerRequest("main", ContainerKind.APP, 0, units, 0),), **more)
    return PodRecord(
        f"uid-{name}", f"default/{name}", "", False, request=request, created="2026-01-02T03:04:05Z"
    )


def exposed(**labelled: tuple[int, int]) -> bytes:
    """An agent's metrics: ``pod=(MiB, percent)`` of GPU 0 of node ``a``."""
    lines = []
    for pod, (used, busy) in labelled.items():
        labels = f'namespace="default",pod="{pod}",container="main",node="a",gpu="0",UUID="GPU-a-0"'
        lines.append(f"gpushare_container_memory_used_bytes{{{labels}}} {used << 20}")
        lines.append(f"gpushare_container_compute_used_ratio{{{labels}}} {busy / 100}")
    return "\n".join(lines).encode()


class FakeHttp:
    """Responds by URL: missing ones are unreachable, ``None`` is not found; nor is ``/oldest``, as of schedulers of earlier versions."""

    def __init__(self) -> None:
        self.responses: dict[str, bytes | None] = {}
        self.requested: list[str] = []
        self.tokens: list[str] = []

    async def get(self, url: str, token: str = "") -> bytes:
        self.requested.append(url)
        self.tokens.append(token)
        if url not in self.responses and url.endswith("/oldest"):
            raise NotFound(url)
        if url not in self.responses:
            raise RequestFailed(f"{url}: no such server")
        response = self.responses[url]
        if response is None:
            raise NotFound(url)
        return response


class Shown:
    """Everything behind the page, except sockets."""

    def __init__(self) -> None:
        self.clock = TurnedClock()
        self.http = FakeHttp()
        self.cluster = Cluster()
        self.stream = Stream("e")
        self.addresses: dict[str, str] = {}
        self.agents = Agents(
            self.http,
            lambda node: self.addresses.get(node, ""),
            self.cluster.gpu_uuids,
            self.cluster.board.put_real,
            self.clock,
        )
        self.source = Source(self.http, "http://scheduler", self.clock)
        self.history = History()
        self.live = Live(self.cluster, self.agents, self.source, self.stream, self.history, self.clock)

    def add(self, *things: PodRecord | NodeRecord) -> None:
        for thing in things:
            if isinstance(thing, NodeRecord):
                self.cluster.seen_nodes.upsert(thing)
            else:
                self.cluster.pods.upsert(thing)

    def remove(self, thing: PodRecord | NodeRecord) -> None:
        if isinstance(thing, NodeRecord):
            self.cluster.seen_nodes.remove(thing.devices.name, thing)
        else:
            self.cluster.pods.remove(thing.pod, thing)
