"""A playground as its own process, and kubectl on it."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.patience import Deadline

CHECKOUT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(sys.executable).parent
WITHIN_S = 60.0


def wait_until(condition: Callable[[], object], *, within_s: float = WITHIN_S, detail: object = "") -> None:
    """Poll until ``condition`` holds."""
    deadline = Deadline(within_s)
    while not condition():
        assert not deadline.passed(), f"not within {deadline}: {detail() if callable(detail) else detail}"
        select.select([], [], [], 0.02)


def start(*options: str, folder: Path | None = None) -> "subprocess.Popen[str]":
    """Start ``gpushare playground``; its stdout is a pipe. ``folder``, if set, is where it stores its state."""
    assert (CHECKOUT / "build/fakegpu/libnvidia-ml.so.1").exists(), "build the stand-in driver: make fakegpu"
    assert (CHECKOUT / "build/isolation/arbiter").exists(), "build the isolation libraries: make isolation"
    return subprocess.Popen(
        [sys.executable, "-m", "gpushare", "playground", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / "src")} | ({"TMPDIR": str(folder)} if folder else {}),
    )


class Playground:
    """Started without the walk; ready when the constructor returns."""

    programs = PROGRAMS

    def __init__(self, folder: Path | None = None) -> None:
        self.process = start("--no-walk", folder=folder)
        lines = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("GPUs of every node"):
                break
        text = "".join(lines)
        found = re.search(r"export KUBECONFIG=(\S+)", text)
        assert found, text
        self.kubeconfig = found.group(1)
        self.state = Path(self.kubeconfig).parents[1]
        self.environment = {**os.environ, "KUBECONFIG": self.kubeconfig}

    def kubectl(self, *arguments: str, sent: object = None, code: int = 0) -> str:
        """Run the real kubectl; ``sent`` goes to its stdin as JSON."""
        done = subprocess.run(
            [str(PROGRAMS / "kubectl"), *arguments],
            input=None if sent is None else json.dumps(sent),
            capture_output=True,
            text=True,
            timeout=2 * WITHIN_S,
            env=self.environment,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def get(self, *what: str) -> Any:
        """``kubectl get … -o json``, parsed; {} if there is none."""
        return json.loads(self.kubectl("get", *what, "-o", "json", "--ignore-not-found") or "{}")

    def apply(self, item: dict[str, Any]) -> None:
        """Create an object."""
        self.kubectl("create", "-f", "-", sent=item)

    def processes(self, *parts: str) -> list[int]:
        """PIDs of everything that belongs to this playground and has all ``parts`` in its command line."""
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal():
                continue
            try:
                command_line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                state = (folder / "stat").read_text().rpartition(") ")[2][:1]
                belongs = str(self.state) in command_line or str(self.state) in _environment(folder)
            except OSError:
                continue
            if belongs and state != "Z" and all(part in command_line for part in parts):
                found.append(int(folder.name))
        return found

    def kill(self, *parts: str) -> None:
        """``kill -9`` the one process with all ``parts`` in its command line."""
        [pid] = self.processes(*parts)
        os.kill(pid, signal.SIGKILL)

    def end(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WITHIN_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


def _environment(folder: Path) -> str:
    return (folder / "environ").read_bytes().decode(errors="replace")


def a_pod(name: str, *, gpu_mem: int = 0, node: str = "", **spec: Any) -> dict[str, Any]:
    """A pod that sleeps, with a limit of GPU memory, on the named node if there is one."""
    limits = {"aliyun.com/gpu-mem": gpu_mem} if gpu_mem else {}
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sleep", "3600"],
        "resources": {"limits": limits},
    }
    selector = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    grace = {"terminationGracePeriodSeconds": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **selector, **grace, **spec},
    }
