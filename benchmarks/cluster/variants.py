"""kube-scheduler alone, with an extender that does nothing, and with ours: one configuration, one difference."""

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from benchmarks.cluster.api import until
from benchmarks.cluster.bed import Bed
from benchmarks.cluster.objects import SCHEDULER
from benchmarks.cluster.processes import Program, file_text, free_port, program
from gpushare.kube.access import load_access
from gpushare.model import names

ALONE: Final = "alone"
NULL: Final = "null extender"
UNBOUND: Final = "null, binds itself"
OURS: Final = "ours"
VARIANTS: Final = (ALONE, NULL, OURS)


@dataclass
class Scheduler:
    """A running kube-scheduler and, where there is one, its extender."""

    pids: dict[str, int]
    url: str
    """Where kube-scheduler serves metrics and profiles."""
    extender_url: str = ""
    http: aiohttp.ClientSession = field(repr=False, kw_only=True)

    async def text(self, path: str) -> str:
        """What kube-scheduler answers to a GET of ``path``."""
        return (await self.raw(path)).decode()

    async def raw(self, path: str, timeout_s: float = 60.0) -> bytes:
        """The same, as it came."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self.http.get(self.url + path, timeout=timeout) as answer:
            answer.raise_for_status()
            return await answer.read()

    async def extender_text(self, path: str) -> str:
        """What our extender answers to a GET of ``path``; empty where there is none of ours."""
        if not self.extender_url:
            return ""
        async with self.http.get(self.extender_url + path) as answer:
            answer.raise_for_status()
            return await answer.text()


def configuration(kubeconfig: Path, percentage: int, extender: str, *, binds: bool = True) -> dict[str, Any]:
    """KubeSchedulerConfiguration; ``percentage`` of nodes to score (0: kube-scheduler's own choice)."""
    config: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 5000, "burst": 5000},
        "leaderElection": {"leaderElect": False},
        "percentageOfNodesToScore": percentage,
        "profiles": [{"schedulerName": SCHEDULER}],
    }
    if extender:
        verbs = {"filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 100}
        config["extenders"] = [
            {
                "urlPrefix": extender,
                **verbs,
                **({"bindVerb": "bind"} if binds else {}),
                "nodeCacheCapable": True,
                "httpTimeout": "15s",
                "managedResources": [{"name": names.GPU_MEM}],
            }
        ]
    return config


@asynccontextmanager
async def scheduler(
    variant: str,
    bed: Bed,
    binaries: Path,
    state: Path,
    percentage: int,
    null_extender: Path,
    profile: Path | None = None,
) -> AsyncIterator[Scheduler]:
    """A ready scheduler of that variant, ended at the end; ``profile`` is where our extender leaves its profile."""
    port_file = state / "port"
    # kube-scheduler makes its certificate itself, at its start; and nothing of it leaves loopback.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as http:
        with ExitStack() as stack:
            pids: dict[str, int] = {}
            url, extender_url = "", ""
            if variant != ALONE:
                extender = stack.enter_context(_extender(variant, bed, state, null_extender, profile))
                url = f"http://127.0.0.1:{await file_text(port_file, extender)}/gpushare"
                pids["extender"] = extender.pid
            if variant == OURS:
                extender_url = url.removesuffix("/gpushare")
                await until(lambda: _answers(http, f"{extender_url}/readyz"), "the extender is ready")
            config = state / "scheduler.yaml"
            config.write_text(
                yaml.safe_dump(configuration(bed.kubeconfig, percentage, url, binds=variant != UNBOUND))
            )
            port = free_port()
            command = _command(binaries, config, bed.kubeconfig, port)
            log = state / "kube-scheduler.log"
            kube_scheduler = stack.enter_context(program("kube-scheduler", command, log))
            pids["kube-scheduler"] = kube_scheduler.pid
            found = Scheduler(pids, f"https://127.0.0.1:{port}", extender_url, http=http)

            async def ready() -> bool:
                kube_scheduler.check()
                return await _answers(http, f"{found.url}/readyz")

            await until(ready, "kube-scheduler is ready")
            yield found


def _extender(
    variant: str, bed: Bed, state: Path, null_extender: Path, profile: Path | None
) -> AbstractContextManager[Program]:
    log, port_file = state / "extender.log", state / "port"
    if variant == OURS:
        options = ["--kubeconfig", str(bed.kubeconfig), "--listen", "127.0.0.1:0", "--log-level", "warning"]
        watched = ["-m", "cProfile", "-o", str(profile)] if profile else []
        command = [sys.executable, *watched, "-m", "gpushare", "scheduler", *options]
        command += ["--port-file", str(port_file)]
        return program("extender", command, log)
    access = load_access(str(bed.kubeconfig))
    files = {"ca": access.ca, "cert": access.client_certificate, "key": access.client_key}
    for name, content in files.items():
        (state / f"{name}.pem").write_bytes(content)
    options = [text for name in files for text in (f"-{name}", str(state / f"{name}.pem"))]
    command = [str(null_extender), "-server", access.server, "-port-file", str(port_file), *options]
    return program("extender", command, log)


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def _command(binaries: Path, config: Path, kubeconfig: Path, port: int) -> list[str]:
    return [
        str(binaries / "kube-scheduler"),
        f"--config={config}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--cert-dir=",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        # Whoever reaches loopback of this machine may read figures and profiles.
        "--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics,/debug/*",
    ]
