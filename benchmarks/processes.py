"""Start measured processes as users would, and read their resource usage from the kernel."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEADLINE_S = 120.0


def wait_for_file(path: Path, process: "subprocess.Popen[bytes]") -> str:
    """The file's text once it exists; raises if the process ends first or it takes too long."""
    until = time.monotonic() + DEADLINE_S
    while not path.exists():
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
        if time.monotonic() > until:
            raise TimeoutError(f"{path.name} did not appear in {DEADLINE_S} s")
        time.sleep(0.002)
    return path.read_text().strip()


@contextmanager
def running(*arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A Python process of ours (``-m …``), terminated at the end."""
    log = tempfile.TemporaryFile()  # noqa: SIM115 -- closed below
    process = subprocess.Popen([sys.executable, "-m", *arguments], stderr=log, stdout=log)
    try:
        yield process
    except BaseException:
        log.seek(0)
        sys.stderr.write(log.read().decode(errors="replace")[-3000:])
        raise
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


@contextmanager
def api_server(**settings: int | str) -> Iterator[str]:
    """The API server that answers immediately; yields a kubeconfig for it."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder, "port")
        options = [
            text for key, value in settings.items() for text in (f"--{key.replace('_', '-')}", str(value))
        ]
        with running("benchmarks.api_server", "--port-file", str(port_file), *options) as process:
            port = wait_for_file(port_file, process)
            kubeconfig = Path(folder, "config")
            kubeconfig.write_text(
                "apiVersion: v1\nkind: Config\ncurrent-context: b\n"
                f"clusters: [{{name: b, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n"
                "users: [{name: b, user: {token: t}}]\ncontexts: [{name: b, context: {cluster: b, user: b}}]\n"
            )
            yield str(kubeconfig)


def rss_mb(pid: int) -> float:
    """Resident memory of a process, in MB (10**6 bytes)."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e6


def processor_s(pid: int) -> float:
    """Processor time that a process has used, in seconds; counted in hundredths."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine() -> str:
    """The machine in a line: processor, cores, memory, Python."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        os.uname().machine,
    )
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    version = sys.version.split()[0]
    return f"{model}, {os.cpu_count()} cores, {memory_kib / 2**20:.0f} GiB, Linux {os.uname().release}, Python {version}"
