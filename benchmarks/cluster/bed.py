"""The cluster of the schedulers: a real API server on etcd, and nodes simulated by kwok."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.cluster import chart
from benchmarks.cluster.api import Api, connect
from benchmarks.cluster.objects import NAMESPACE, PLAYED, node
from benchmarks.cluster.processes import WORK_S, Program, program, until
from gpushare_playground.controlplane import ControlPlane

_HERE: Final = Path(__file__).parent
#: No garbage collector or node controller: their work would distort the measurements.
_COMPONENTS: Final = ("etcd", "kube-apiserver")
#: A new node is tainted until a controller finds it ready; here no controller would remove the taint.
_FLAGS: Final = {"kube-apiserver": ("--disable-admission-plugins=TaintNodesByCondition",)}


@dataclass(frozen=True)
class Bed:
    """A running cluster without a scheduler.

    ``kubeconfig`` is that of schedulers and extenders, whose permissions, ``configuration`` and ``arguments`` (of the extender) are the
    chart's; ``folder`` is for their files. ``pids`` are the cluster's processes by name, ``programs`` those that
    replace kubelets.
    """

    api: Api
    kubeconfig: Path
    configuration: chart.Configuration
    arguments: list[str]
    folder: Path
    pids: dict[str, int]
    programs: tuple[Program, ...]
    nodes: int


@asynccontextmanager
async def cluster(binaries: Path, nodes: int) -> AsyncIterator[Bed]:
    """``nodes`` ready nodes with eight GPUs each, and a namespace for pods."""
    with tempfile.TemporaryDirectory(prefix="gpushare-bench-") as folder:
        state = Path(folder)
        plane = ControlPlane(binaries, state, components=_COMPONENTS, extra=_FLAGS, report=lambda line: None)
        async with plane, connect(plane.kubeconfig) as api:
            pids = {name: part.pid for name, part in plane.parts.items()}
            await _prepare(api)
            await asyncio.to_thread(chart.install, binaries / "helm", plane.kubeconfig, state)
            with program("kwok", _kwok(binaries, plane.kubeconfig), state / "kwok.log") as kwok:
                pids["kwok"] = kwok.pid
                started = time.perf_counter()
                await api.create_all("/api/v1/nodes", (node(number) for number in range(nodes)))

                async def ready() -> bool:
                    return await api.nodes_ready(nodes)

                # Each poll reads all of them.
                await until(ready, f"{nodes} nodes are ready", [kwok], deadline_s=WORK_S, every_s=1.0)
                print(f"  {nodes} nodes are ready after {time.perf_counter() - started:.0f} s", flush=True)
                yield Bed(
                    api,
                    plane.kubeconfig_of(chart.USER, chart.GROUPS),
                    await chart.configuration(api),
                    await chart.extender_arguments(api),
                    state / "variants",
                    pids,
                    (kwok,),
                    nodes,
                )


async def _prepare(api: Api) -> None:
    await api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    # Usually created by a controller; without it the API server accepts no pods.
    await api.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}})


def _kwok(binaries: Path, kubeconfig: Path) -> list[str]:
    return [
        str(binaries / "kwok"),
        f"--kubeconfig={kubeconfig}",
        f"--config={_HERE / 'stages.yaml'}",
        f"--manage-nodes-with-label-selector={PLAYED}=true",
        # Renewing the leases of thousands of nodes would be most of the API server's work here.
        "--node-lease-duration-seconds=0",
        "--v=ERROR",
    ]
