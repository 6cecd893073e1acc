"""Writes the pictures of docs/images: ``python -m tests.integration.dashboard.screenshots``, over a
made-up cluster of 40,000 GPUs.

``--into DIR`` writes them elsewhere; ``--quick`` takes less time: with a short history, and perhaps
before a page is fully drawn. Prints the path of each picture.
"""

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from benchmarks.api_server import described_node, node_name, node_object, pod_object
from gpushare.api import names
from gpushare.api.allocation.allocation import allocate_on
from gpushare.api.allocation.annotations import Stamp, allocation_annotations
from gpushare.api.node.device import NodeDevices, Placement
from gpushare.api.node.modes import NodeMode
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.request import ContainerKind, ContainerRequest, Request
from gpushare.dashboard.data.cluster import Cluster
from gpushare.kube.clock import SYSTEM_CLOCK
from gpushare.scheduler.cache.cache import NodeReader
from gpushare.scheduler.cache.pod_records import decode_record
from gpushare.scheduler.framework.cycle import filter_nodes
from gpushare.scheduler.framework.cycle_state import Bodies
from gpushare.scheduler.framework.runtime import Enabled, Framework
from gpushare.scheduler.plugins.explain.decision_log import DECISIONS, DecisionLog
from gpushare.scheduler.plugins.explain.decisions_api import decisions_response
from tests.at_once import at_once
from tests.integration.dashboard.bed import Bed, Look, browser, looking

IMAGES: Final = Path(__file__).parents[3] / "docs" / "images"
NODES: Final = 5000
WIDTH, HEIGHT = 1280, 860
PHONE: Final = {"width": 390, "height": 844}
_TEAMS: Final = ("search", "speech", "vision", "ranking", "research")
_JOBS: Final = ("serve", "embed", "train", "notebook", "batch")
#: Points of the pictures' history, and the time between two.
_SAMPLES: Final = 12
_BETWEEN_MS: Final = 5000
_SETTLED_MS: Final = 2500


def made_up(seed: int = 7) -> tuple[list[NodeDevices], list[dict[str, Any]]]:
    """Nodes of three modes, some with problems, and the pods on them."""
    chance = random.Random(seed)
    nodes, pods = [], []
    for number in range(NODES):
        mode = (NodeMode.SHARE, NodeMode.CGPU, NodeMode.CORE_MEM)[number // 400 % 3]
        fill = chance.choice((0.2, 0.5, 0.75, 0.9, 0.97)) * (0.75 + 0.25 * (number % 400 > 60))
        devices = []
        node = msgspec.structs.replace(described_node(number, 81920, MemoryUnit.GIB), mode=mode)
        for device in node.devices:
            broken = chance.random() < 0.002
            devices.append(
                msgspec.structs.replace(
                    device, healthy=not broken, reason="XID 79: it has fallen off the bus" if broken else ""
                )
            )
        node = msgspec.structs.replace(node, devices=tuple(devices))
        nodes.append(node)
        for device in node.devices:
            left = int(80 * fill)
            while left > 4 and device.healthy:
                units = min(left, chance.choice((10, 20, 30, 40, 60)))
                left -= units
                pods.append(_pod(len(pods), node, device.index, units, chance))
    return nodes, pods


def _pod(number: int, node: NodeDevices, gpu: int, units: int, chance: random.Random) -> dict[str, Any]:
    core = 5 * (units // 5) if node.mode is NodeMode.CORE_MEM else 0
    request = Request(units, core, (ContainerRequest("main", ContainerKind.APP, 0, units, core),))
    pod: Any = pod_object(number, number + 1, units, node)
    pod["metadata"]["namespace"] = chance.choice(_TEAMS)
    pod["metadata"]["name"] = f"{chance.choice(_JOBS)}-{number:05x}"
    pod["metadata"]["annotations"] = allocation_annotations(
        allocate_on(node, node.devices[gpu], request), request, Stamp(1, assigned=True)
    )
    if core:
        pod["spec"]["containers"][0]["resources"]["limits"][names.GPU_CORE] = str(core)
    return dict(pod)


def waiting() -> list[dict[str, Any]]:
    """Pending pods, each for another reason."""
    gang = {names.LABEL_GANG_NAME: "pretrain", names.LABEL_GANG_LEAST: "8"}
    gates = [{"name": "example.com/data-is-there"}]
    return [
        _waiting("vision", "train-large", 1, 96),
        _waiting("search", "train-wide", 2, 72, core=50),
        _waiting("ranking", "serve-quick", 3, 40, core=95),
        _waiting("research", "pretrain-0", 4, 20, labels=gang),
        _waiting("research", "pretrain-1", 5, 20, labels=gang),
        _waiting("speech", "batch-nightly", 6, 10, gates=gates),
    ]


def _waiting(
    namespace: str,
    name: str,
    number: int,
    units: int,
    *,
    core: int = 0,
    labels: Mapping[str, str] = MappingProxyType({}),
    gates: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    pod: Any = pod_object(10**9 + number, 1, units, None)
    made = datetime.now(UTC) - timedelta(seconds=97 * (8 - number) ** 3)
    pod["metadata"] |= {
        "namespace": namespace,
        "name": name,
        "creationTimestamp": f"{made:%Y-%m-%dT%H:%M:%SZ}",
    }
    pod["metadata"]["labels"] |= dict(labels)
    pod["spec"]["schedulingGates"] = list(gates)
    if core:
        pod["spec"]["containers"][0]["resources"]["limits"][names.GPU_CORE] = str(core)
    return dict(pod)


def line_of(nodes: Iterable[bytes], pods: Iterable[bytes], waits: Iterable[dict[str, Any]]) -> Any:
    """The scheduler's reasons for pending pods, after one filter call over all nodes for each pod without gates."""
    cluster = Cluster()
    decode = NodeReader(unit=MemoryUnit.GIB, isolated_cap=16, node_policy=Placement.BINPACK).decode
    for raw in nodes:
        cluster.seen_nodes.upsert(decode(raw)[1])
    for raw in (*pods, *(json.dumps(pod).encode() for pod in waits)):
        record = decode_record(raw)
        assert record is not None
        cluster.pods.upsert(record[1])
    decisions = DecisionLog(cluster.view, SYSTEM_CLOCK)
    offered = list(cluster.ledger.node_names())
    framework = Framework([Enabled("decisions", decisions)])
    for pod in waits:
        if not pod["spec"]["schedulingGates"]:
            request = Bodies().read(json.dumps({"Pod": pod, "NodeNames": offered}).encode())
            filter_nodes(cluster.view, request, framework)
    return json.loads(at_once(decisions_response(decisions, DECISIONS)))["waiting"]


async def pictures(look: Look, into: Path, hurry: int, node: str, pod: str) -> None:
    """One of each view."""
    places = {
        "overview": "#/",
        "nodes": "#/nodes",
        "node": f"#/node/{node}",
        "gpu": f"#/node/{node}/gpu/0",
        "pod": f"#/pod/{pod}",
        "waiting": "#/waiting",
        "fragmentation": "#/fragmentation",
        "history": "#/history",
    }
    for name, address in places.items():
        await look.page.evaluate("hash => (location.hash = hash)", address)
        await look.page.wait_for_timeout(_SETTLED_MS // hurry)
        await look.page.mouse.move(1, HEIGHT - 1)
        await _taken(look, into / f"dashboard-{name}.png")
    await look.page.evaluate("location.hash = '#/'")
    await look.page.keyboard.press("t")
    await look.page.wait_for_timeout(_SETTLED_MS // hurry)
    await _taken(look, into / "dashboard-dark.png")


async def on_a_phone(look: Look, into: Path, hurry: int) -> None:
    """Pending pods, as cards."""
    await look.page.evaluate("location.hash = '#/waiting'")
    await look.page.wait_for_timeout(_SETTLED_MS // hurry)
    await _taken(look, into / "dashboard-phone.png")


async def _taken(look: Look, path: Path) -> None:
    await look.page.screenshot(path=path)
    print(f"written: {path}", flush=True)


async def taken(into: Path, hurry: int) -> None:
    """All pictures, with every wait shortened to its ``hurry``-th."""
    nodes, pods = made_up()
    with tempfile.TemporaryDirectory() as folder:
        made = Bed(Path(folder), 1, 0, 0)
        cluster = made.cluster
        cluster.nodes = [json.dumps(node_object(node, at)).encode() for at, node in enumerate(nodes, 1)]
        late = 24000
        waits = waiting()
        cluster.pods = [json.dumps(pod).encode() for pod in (*pods[:-late], *waits)]
        cluster.version = len(nodes) + len(pods)
        made.line = line_of(cluster.nodes, (json.dumps(pod).encode() for pod in pods), waits)
        on: dict[str, list[dict[str, Any]]] = {node.name: [] for node in nodes}
        for pod in pods:
            on[pod["spec"]["nodeName"]].append(pod)
        made.agents = {node.name: partial(_figures, node, on[node.name]) for node in nodes}
        uuid = nodes[0].devices[0].uuid
        first = next(pod for pod in on[nodes[0].name] if uuid in json.dumps(pod["metadata"]["annotations"]))
        await made.start()
        async with (
            browser() as window,
            looking(window, made, viewport={"width": WIDTH, "height": HEIGHT}) as look,
        ):
            for at, some in enumerate(_batched(pods[-late:]), 1):
                print(f"history: point {at} of {_SAMPLES}", flush=True)
                for pod in some:
                    for watcher in cluster.watchers:
                        watcher.show(json.dumps({"type": "ADDED", "object": pod}).encode() + b"\n")
                await look.page.wait_for_timeout(_BETWEEN_MS // hurry)
            meta = first["metadata"]
            await pictures(look, into, hurry, node_name(0), f"{meta['namespace']}/{meta['name']}")
            async with looking(window, made, viewport=PHONE, is_mobile=True, has_touch=True) as small:
                await on_a_phone(small, into, hurry)
        await made.stop()


def _figures(node: NodeDevices, pods: list[dict[str, Any]]) -> str:
    """The metrics of the node's agent: of each container, and of every GPU as a whole. Some
    containers use nothing.
    """
    chance = random.Random(node.name)
    lines, sums = [], {device.uuid: (0, 0) for device in node.devices}
    for pod in pods:
        limits, meta = pod["spec"]["containers"][0]["resources"]["limits"], pod["metadata"]
        (share,) = json.loads(meta["annotations"][names.ANN_SHARE])["gpus"]
        used = int(
            1024 * int(limits[names.GPU_MEM]) * chance.choice((0.0, 0.41, 0.52, 0.63, 0.76, 0.81, 0.88, 0.93))
        )
        busy = min(int(limits.get(names.GPU_CORE, 30)), chance.randrange(4, 40)) if used else 0
        mib, percent = sums[share["uuid"]]
        sums[share["uuid"]] = mib + used, min(percent + busy, 100)
        key = (
            f'namespace="{meta["namespace"]}",pod="{meta["name"]}",container="main",node="{node.name}",'
            f'gpu="{share["index"]}",UUID="{share["uuid"]}"'
        )
        lines.append(f"gpushare_container_memory_used_bytes{{{key}}} {used << 20}")
        lines.append(f"gpushare_container_compute_used_ratio{{{key}}} {busy / 100}")
    for uuid, (mib, percent) in sums.items():
        lines.append(f'gpushare_gpu_memory_used_bytes{{UUID="{uuid}"}} {mib << 20}')
        lines.append(f'gpushare_gpu_utilization_ratio{{UUID="{uuid}"}} {percent / 100}')
    return "\n".join(lines) + "\n"


def _batched(pods: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    size = len(pods) // _SAMPLES
    return [pods[at : at + size] for at in range(0, len(pods), size)]


def main() -> None:
    """Take the pictures that the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=IMAGES, metavar="DIR", help="default: docs/images")
    parser.add_argument("--quick", action="store_true", help="in a hurry, for a look")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    asyncio.run(taken(options.into, hurry=10 if options.quick else 1))


if __name__ == "__main__":
    main()
