"""The run time of ``kubectl inspect cgpu``: whole processes, from the start to the last byte.

A thousand nodes of eight GPUs and 4,000 pods. Usage: ``python -m benchmarks.inspect_start [--quick]``.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.api_server import Cluster
from benchmarks.processes import api_server
from gpushare.api.quantity import MemoryUnit

Figures = dict[str, tuple[float, str]]

PODS_PER_NODE = 4
_GPU_MIB = 81920
_BIN = Path(sys.executable).parent

#: Answers immediately, from files: the rest is the command's own time.
_SCRIPTED_KUBECTL = """\
#!/bin/sh
case "$3" in
*/nodes*) exec cat '{folder}/nodes.json' ;;
*) exec cat '{folder}/pods.json' ;;
esac
"""


def measure(*, quick: bool) -> Figures:
    """Median seconds of the whole process: with a kubectl that answers immediately, and with the real one."""
    runs = 5 if quick else 30
    figures: Figures = {}
    sizes = (1000,) if quick else (1000, 5000)
    for nodes in sizes:
        with tempfile.TemporaryDirectory() as folder:
            kubectl = _scripted_kubectl(Path(folder), nodes)
            plugin = [str(_BIN / "kubectl-inspect-cgpu")]
            environment = {**os.environ, "KUBECTL": str(kubectl)}
            figures[f"inspect_s_{nodes}"] = (_median_s(plugin, environment, nodes, runs), "s")
    with api_server(nodes=1000, placed=1000 * PODS_PER_NODE) as kubeconfig:
        environment = {
            **os.environ,
            "KUBECONFIG": kubeconfig,
            "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}",
        }
        typed = ["kubectl", "inspect", "cgpu"]
        figures["inspect_real_kubectl_s_1000"] = (_median_s(typed, environment, 1000, runs), "s")
    return figures


def _scripted_kubectl(folder: Path, nodes: int) -> Path:
    cluster = Cluster(nodes, nodes * PODS_PER_NODE, 0, 1, _GPU_MIB, MemoryUnit.GIB)
    (folder / "nodes.json").write_bytes(cluster.page(cluster.nodes, len(cluster.nodes), 0))
    (folder / "pods.json").write_bytes(cluster.page(cluster.pods, len(cluster.pods), 0))
    script = folder / "kubectl"
    script.write_text(_SCRIPTED_KUBECTL.format(folder=folder))
    script.chmod(0o755)
    return script


def _median_s(command: list[str], environment: Mapping[str, str], nodes: int, runs: int) -> float:
    taken = []
    for _ in range(runs):
        started = time.perf_counter()
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        taken.append(time.perf_counter() - started)
        _check(done, nodes)
    return statistics.median(taken)


def _check(done: "subprocess.CompletedProcess[str]", nodes: int) -> None:
    """Raise for a wrong result."""
    lines = done.stdout.splitlines()
    units = sum(1 + number % 4 for number in range(nodes * PODS_PER_NODE))
    wanted = f"{units}/{nodes * 8 * 80} "
    if done.returncode or done.stderr or len(lines) != nodes + 4 or not lines[-1].startswith(wanted):
        raise RuntimeError(f"{done.args} ended with {done.returncode}: {done.stderr or lines[-1:]}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    for name, (value, unit) in measure(quick=parser.parse_args().quick).items():
        print(f"{name:<34} {value:8.3f} {unit}")


if __name__ == "__main__":
    main()
