"""Writes the pictures of docs/images: ``python -m tests.integration.dashboard.screenshots``, over a made-up cluster of 40,000 GPUs."""

import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.api_server import described_node, node_name, node_object, pod_object
from gpushare.model import names
from gpushare.model.allocation import allocate_on
from gpushare.model.device import NodeDevices, NodeMode
from gpushare.model.quantity import MemoryUnit
from gpushare.model.request import ContainerKind, ContainerRequest, Request
from gpushare.model.wire import Stamp, allocation_annotations
from tests.integration.dashboard.bed import Bed, Look, browser, looking

IMAGES: Final = Path(__file__).parents[3] / "docs" / "images"
NODES: Final = 5000
WIDTH, HEIGHT = 1280, 860
PHONE: Final = {"width": 390, "height": 844}
_TEAMS: Final = ("search", "speech", "vision", "ranking", "research")
_JOBS: Final = ("serve", "embed", "train", "notebook", "batch")
_SAMPLES: Final = 12


def made_up(seed: int = 7) -> tuple[list[NodeDevices], list[dict[str, Any]]]:
    """Nodes of three modes, some with trouble, and the pods on them."""
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


def waiting(number: int, units: int, reason: str, remedy: str, category: str) -> dict[str, Any]:
    """A pod that waits, as the scheduler tells of it."""
    name = f"{_TEAMS[number % 5]}/{_JOBS[number * 3 % 5]}-{number:05x}"
    return {
        "key": name,
        "uid": f"w{number}",
        "since": time.time() - 97 * (number + 1) ** 2,
        "asks": f"aliyun.com/gpu-mem: {units}",
        "category": category,
        "reason": reason,
        "remedy": remedy,
    }


LINE: Final = [
    waiting(1, 81, "the largest GPU has 80 GiB", "ask for 80 or less, or for several GPUs", "too_large"),
    waiting(
        2,
        72,
        "no single GPU has 72 GiB free on 3,204 nodes; 1,796 are of another mode",
        "72 GiB come free on one GPU if search/embed-00b1f moves",
        "fragmented",
    ),
    waiting(
        3,
        40,
        "its quota research is used up: 4,096 of 4,096 GiB",
        "28 GiB of research end, or its quota grows",
        "quota",
    ),
    waiting(4, 20, "2 of 8 pods of its gang are there", "the other 6 are created", "gang"),
]


async def pictures(look: Look, made: Bed, node: str, pod: str) -> None:
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
        await look.page.wait_for_timeout(2500)
        await look.page.mouse.move(1, HEIGHT - 1)
        await look.page.screenshot(path=IMAGES / f"dashboard-{name}.png")
    await look.page.evaluate("location.hash = '#/'")
    await look.page.keyboard.press("t")
    await look.page.wait_for_timeout(2500)
    await look.page.screenshot(path=IMAGES / "dashboard-dark.png")


async def on_a_phone(look: Look) -> None:
    """Who waits, as cards."""
    await look.page.evaluate("location.hash = '#/waiting'")
    await look.page.wait_for_timeout(2500)
    await look.page.screenshot(path=IMAGES / "dashboard-phone.png")


async def main() -> None:
    """All pictures."""
    IMAGES.mkdir(exist_ok=True)
    nodes, pods = made_up()
    with tempfile.TemporaryDirectory() as folder:
        made = Bed(Path(folder), 1, 0, 0)
        cluster = made.cluster
        cluster.nodes = [json.dumps(node_object(node, at)).encode() for at, node in enumerate(nodes, 1)]
        late = 24000
        cluster.pods = [json.dumps(pod).encode() for pod in pods[:-late]]
        cluster.version = len(nodes) + len(pods)
        for at, one in enumerate(LINE):
            pod: Any = pod_object(len(pods) + at, 1, int(one["asks"].split()[-1]), None)
            pod["metadata"]["namespace"], pod["metadata"]["name"] = one["key"].split("/")
            cluster.pods.append(json.dumps(pod).encode())
        made.line = LINE
        share = {"pod": pods[0]["metadata"], "uuid": nodes[0].devices[0].uuid}
        first = [pod for pod in pods[:40] if share["uuid"] in json.dumps(pod["metadata"]["annotations"])]
        made.figures = _figures(nodes[0], first)
        await made.start()
        async with (
            browser() as window,
            looking(window, made, viewport={"width": WIDTH, "height": HEIGHT}) as look,
        ):
            for some in _batched(pods[-late:]):
                for pod in some:
                    for watcher in cluster.watchers:
                        watcher.show(json.dumps({"type": "ADDED", "object": pod}).encode() + b"\n")
                await look.page.wait_for_timeout(5000)
            meta = first[0]["metadata"]
            await pictures(look, made, node_name(0), f"{meta['namespace']}/{meta['name']}")
            async with looking(window, made, viewport=PHONE, is_mobile=True, has_touch=True) as small:
                await on_a_phone(small)
        await made.stop()


def _figures(node: NodeDevices, pods: list[dict[str, Any]]) -> str:
    """What the node's agent tells: of the pods of GPU 0 each, and of every GPU as a whole."""
    lines, sums = (
        [],
        {
            device.index: (9000 + 5200 * device.index, (17 + 31 * device.index) % 97)
            for device in node.devices
        },
    )
    mib = percent = 0
    for at, pod in enumerate(pods):
        units = int(pod["spec"]["containers"][0]["resources"]["limits"][names.GPU_MEM])
        used, busy = int(1024 * units * (0.93, 0.41, 0.76)[at % 3]), 22 + 9 * at
        mib, percent = mib + used, percent + busy
        key = f'pod="{pod["metadata"]["namespace"]}/{pod["metadata"]["name"]}",container="main",gpu="{node.devices[0].uuid}"'
        lines.append(f"gpushare_nodeagent_container_used_mebibytes{{{key}}} {used}")
        lines.append(f"gpushare_nodeagent_container_sm_percent{{{key}}} {busy}")
    sums[0] = mib, percent
    for device in node.devices:
        used, busy = sums[device.index]
        lines.append(f'gpushare_gpu_memory_used_bytes{{UUID="{device.uuid}"}} {used << 20}')
        lines.append(f'gpushare_gpu_utilization_ratio{{UUID="{device.uuid}"}} {busy / 100}')
    return "\n".join(lines) + "\n"


def _batched(pods: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    size = len(pods) // _SAMPLES
    return [pods[at : at + size] for at in range(0, len(pods), size)]


if __name__ == "__main__":
    asyncio.run(main())
