"""The few metrics that the dashboard reads of a node agent's ``/metrics``: what containers and GPUs really use."""

import math
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from gpushare.dashboard.data.heatmap import UNKNOWN, Real

_LINE: Final = re.compile(r"^(\w+)\{(.*)\} (\S+)(?: \d+)?$")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_CONTAINER_BYTES: Final = "gpushare_container_memory_used_bytes"
_CONTAINER_RATIO: Final = "gpushare_container_compute_used_ratio"
#: Of whole GPUs.
_GPU_BYTES: Final = "gpushare_gpu_memory_used_bytes"
_GPU_RATIO: Final = "gpushare_gpu_utilization_ratio"
#: Agents of 0.1.0 have the second name.
_DEGRADED: Final = ("gpushare_nodeagent_degraded", "gpushare_nodeagent_trouble")
#: What makes MiB and percent of a value.
_SCALES: Final = {
    _GPU_BYTES: 1 / (1 << 20),
    _GPU_RATIO: 100.0,
    _CONTAINER_BYTES: 1 / (1 << 20),
    _CONTAINER_RATIO: 100.0,
}
_OF_MEMORY: Final = frozenset({_GPU_BYTES, _CONTAINER_BYTES})


class ContainerUse(msgspec.Struct, frozen=True):
    """What a container (of the pod ``NAMESPACE/NAME``) really uses of a GPU; ``UNKNOWN`` where nobody says."""

    pod: str
    container: str
    gpu: str
    used_mib: int = UNKNOWN
    busy_percent: int = UNKNOWN


class Figures(msgspec.Struct, frozen=True):
    """What a node agent tells: GPUs by UUID, containers, and troubles of the node."""

    gpus: dict[str, Real]
    containers: tuple[ContainerUse, ...]
    troubles: tuple[str, ...] = ()

    def of_gpu(self, uuid: str) -> Real:
        """What is used of a GPU: what the driver says of all of it or else the sum of its containers, as far as known."""
        told = self.gpus.get(uuid, Real())
        its = [one for one in self.containers if one.gpu == uuid]
        used, busy = _sum(one.used_mib for one in its), _sum(one.busy_percent for one in its)
        return Real(
            used if told.used_mib == UNKNOWN else told.used_mib,
            busy if told.busy_percent == UNKNOWN else told.busy_percent,
        )


def read(text: str) -> Figures:
    """The figures in ``text``; lines that are of no interest, or cannot be read, are passed over."""
    gpus: dict[str, Real] = {}
    containers: dict[tuple[str, str, str], ContainerUse] = {}
    troubles: list[str] = []
    for name, labels, value in _lines(text):
        figure = max(round(value), 0)
        field = "used_mib" if name in _OF_MEMORY else "busy_percent"
        uuid = labels.get("UUID", "")
        if name in (_CONTAINER_BYTES, _CONTAINER_RATIO):
            pod = f"{labels.get('namespace', '')}/{labels.get('pod', '')}"
            key = (pod, labels.get("container", ""), uuid)
            containers[key] = msgspec.structs.replace(
                containers.get(key) or ContainerUse(*key), **{field: figure}
            )
        elif name in _SCALES:
            gpus[uuid] = gpus.get(uuid, Real())._replace(**{field: figure})
        elif name in _DEGRADED and value:
            troubles.append(labels.get("reason", ""))
    return Figures(gpus, tuple(containers.values()), tuple(troubles))


def _lines(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.splitlines():
        if not line.startswith((*_SCALES, *_DEGRADED)):
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3]) * _SCALES.get(match[1], 1.0)
        except ValueError:
            continue
        if math.isfinite(value) and abs(value) < 1 << 31:
            yield match[1], {key: _plain(told) for key, told in _LABEL.findall(match[2])}, value


def _plain(told: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPED.get(found[0], found[0]), told) if "\\" in told else told


def _sum(figures: Iterator[int]) -> int:
    known = [figure for figure in figures if figure != UNKNOWN]
    return sum(known) if known else UNKNOWN
