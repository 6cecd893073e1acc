"""kube-scheduler alone, with an extender that does nothing, and with ours: the chart's configuration, one difference."""

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
import yaml

from benchmarks.cluster.bed import Bed
from benchmarks.cluster.chart import adapted
from benchmarks.cluster.processes import READY_S, Program, file_text, free_port, program, until
from gpushare.kube.auth.access import load_access

ALONE: Final = "alone"
NULL: Final = "null extender"
UNBOUND: Final = "null, binds itself"
OURS: Final = "ours"
#: Timeout of one request; a program that is not ready may accept it and never answer.
_REQUEST: Final = aiohttp.ClientTimeout(total=60.0)
_READY_REQUEST: Final = aiohttp.ClientTimeout(total=5.0)


@dataclass
class Scheduler:
    """A running kube-scheduler and its extender, if any."""

    programs: list[Program]
    url: str
    """The address of kube-scheduler's metrics and profiles."""
    extender_url: str = ""
    http: aiohttp.ClientSession = field(repr=False, kw_only=True)

    @property
    def pids(self) -> dict[str, int]:
        """Their processes by name."""
        return {one.name: one.pid for one in self.programs}

    async def text(self, path: str) -> str:
        """kube-scheduler's response to a GET of ``path``."""
        return (await self.raw(path)).decode()

    async def raw(self, path: str, timeout_s: float = 60.0) -> bytes:
        """The same as bytes."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with self.http.get(self.url + path, timeout=timeout) as answer:
            answer.raise_for_status()
            return await answer.read()

    async def extender_text(self, path: str) -> str:
        """Our extender's response to a GET of ``path``; empty without our extender."""
        if not self.extender_url:
            return ""
        async with self.http.get(self.extender_url + path) as answer:
            answer.raise_for_status()
            return await answer.text()


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
    """A ready scheduler of that variant; ``profile`` is the path of our extender's profile."""
    # kube-scheduler creates its own certificate at its start, and nothing leaves loopback.
    connector = aiohttp.TCPConnector(ssl=False)
    async with aiohttp.ClientSession(connector=connector, timeout=_REQUEST) as http:
        with ExitStack() as stack:
            programs: list[Program] = []
            url, extender_url = "", ""
            if variant != ALONE:
                extender = stack.enter_context(_extender(variant, bed, state, null_extender, profile))
                programs.append(extender)
                origin = f"http://127.0.0.1:{await file_text(state / 'port', extender)}"
                url = f"{origin}/gpushare"
                if variant == OURS:
                    extender_url = origin
                    await _ready(http, extender_url, extender)
            config = state / "scheduler.yaml"
            binds = variant != UNBOUND
            config.write_text(
                yaml.safe_dump(adapted(bed.configuration, bed.kubeconfig, percentage, url, binds=binds))
            )
            port = free_port()
            command = _command(binaries, config, bed.kubeconfig, port)
            kube_scheduler = program("kube-scheduler", command, state / "kube-scheduler.log")
            programs.append(stack.enter_context(kube_scheduler))
            found = Scheduler(programs, f"https://127.0.0.1:{port}", extender_url, http=http)
            await _ready(http, found.url, programs[-1])
            yield found


def _extender(
    variant: str, bed: Bed, state: Path, null_extender: Path, profile: Path | None
) -> AbstractContextManager[Program]:
    log, port_file = state / "extender.log", state / "port"
    if variant == OURS:
        watched = ["-m", "cProfile", "-o", str(profile)] if profile else []
        command = [sys.executable, *watched, "-m", "gpushare", *bed.arguments]
        command += ["--kubeconfig", str(bed.kubeconfig), "--listen", "127.0.0.1:0"]
        command += ["--port-file", str(port_file)]
        return program("extender", command, log)
    access = load_access(str(bed.kubeconfig))
    files = {"ca": access.ca, "cert": access.client_certificate, "key": access.client_key}
    for name, content in files.items():
        (state / f"{name}.pem").write_bytes(content)
    options = [text for name in files for text in (f"-{name}", str(state / f"{name}.pem"))]
    command = [str(null_extender), "-server", access.server, "-port-file", str(port_file), *options]
    return program("extender", command, log)


async def _ready(http: aiohttp.ClientSession, url: str, of: Program) -> None:
    async def answers() -> bool:
        async with http.get(f"{url}/readyz", timeout=_READY_REQUEST) as answer:
            answer.raise_for_status()
            return True

    await until(answers, f"the {of.name} is ready", [of], deadline_s=READY_S)


def _command(binaries: Path, config: Path, kubeconfig: Path, port: int) -> list[str]:
    return [
        str(binaries / "kube-scheduler"),
        f"--config={config}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--cert-dir=",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        # Any process on this machine may read metrics and profiles.
        "--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics,/debug/*",
    ]
