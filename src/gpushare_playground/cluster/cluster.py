"""A cluster as a context manager: started in order, watched, changed, and removed completely."""

import asyncio
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from gpushare.api import names
from gpushare.api.errors import ModelError
from gpushare.api.node.device import described_devices
from gpushare.api.objects import Node, decode_node
from gpushare.api.quantity import MemoryUnit
from gpushare.api.request.unit_conversion import Counting
from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import KubeError
from gpushare.kube.client.session import Session
from gpushare_playground import gpus
from gpushare_playground.cluster.control_plane import Control, Place
from gpushare_playground.cluster.embedded import EmbeddedControl
from gpushare_playground.cluster.errors import ClusterError
from gpushare_playground.cluster.isolation import in_one_folder
from gpushare_playground.cluster.marker_configmap import announce
from gpushare_playground.cluster.nodes import DEFAULT_NODES, NodeDescription
from gpushare_playground.cluster.parts import Part
from gpushare_playground.cluster.scraping import Targets
from gpushare_playground.cluster.state import make_state, remove_state, tidy
from gpushare_playground.controlplane.ports import LOOPBACK, free_ports
from gpushare_playground.kubelet.settings import node_address

_START_S: Final = 180.0
_PROBE_S: Final = 5.0
#: The taint of a node that is not ready yet.
_NOT_READY: Final = "node.kubernetes.io/not-ready"
_POLL_S: Final = 0.02
#: As in the chart: kube-scheduler leaves it to the extender to count these.
EXTENDER_COUNTS: Final = (names.GPU_MEM, names.GPU_CORE, names.GPU_WHOLE)


class Cluster:
    """The playground. ``report`` is called with a line for everything that a user should know while it starts and runs.

    ``control`` is the control plane; by default the embedded one. ``isolation`` is the folder that `make
    isolation` wrote; without it containers are not limited to their shares. ``ignored`` are resources that only
    the extender counts, so that it is also called for full nodes. ``dashboard``: whether to start one, at ``dashboard_url``.
    """

    part_class: ClassVar[type[Part]] = Part
    """The class that runs its processes."""

    def __init__(
        self,
        *,
        driver: Path,
        nodes: Sequence[NodeDescription] = DEFAULT_NODES,
        unit: MemoryUnit = MemoryUnit.GIB,
        report: Callable[[str], None] = print,
        images: Path | None = None,
        control: Control | None = None,
        isolation: Path | None = None,
        ignored: Sequence[str] = EXTENDER_COUNTS,
        dashboard: bool = False,
    ) -> None:
        self.nodes = tuple(nodes)
        self.unit = unit
        self._reference_mib = min(
            (gpu.total_mib for node in nodes for gpu in gpus.preset(node.preset, node.name).gpus), default=0
        )
        self.lost = asyncio.Event()
        """Set when the embedded API server has ended: it has the cluster in memory, so that the cluster is lost."""
        self.parts: dict[str, Part] = {}
        """Every part by name: ``apiserver``, ``extender``, ``kubelet NODE``, ``node-agent NODE``…"""
        self._driver = driver
        self._images = images
        self._isolation = isolation
        self._ignored = tuple(ignored)
        self._report = report
        self._with_dashboard = dashboard
        self.dashboard_url = ""
        """The dashboard's URL, including the token for access; empty without a dashboard."""
        self.control: Control = control or EmbeddedControl()

    # --- paths ----------------------------------------------------------------------------------

    @property
    def counting(self) -> Counting:
        """How MiB and percentage requests become units; percent refers to the smallest GPU."""
        return Counting(self.unit, self._reference_mib)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.control.kubeconfig

    def gpu_file(self, node: str) -> Path:
        """The file that describes a node's GPUs; rewrite it to switch faults on and off."""
        return self.state / "gpus" / f"{node}.conf"

    def gpus_of(self, node: str) -> gpus.GpuNode:
        """The GPUs with which a node was started."""
        return gpus.preset(
            next(description.preset for description in self.nodes if description.name == node), node
        )

    # --- lifecycle ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        removed, running = tidy()
        for folder in removed:
            self._report(f"removed what an earlier playground left in {folder}")
        for folder in running:
            self._report(
                f"another playground runs, in {folder}: its nodes have the same names, its exports are others"
            )
        self.state = make_state()
        self.control.enter(Place(self.state, self._report, self._add, self.lost.set))
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _start(self) -> None:
        for folder in ("log", "gpus", "nodes"):
            (self.state / folder).mkdir()
        if self._isolation is not None:
            in_one_folder(self._isolation, self.state / "isolation")
        self._targets = Targets(self.state)
        await self.control.count(self.counting)
        await self.control.start()
        self.parts.update(self.control.parts)
        await self._step("API server", self.kubeconfig_ready())
        await self.control.start_controllers()
        for node, port in zip(self.nodes, free_ports(len(self.nodes)), strict=True):
            self._add_node(node, f"{node_address(node.name)}:{port}")
        port_file = self.state / "extender.port"
        extender = ["gpushare", "scheduler", *self._access("extender"), "--port-file", str(port_file)]
        self._add("extender", [*extender, "--listen", "127.0.0.1:0"], {})
        await self._step("scheduler extender", self.extender_ready())
        # After a restart it must have the address that kube-scheduler calls.
        address = f"127.0.0.1:{port_file.read_text().strip()}"
        self.parts["extender"].arguments[-1] = address
        self._targets.add(address, "gpushare-scheduler")
        await self.control.start_scheduling(f"http://{address}/gpushare", self._ignored)
        self.parts.update(self.control.parts)
        await announce(self.kubeconfig, f"http://{address}")
        for node in self.nodes:
            await self._step(f"node {node.name} ({node.mode}, {node.preset})", self.node_ready(node.name))
        if self._with_dashboard:
            await self._step("dashboard", self._start_dashboard(f"http://{address}"))

    async def _stop(self) -> None:
        # Kubelets end first, while the API server can still receive their final writes; containers by record.
        own_parts = [part for name, part in self.parts.items() if name not in self.control.parts]
        await asyncio.gather(*(part.stop() for part in own_parts if part.name not in self.control.last))
        await asyncio.gather(*(part.stop() for part in own_parts))
        await self.control.stop()
        await asyncio.to_thread(remove_state, self.state)

    def _add(self, name: str, arguments: list[str], environment: dict[str, str]) -> Part:
        log = self.state / "log" / f"{name.replace(' ', '-')}.log"
        environment = {"PYTHONUNBUFFERED": "1", **environment}
        command = [sys.executable, "-m", *arguments]
        part = self.parts[name] = self.part_class(name, command, log, environment, self._report)
        part.start()
        return part

    def _access(self, user: str) -> list[str]:
        return ["--kubeconfig", str(self.control.access(user))]

    async def _start_dashboard(self, extender: str) -> None:
        token, port_file = secrets.token_urlsafe(24), self.state / "dashboard.port"
        token_file = self.state / "dashboard.token"
        token_file.write_text(token)
        command = ["gpushare", "dashboard", *self._access("extender"), "--token-file", str(token_file)]
        command += ["--scheduler", extender, "--agents-file", str(self.state / "agents")]
        part = self._add(
            "dashboard", [*command, "--port-file", str(port_file), "--listen", f"{LOOPBACK}:0"], {}
        )

        async def ready() -> bool:
            return port_file.exists() and await _is_ready(int(port_file.read_text()))

        await self._until(ready, "the dashboard does not get ready", "dashboard")
        address = f"{LOOPBACK}:{port_file.read_text().strip()}"
        part.arguments[-1] = address  # started again, it must be where pages look for it
        self._targets.add(address, "gpushare-dashboard")
        self.dashboard_url = f"http://{address}/#token={token}"

    def _add_node(self, node: NodeDescription, figures_at: str) -> None:
        gpu_file, root = self.gpu_file(node.name), self.state / "nodes" / node.name
        gpus.write(gpu_file, gpus.preset(node.preset, node.name))
        (root / "cgroup").mkdir(parents=True)
        (root / "cgroup" / "cgroup.controllers").touch()
        node_labels = (*node.labels, (names.LABEL_AGENT_PORT, figures_at.rpartition(":")[2]))
        labels = [option for key, value in node_labels for option in ("--label", f"{key}={value}")]
        images = ["--images", str(self._images)] if self._images else []
        address = node_address(node.name)
        kubelet = ["gpushare_playground.kubelet", "--node", node.name, "--node-ip", address]
        kubelet += self.control.kubelet_options(node.name, address)
        kubelet += [*labels, *images, "--root", str(root), "--lifeline", str(os.getpid())]
        kubelet += ["--fakegpu-node", str(gpu_file), "--fakegpu-lib", str(self._driver)]
        self._add(f"kubelet {node.name}", kubelet, {})
        agent = ["gpushare", "node-agent", "--node", node.name, *self._access("node-agent")]
        agent += ["--kubelet-dir", str(root / "device-plugins")]
        agent += ["--pod-resources", str(root / "pod-resources" / "kubelet.sock")]
        # The processes of this node's pods are on this machine, in no cgroup of a kubelet: the kubelet lists them here.
        agent += ["--proc", str(root / "proc"), "--cgroups", str(root / "cgroup")]
        agent += ["--metrics-listen", figures_at]
        with (self.state / "agents").open("a") as agents:
            agents.write(f"{node.name} {figures_at}\n")
        self._targets.add(figures_at, "gpushare-node-agent", "/metrics/dcgm", node=node.name)
        agent += ["--isolation-dir", str(root / "isolation" / "containers")]
        if self._isolation is not None:
            agent += ["--isolation", "auto"]
            agent += ["--isolation-library-dir", str(self.state / "isolation")]
        self._add(
            f"node-agent {node.name}",
            [*agent, "--unit", self.unit.setting],
            {
                "LD_LIBRARY_PATH": str(self._driver),
                "FAKEGPU_NODE": str(gpu_file),
                "FAKEGPU_CGROUPS": str(root / "cgroup"),
            },
        )

    # --- changes ----------------------------------------------------------------------------------

    async def set_unit(self, unit: MemoryUnit) -> None:
        """Switch admission to another memory unit, and restart every node agent with it, as if a chart value changed."""
        self.unit = unit
        await self.control.count(self.counting)
        await self._set_agents("--unit", unit.setting)

    async def set_isolation(self, backend: str) -> None:
        """Restart every node agent with this ``--isolation``, as by the chart's value; every node must support it."""
        await self._set_agents("--isolation", backend)

    async def _set_agents(self, option: str, value: str) -> None:
        agents = [part for name, part in self.parts.items() if name.startswith("node-agent ")]
        await asyncio.gather(*(agent.stop() for agent in agents))
        for agent in agents:
            agent.arguments[agent.arguments.index(option) + 1] = value
            agent.start()
        await asyncio.gather(*(self.node_ready(node.name) for node in self.nodes))

    def kill(self, name: str) -> None:
        """``kill -9`` a part; it is restarted."""
        self.parts[name].kill(signal.SIGKILL)

    # --- waiting ----------------------------------------------------------------------------------

    async def _step(self, step: str, ready: Awaitable[None]) -> None:
        started_s = time.monotonic()
        await ready
        self._report(f"{step}: ready ({time.monotonic() - started_s:.1f} s)")

    async def kubeconfig_ready(self) -> None:
        """Wait until the API server responds."""

        async def answers() -> bool:
            if not self.kubeconfig.exists():
                return False
            async with Session(load_access(str(self.kubeconfig))) as session:
                return await session.request("GET", "/readyz", timeout_s=2.0) != b""

        await self._until(answers, "the API server does not answer", *self.control.last)

    async def extender_ready(self) -> None:
        """Wait until the extender has read pods and nodes."""
        port_file = self.state / "extender.port"

        async def ready() -> bool:
            return port_file.exists() and await _is_ready(int(port_file.read_text()))

        await self._until(ready, "the extender does not get ready", "extender")

    async def node_ready(self, name: str) -> None:
        """Wait until the node's agent has published its GPUs, the kubelet offers them, and pods can be scheduled there."""
        agent = f"node-agent {name}"
        async with Session(load_access(str(self.kubeconfig))) as session:

            async def offers() -> bool:
                raw = await session.request("GET", f"/api/v1/nodes/{name}", timeout_s=2.0)
                # The controllers remove it some time after the node has become ready.
                taints = json.loads(raw)["spec"].get("taints") or ()
                shut = any(taint["key"] == _NOT_READY for taint in taints)
                return not shut and _offers(decode_node(raw), self.unit)

            await self._until(offers, f"node {name} does not offer its GPUs", agent, f"kubelet {name}")

    async def _until(self, reached: Callable[[], Awaitable[bool]], problem: str, *parts: str) -> None:
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                if await reached():
                    return
            except (OSError, KubeError, ValueError):
                pass  # not yet
            if time.monotonic() > deadline_s:
                logs = "\n\n".join(f"{name}:\n{self.parts[name].log_tail()}" for name in parts)
                raise ClusterError(f"{problem} after {_START_S:.0f} s. Its log ends so:\n{logs}")
            await asyncio.sleep(_POLL_S)


async def _is_ready(port: int) -> bool:
    async with asyncio.timeout(_PROBE_S):
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        with closing(writer):
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            response = await reader.read()
    return b" 200 " in response[:20]


def _offers(node: Node, unit: MemoryUnit) -> bool:
    """Whether the node's kubelet and its agent agree on what it shares, in ``unit``."""
    try:
        described = described_devices(node)
    except ModelError:
        return False
    if described is None:
        return False
    mode, present, devices = described
    labelled = (node.metadata.labels or {}).get(names.LABEL_MODE, "default")
    units = sum(present.count_in(device.total_mib) for device in devices) if mode.shares_memory else 0
    allocatable = node.status.allocatable or {}
    return (
        present is unit
        and mode.value == labelled
        and str(allocatable.get(names.GPU_MEM, 0)) == str(units)
        and (not mode.gives_core or str(allocatable.get(names.GPU_CORE, 0)) == str(100 * len(devices)))
    )
