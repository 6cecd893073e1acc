"""Parser of the few metrics that the dashboard reads from a node agent's ``/metrics``: usage of containers and GPUs."""

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
#: Metrics of whole GPUs.
_GPU_BYTES: Final = "gpushare_gpu_memory_used_bytes"
_GPU_RATIO: Final = "gpushare_gpu_utilization_ratio"
#: The second name is that of agents of 0.1.0.
_DEGRADED: Final = ("gpushare_nodeagent_degraded", "gpushare_nodeagent_trouble")
#: Factors that convert values to MiB and percent.
_SCALES: Final = {
    _GPU_BYTES: 1 / (1 << 20),
    _GPU_RATIO: 100.0,
    _CONTAINER_BYTES: 1 / (1 << 20),
    _CONTAINER_RATIO: 100.0,
}
_MEMORY_METRICS: Final = frozenset({_GPU_BYTES, _CONTAINER_BYTES})


class ContainerUse(msgspec.Struct, frozen=True):
    """Usage of a GPU by a container (of the pod ``NAMESPACE/NAME``); ``UNKNOWN`` where it is not reported."""

    pod: str
    container: str
    gpu: str
    used_mib: int = UNKNOWN
    busy_percent: int = UNKNOWN


class Figures(msgspec.Struct, frozen=True):
    """Figures of a node agent: GPUs by UUID, containers, and problems of the node."""

    gpus: dict[str, Real]
    containers: tuple[ContainerUse, ...]
    troubles: tuple[str, ...] = ()

    def of_gpu(self, uuid: str) -> Real:
        """Usage of a GPU: the driver's total, or else the sum over the containers with known usage."""
        reported = self.gpus.get(uuid, Real())
        containers = [container for container in self.containers if container.gpu == uuid]
        used, busy = (
            _sum(container.used_mib for container in containers),
            _sum(container.busy_percent for container in containers),
        )
        return Real(
            used if reported.used_mib == UNKNOWN else reported.used_mib,
            busy if reported.busy_percent == UNKNOWN else reported.busy_percent,
        )


def read(text: str) -> Figures:
    """The figures in ``text``; other metrics and malformed lines are skipped."""
    gpus: dict[str, Real] = {}
    containers: dict[tuple[str, str, str], ContainerUse] = {}
    troubles: list[str] = []
    for name, labels, value in _lines(text):
        figure = max(round(value), 0)
        field = "used_mib" if name in _MEMORY_METRICS else "busy_percent"
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
            yield match[1], {key: _unescaped(text) for key, text in _LABEL.findall(match[2])}, value


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda match: _ESCAPED.get(match[0], match[0]), text) if "\\" in text else text


def _sum(figures: Iterator[int]) -> int:
    known = [figure for figure in figures if figure != UNKNOWN]
    return sum(known) if known else UNKNOWN
