"""The openb traces as used by the paper's simulator: nodes, pods, and the arrivals for a seed.

Source of the protocol: https://github.com/hkust-adsl/kubernetes-scheduler-simulator, ``SortClusterPods`` and
``TunePodsByNodeTotalResource``. Its random numbers are Go's and ours are Python's, so a seed gives another shuffle.
"""

import csv
import lzma
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, TextIO

#: Thousandths of a GPU.
MILLI: Final = 1000
_PREFIX: Final = "openb_pod_list_"
_ENDINGS: Final = (".csv.xz", ".csv")
_NODES: Final = "node_list"
#: Maximum of any amount of a row, and of GPUs: sums are 64 bits wide.
_MOST: Final = 2**40
_MOST_GPUS: Final = 1024
_BROKEN: Final = (lzma.LZMAError, EOFError)
_NO_ROWS: Final = (KeyError, TypeError, ValueError, csv.Error)


class TraceError(Exception):
    """A folder or a file that is not a trace; ``str()`` is the reason."""


class TraceNode(NamedTuple):
    """A node of the list: thousandths of processors, MiB of memory, GPUs and their model."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class TracePod(NamedTuple):
    """A pod of the list: ``gpu_milli`` thousandths of each of ``gpus`` GPUs, of one of ``models`` (empty: any).

    ``lifetime_s``: from its start to its end, 0 if the list has none or the pod never started.
    """

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    models: frozenset[str]
    name: str = ""
    lifetime_s: float = 0.0

    @property
    def total_milli(self) -> int:
        """Thousandths over all its GPUs."""
        return self.gpus * self.gpu_milli


def trace_name(path: Path) -> str:
    """``default`` of ``openb_pod_list_default.csv.xz``."""
    name = path.name
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name.removeprefix(_PREFIX)


def pod_lists(folder: Path) -> dict[str, Path]:
    """The pod lists in ``folder`` by name, in order of it."""
    found = [path for path in folder.iterdir() if path.name.endswith(_ENDINGS) and _NODES not in path.name]
    return {trace_name(path): path for path in sorted(found)}


def node_list(folder: Path) -> Path:
    """The list of nodes with GPUs in ``folder``; raises ``TraceError`` unless there is exactly one."""
    found = [path for path in folder.iterdir() if path.name.endswith(_ENDINGS) and _NODES in path.name]
    with_gpus = [path for path in found if "gpu_node" in path.name] or found
    if len({trace_name(path) for path in with_gpus}) != 1:
        raise TraceError(
            f"{folder}: {len(with_gpus)} lists of nodes; put openb_node_list_gpu_node.csv beside the pods"
        )
    return with_gpus[0]


def read_nodes(path: Path) -> list[TraceNode]:
    """The nodes that have GPUs; raises ``TraceError``."""
    with _open(path) as text:
        try:
            nodes = [
                TraceNode(
                    row["sn"],
                    _amount(row, "cpu_milli", least=1),
                    _amount(row, "memory_mib", least=1),
                    _amount(row, "gpu", most=_MOST_GPUS),
                    row["model"],
                )
                for row in csv.DictReader(text)
            ]
        except _BROKEN as error:
            raise TraceError(f"{path}: cannot be unpacked ({error}); fetch it again") from None
        except _NO_ROWS as error:
            raise TraceError(f"{path}: not a list of nodes ({error!r})") from None
    return [node for node in nodes if node.gpus]


def read_pods(path: Path) -> list[TracePod]:
    """All pods, in order of name; raises ``TraceError``."""
    with _open(path) as text:
        try:
            rows = sorted(csv.DictReader(text), key=lambda row: row["name"])
            return [_pod(row) for row in rows]
        except _BROKEN as error:
            raise TraceError(f"{path}: cannot be unpacked ({error}); fetch it again") from None
        except _NO_ROWS as error:
            raise TraceError(f"{path}: not a list of pods ({error!r})") from None


def arrivals(pods: Sequence[TracePod], capacity_milli: int, ratio: float, seed: int) -> list[TracePod]:
    """``pods`` shuffled, then removed or drawn again at random until they request ``ratio`` of the capacity."""
    chance = random.Random(seed)
    arriving = list(pods)
    chance.shuffle(arriving)
    requested, goal = sum(pod.total_milli for pod in arriving), ratio * capacity_milli
    while requested > goal:
        requested -= arriving.pop(chance.randrange(len(arriving))).total_milli
    while requested < goal:
        pod = chance.choice(pods)
        # As in the simulator: one GPU's part of the last pod is compared, all of it is counted.
        if requested + pod.gpu_milli > goal:
            break
        arriving.append(pod)
        requested += pod.total_milli
    return arriving


def _pod(row: dict[str, str]) -> TracePod:
    gpus = _amount(row, "num_gpu", most=_MOST_GPUS)
    milli = min(_amount(row, "gpu_milli"), MILLI) if gpus and row["gpu_milli"] else 0
    if gpus and not milli:
        gpus = 0
    models = frozenset(filter(None, (row.get("gpu_spec") or "").split("|"))) if gpus else frozenset()
    memory_mib = _amount(row, "memory_mib") if row.get("memory_mib") else 0
    return TracePod(
        _amount(row, "cpu_milli"),
        memory_mib,
        gpus,
        milli,
        models,
        row["name"],
        _lifetime_s(row),
    )


def _lifetime_s(row: dict[str, str]) -> float:
    start, end = row.get("scheduled_time"), row.get("deletion_time")
    return max(float(end) - float(start), 0.0) if start and end else 0.0


def _amount(row: dict[str, str], column: str, *, least: int = 0, most: int = _MOST) -> int:
    amount = int(row[column])
    if not least <= amount <= most:
        raise ValueError(f"{column} is {amount}, not {least} to {most}")
    return amount


def _open(path: Path) -> TextIO:
    if path.name.endswith(".xz"):
        return lzma.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")
