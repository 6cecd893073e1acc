"""An API server that answers immediately: lists, watches and bindings of a cluster generated at start.

A real one would only add its own time to the figures. A binding is answered as soon as
it is read, and sent to the watch of pods, like in the real one.
Usage: ``python -m benchmarks.api_server --nodes N --placed P --waiting W --port-file F``.
"""

import argparse
import asyncio
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httptools
import orjson
import uvloop

from gpushare.api import names
from gpushare.api.allocation.allocation import allocate_on
from gpushare.api.allocation.annotations import Stamp, allocation_annotations
from gpushare.api.node.device import Device, NodeDevices, devices_annotation
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request

GPUS_PER_NODE = 8


def node_name(number: int) -> str:
    """As long as the names of a cloud's nodes."""
    return f"cn-beijing.192.168.{number // 250}.{number % 250}"


def described_node(number: int, gpu_mib: int, unit: MemoryUnit) -> NodeDevices:
    """A node of eight equal GPUs."""
    devices = tuple(
        Device(index, f"GPU-{number:08x}-0000-4000-8000-{index:012x}", gpu_mib, "NVIDIA A100-SXM4-80GB")
        for index in range(GPUS_PER_NODE)
    )
    return NodeDevices(node_name(number), NodeMode.SHARE, unit, devices)


def node_object(node: NodeDevices, version: int) -> dict[str, object]:
    """The node's JSON, with the usual fields of real ones."""
    capacity = {
        "cpu": "96",
        "memory": "1056404Mi",
        "pods": "256",
        names.GPU_MEM: str(node.total_units),
        names.GPU_COUNT: str(len(node.devices)),
    }
    if node.mode.gives_core:
        capacity[names.GPU_CORE] = str(100 * len(node.devices))
    return {
        "metadata": {
            "name": node.name,
            "uid": f"node-{node.name}",
            "resourceVersion": str(version),
            "labels": {names.LABEL_MODE: node.mode.value, "kubernetes.io/hostname": node.name},
            "annotations": {names.ANN_DEVICES: devices_annotation(node.mode, node.unit, node.devices)},
        },
        "spec": {},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "images": [{"names": ["x" * 60]} for _ in range(20)],
        },
    }


def pod_object(number: int, version: int, units: int, node: NodeDevices | None) -> dict[str, object]:
    """A pod of about 3 KB that requests ``units``; bound and running if ``node`` is given."""
    annotations = {"padding": "x" * 1200}
    if node is not None:
        request = Request(units, 0, (ContainerRequest("main", ContainerKind.APP, 0, units, 0),))
        device = node.devices[number % GPUS_PER_NODE]
        annotations |= allocation_annotations(
            allocate_on(node, device, request), request, Stamp(1, assigned=True)
        )
    resources = {names.GPU_MEM: str(units)}
    return {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": "default",
            "uid": f"7b1f0000-0000-4000-8000-{number:012x}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "bench", "pod-template-hash": "5d4f8c7b9c"},
            "annotations": annotations,
            "ownerReferences": [
                {"kind": "ReplicaSet", "name": "bench-5d4f8c7b9c", "uid": "r", "controller": True}
            ],
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/bench:1",
                    "command": ["sleep", "100000"],
                    "resources": {"limits": resources, "requests": resources},
                    "volumeMounts": [
                        {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
                    ],
                }
            ],
            "schedulerName": names.SCHEDULER_NAME,
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}
            ],
            **({"nodeName": node.name} if node else {}),
        },
        "status": {"phase": "Running" if node else "Pending", "qosClass": "BestEffort"},
    }


class Cluster:
    """All served objects, encoded once."""

    def __init__(
        self, nodes: int, placed: int, waiting: int, units: int, gpu_mib: int, unit: MemoryUnit
    ) -> None:
        described = [described_node(number, gpu_mib, unit) for number in range(nodes)]
        self.version = nodes + placed + waiting
        self.nodes = [orjson.dumps(node_object(node, number + 1)) for number, node in enumerate(described)]
        self.pods = [
            orjson.dumps(pod_object(number, number + 1, 1 + number % 4, described[number * 7919 % nodes]))
            for number in range(placed)
        ]
        self.waiting = {
            f"pod-{number}": pod_object(number, number + 1, units, None)
            for number in range(placed, placed + waiting)
        }
        self.pods += [orjson.dumps(pod) for pod in self.waiting.values()]
        self.watchers: list[Connection] = []
        self.node_watchers: list[Connection] = []
        self.bound = 0
        self.others: dict[str, list[bytes]] = {}
        """Further lists by path, which never change."""

    def page(self, items: list[bytes], limit: int, start: int) -> bytes:
        """One page of a list."""
        end = min(len(items), start + limit)
        token = str(end) if end < len(items) else ""
        head = b'{"kind":"List","metadata":{"resourceVersion":"%d","continue":"%s"},"items":[' % (
            self.version,
            token.encode(),
        )
        return head + b",".join(items[start:end]) + b"]}"

    def bind(self, name: str, body: bytes) -> None:
        """Apply a Binding and send it to the watches."""
        binding = orjson.loads(body)
        pod = self.waiting[name]
        self.version += 1
        self.bound += 1
        metadata = pod["metadata"] | {"resourceVersion": str(self.version)}  # type: ignore[operator]
        metadata["annotations"] = metadata["annotations"] | binding["metadata"]["annotations"]
        shown = pod | {"metadata": metadata, "spec": pod["spec"] | {"nodeName": binding["target"]["name"]}}  # type: ignore[operator]
        line = orjson.dumps({"type": "MODIFIED", "object": shown}) + b"\n"
        for watcher in self.watchers:
            watcher.show(line)


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        for watchers in (self._cluster.watchers, self._cluster.node_watchers):
            if self in watchers:
                watchers.remove(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        url, body, self._body = urlsplit(self._url.decode()), self._body, b""
        if url.path.endswith("/binding"):
            self._cluster.bind(url.path.split("/")[-2], body)
            self._answer(201, b'{"kind":"Status","apiVersion":"v1","status":"Success"}')
            return
        if url.path.endswith("/token"):
            self._answer(201, b'{"kind":"TokenRequest","status":{"token":"to-read-with"}}')
            return
        query = parse_qs(url.query)
        served = {"/api/v1/nodes": self._cluster.nodes, "/api/v1/pods": self._cluster.pods}
        items = (served | self._cluster.others).get(url.path)
        if items is None:
            self._answer(404, b'{"kind":"Status","code":404,"reason":"NotFound","message":"not here"}')
        elif "watch" in query:
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            watchers = {"/api/v1/pods": self._cluster.watchers, "/api/v1/nodes": self._cluster.node_watchers}
            watchers.get(url.path, []).append(self)
        else:
            limit = int(query.get("limit", ["1000000"])[0])
            self._answer(200, self._cluster.page(items, limit, int(query.get("continue", ["0"])[0])))

    def show(self, line: bytes) -> None:
        """Send one line of a watch."""
        self._transport.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _answer(self, status: int, body: bytes) -> None:
        self._transport.write(
            b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (status, len(body), body)
        )


async def serve(cluster: Cluster, port_file: Path) -> None:
    """Serve on a free port of loopback until killed."""
    server = await asyncio.get_running_loop().create_server(lambda: Connection(cluster), "127.0.0.1", 0)
    fresh = port_file.with_suffix(".new")
    fresh.write_text(str(server.sockets[0].getsockname()[1]))
    fresh.replace(port_file)
    await server.serve_forever()


def main() -> None:
    """Generate the cluster and serve it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--placed", type=int, default=0)
    parser.add_argument("--waiting", type=int, default=0)
    parser.add_argument("--units", type=int, default=1, help="request of a pending pod")
    parser.add_argument("--gpu-mib", type=int, default=81920)
    parser.add_argument("--unit", default="1GiB")
    parser.add_argument("--port-file", type=Path, required=True)
    options = parser.parse_args()
    cluster = Cluster(
        options.nodes,
        options.placed,
        options.waiting,
        options.units,
        options.gpu_mib,
        MemoryUnit.parse(options.unit),
    )
    uvloop.run(serve(cluster, options.port_file))


if __name__ == "__main__":
    main()
