"""The attacked processes: the product's, as started by the charts, with the playground's API server."""

import asyncio
import json
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from benchmarks.api_server import pod_object
from benchmarks.load.api import NAME, NAMESPACE
from benchmarks.load.attacker import LOOPBACK, MADE_UP
from benchmarks.load.clients import status_of
from benchmarks.processes import DEADLINE_S, running, wait_for_file
from gpushare.api import names
from gpushare_playground.controlplane.ports import free_ports

if TYPE_CHECKING:
    import subprocess

TOKEN: Final = "0123456789abcdef0123456789abcdef"
#: The other parts usually run on other machines, or at least processors: here they yield to the extender, as its relay
#: does anyway.
_ELSEWHERE: Final = 10
_CHARTS: Final = Path(__file__).parents[2] / "charts"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The size of the cluster."""

    nodes: int
    placed: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Limits:
    """A chart's settings of a container. ``memory_mib``: its limit; probes fail after ``probe_s`` seconds."""

    memory_mib: int
    probe_s: float
    failures: int
    """Failed liveness probes in a row until a restart."""


@dataclass(frozen=True, slots=True)
class Part:
    """One container of the product."""

    name: str
    pid: int
    probes: int
    """Port of its probes."""
    limits: Limits


@dataclass(frozen=True, slots=True)
class Door:
    """A port of a part that is reachable by others than kube-scheduler.

    ``request`` is a well-behaved client's, to be answered within ``within_s``; ``dear`` are the most expensive requests that
    any client may send.
    """

    name: str
    part: str
    port: int
    request: str
    within_s: float
    dear: tuple[str, ...]
    tls: bool = False


@dataclass(frozen=True, slots=True)
class Bed:
    """The running processes."""

    parts: tuple[Part, ...]
    doors: tuple[Door, ...]
    extender_port: int
    """Port of the verbs, only on loopback."""
    allocated: Path
    """Written by ``benchmarks.load.node``."""
    review: bytes
    started: tuple["subprocess.Popen[bytes]", ...] = field(repr=False)

    def check(self) -> None:
        """Raise if a process has ended."""
        for one in self.started:
            if (code := one.poll()) is not None:
                raise RuntimeError(f"{one.args!r} ended with {code}")


def limits_of(chart: str, values: tuple[str, ...], template: str) -> Limits:
    """The settings in the chart's values and template; ``values`` is the path of the part's values."""
    found: Any = yaml.safe_load((_CHARTS / chart / "values.yaml").read_text())
    for key in values:
        found = found[key]
    memory = found["resources"]["limits"]["memory"]
    number, unit = int(memory[:-2]), memory[-2:]
    # In a pod with several containers, ours is the last.
    probe = (_CHARTS / chart / "templates" / template).read_text().rpartition("livenessProbe:")[2]
    timeout = re.search(r"timeoutSeconds: (\d+)", probe)
    failures = re.search(r"failureThreshold: (\d+)", probe)
    assert timeout is not None
    assert failures is not None
    return Limits(number * {"Mi": 1, "Gi": 1024}[unit], float(timeout[1]), int(failures[1]))


def get(path: str, token: str = "") -> str:
    """A GET on a connection that may be reused; ``token`` is the reader's."""
    shown = f"{names.READER_HEADER}: {token}\r\n" if token else ""
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n{shown}\r\n"


def post(path: str, body: str) -> str:
    """A POST of JSON."""
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"


def review(containers: int) -> str:
    """An AdmissionReview of a pod with ``containers`` containers."""
    pod = {"apiVersion": "v1", "kind": "Pod", **pod_object(1, 1, 1, None)}
    [container] = pod["spec"]["containers"]  # type: ignore[index]
    pod["spec"]["containers"] = [{**container, "name": f"c{number}"} for number in range(containers)]  # type: ignore[index]
    request = {
        "uid": "u",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {"username": "someone", "groups": ["system:authenticated"]},
        "object": pod,
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(body, separators=(",", ":"))


@contextmanager
def bed(cluster: Cluster) -> Iterator[Bed]:
    """All processes, started and ready; ended with the block."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        # The agent is not our child: it would survive if the process that started it had to be killed.
        agents: list[int] = []
        stack.callback(_kill, agents)

        def start(*words: object) -> "subprocess.Popen[bytes]":
            return stack.enter_context(running(*map(str, words)))

        sizes = (cluster.nodes, cluster.placed, cluster.waiting)
        served = start("benchmarks.load.api", folder, *sizes)
        config = folder / "kubeconfig"
        reader = wait_for_file(folder / "reader", served)
        health, agent_port = free_ports(2)
        shared = ("--kubeconfig", config, "--log-level", "warning")
        extender = start(
            *("gpushare", "scheduler", *shared, "--listen", f"{LOOPBACK}:0"),
            *("--port-file", folder / "extender", "--health-listen", f"{LOOPBACK}:{health}"),
        )
        agent = start("benchmarks.load.node", folder / "allocated", f"{LOOPBACK}:{agent_port}")
        webhook = start(
            *("gpushare", "admission", *shared, "--namespace", NAMESPACE, "--port-file", folder / "webhook"),
            *("--listen", f"{LOOPBACK}:0", "--metrics-listen", f"{LOOPBACK}:0", "--secret", NAME),
        )
        extender_port = int(wait_for_file(folder / "extender", extender))
        (folder / "token").write_text(TOKEN)
        (folder / "agents").write_text(f"cn-beijing.192.168.0.0 {LOOPBACK}:{agent_port}\n")
        dashboard = start(
            *("gpushare", "dashboard", *shared, "--token-file", folder / "token"),
            *("--listen", f"{LOOPBACK}:0", "--port-file", folder / "dashboard"),
            *("--scheduler", f"http://{LOOPBACK}:{extender_port}", "--agents-file", folder / "agents"),
        )
        reviews, probes = map(int, wait_for_file(folder / "webhook", webhook).split())
        page = int(wait_for_file(folder / "dashboard", dashboard))
        agent_pid = int(wait_for_file(folder / "allocated", agent).split()[0])
        agents.append(agent_pid)
        installer, scheduler = "ack-ai-installer", "ack-co-scheduler"
        parts = (
            Part("extender", extender.pid, health, limits_of(scheduler, ("extender",), "deployment.yaml")),
            Part("webhook", webhook.pid, probes, limits_of(installer, ("webhook",), "webhook/server.yaml")),
            Part("dashboard", dashboard.pid, page, limits_of(scheduler, ("dashboard",), "dashboard.yaml")),
            Part("agent", agent_pid, agent_port, limits_of(installer, ("nodeAgent",), "daemonset.yaml")),
        )
        login = post("/login", json.dumps({"token": "not the token of anybody"}))
        # Prometheus waits 10 s, the API server as long as the chart says, a browser longer than either.
        doors = (
            Door(
                "extender",
                "extender",
                health,
                get("/metrics"),
                10.0,
                (
                    get("/gpushare/decisions", reader),
                    get("/gpushare/decisions", MADE_UP),
                    get("/metrics"),
                ),
            ),
            Door(
                "webhook",
                "webhook",
                reviews,
                post("/validate", review(1)),
                5.0,
                (post("/mutate", review(100)), post("/validate", review(100))),
                tls=True,
            ),
            Door("webhook-probes", "webhook", probes, get("/metrics"), 10.0, (get("/metrics"),)),
            Door(
                "dashboard", "dashboard", page, get("/"), 10.0, (get("/metrics"), get("/heatmap.js"), login)
            ),
            Door(
                "agent",
                "agent",
                agent_port,
                get("/metrics"),
                10.0,
                (get("/usage", reader), get("/usage", MADE_UP), get("/metrics"), get("/metrics/dcgm")),
            ),
        )
        for part in parts:
            asyncio.run(_ready(part))
            if part.pid != extender.pid:
                os.setpriority(os.PRIO_PROCESS, part.pid, os.getpriority(os.PRIO_PROCESS, 0) + _ELSEWHERE)
        yield Bed(
            parts,
            doors,
            extender_port,
            folder / "allocated",
            post("/validate", review(1)).encode(),
            (served, extender, webhook, dashboard, agent),
        )


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def _ready(part: Part) -> None:
    status = ""
    with suppress(TimeoutError):
        async with asyncio.timeout(DEADLINE_S):
            while status != "200":
                try:
                    status = await status_of(part.probes, get("/readyz").encode())
                except (OSError, EOFError) as error:
                    status = str(error)
                await asyncio.sleep(0.05)
            return
    raise TimeoutError(f"{part.name} does not become ready: {status}")
