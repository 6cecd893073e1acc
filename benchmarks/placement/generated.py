"""A few nodes and pods in the format of the traces, for a quick run without them."""

from collections.abc import Iterable
from pathlib import Path

_NODES = 40
_PODS = 400
_MODELS = ("T4", "V100M32", "G2")
_GPU_MILLI = (100, 300, 460, 700, 1000)
_LIFETIME_S = (60, 600, 6000)
_PODS_HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,scheduled_time,deletion_time"


def write(folder: Path, traces: Iterable[str]) -> None:
    """A list of nodes, and one of pods for each of ``traces``."""
    nodes = [f"node-{i},96000,393216,{2 * (1 + i % 4)},{_MODELS[i % len(_MODELS)]}" for i in range(_NODES)]
    _write(folder / "openb_node_list_gpu_node.csv", "sn,cpu_milli,memory_mib,gpu,model", nodes)
    pods = [
        f"pod-{i:04},{4000 + i % 5 * 1000},16384,1,{_GPU_MILLI[i % 5]},,{i},{i + _LIFETIME_S[i % 3]}"
        for i in range(_PODS)
    ]
    for name in traces:
        path = folder / f"openb_pod_list_{name}.csv"
        _write(path, _PODS_HEAD, pods)


def _write(path: Path, head: str, rows: Iterable[str]) -> None:
    path.write_text("\n".join([head, *rows, ""]))
