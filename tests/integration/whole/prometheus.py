"""A real Prometheus over a playground: Debian's, unpacked into ``build/system``."""

import asyncio
import contextlib
import fcntl
import json
import shutil
import subprocess
import urllib.parse
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.integration.whole.world import CHECKOUT, until

SYSTEM: Final = CHECKOUT / "build" / "system" / "usr" / "bin"
RULES: Final = tuple(sorted((CHECKOUT / "charts").glob("*/files/alerts.yaml")))
_STOP_S: Final = 10.0
_INSTALL_S: Final = 300.0


def program(name: str) -> str:
    """``prometheus`` or ``promtool``; unpacked if missing, which takes some seconds once."""
    found = _found(name)
    if not found:
        SYSTEM.mkdir(parents=True, exist_ok=True)
        with (SYSTEM / ".lock").open("w") as lock:
            # Several test processes may get here at the same time.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _found(name):
                subprocess.run(
                    [CHECKOUT / "scripts" / "install-system-packages"], timeout=_INSTALL_S, check=False
                )
        found = _found(name)
    assert found, (
        f"{name} is not here, and scripts/install-system-packages could not unpack it; install Debian's prometheus"
    )
    return found


def _found(name: str) -> str:
    unpacked = SYSTEM / name
    return str(unpacked) if unpacked.exists() else shutil.which(name) or ""


def promtool(*arguments: str, stdin: str = "") -> tuple[int, str]:
    """Exit code and output of Prometheus' own checker."""
    result = subprocess.run(
        [program("promtool"), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return result.returncode, result.stdout + result.stderr


class Prometheus:
    """A running Prometheus; ``url`` is its own."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def get(self, path: str, **query: str) -> Any:
        """``data`` of a response of its HTTP interface, which must be a success."""
        host = self.url.removeprefix("http://")
        name, _, port = host.partition(":")
        reader, writer = await asyncio.open_connection(name, int(port))
        target = f"/api/v1/{path}?{urllib.parse.urlencode(query)}"
        writer.write(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        if b"transfer-encoding: chunked" in head.lower():
            body = _unchunked(body)
        answer = json.loads(body)
        assert answer["status"] == "success", answer
        return answer["data"]

    async def query(self, expression: str) -> list[Any]:
        """The series that an expression has now."""
        return list((await self.get("query", query=expression))["result"])

    async def until(self, expression: str, what: str, within_s: float = 60.0) -> list[Any]:
        """Wait until an expression has series."""
        return await until(lambda: self.query(expression), f"{what}: {expression}", within_s)


def _unchunked(body: bytes) -> bytes:
    parts, at = [], 0
    while at < len(body):
        end = body.index(b"\r\n", at)
        size = int(body[at:end], 16)
        parts.append(body[end + 2 : end + 2 + size])
        at = end + size + 4
        if not size:
            break
    return b"".join(parts)


@contextlib.asynccontextmanager
async def running_prometheus(
    folder: Path, targets: Path, rules: Sequence[Path] = RULES
) -> AsyncIterator[Prometheus]:
    """Scrapes ``targets`` (``file_sd_configs``) every second and evaluates ``rules``; ready when the block begins."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(one) for one in rules],
        "scrape_configs": [
            {
                "job_name": "gpushare",
                "honor_labels": True,
                "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    port = 0
    log = (folder / "prometheus.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=log,
        stderr=log,
    )
    try:
        address = await until(lambda: _address(process, folder), "Prometheus is ready")
        yield Prometheus(f"http://{address}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        log.close()


async def _address(process: asyncio.subprocess.Process, folder: Path) -> str:
    text = (folder / "prometheus.log").read_text(errors="replace")
    assert process.returncode is None, text[-3000:]
    if "Server is ready to receive web requests" not in text:
        return ""
    listening = [line for line in text.splitlines() if "Listening on" in line and "address=" in line]
    # It logs that it listens from another goroutine than that it is ready.
    return listening[-1].split("address=")[1].split()[0] if listening else ""
