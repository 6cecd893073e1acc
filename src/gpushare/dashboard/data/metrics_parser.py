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
_CONTAINER_LIMIT: Final = "gpushare_container_memory_limit_bytes"
_CONTAINER_RATIO: Final = "gpushare_container_compute_used_ratio"
#: Metrics of whole GPUs.
_GPU_BYTES: Final = "gpushare_gpu_memory_used_bytes"
_GPU_RATIO: Final = "gpushare_gpu_utilization_ratio"
#: The second name is that of agents of 0.1.0.
_DEGRADED: Final = ("gpushare_nodeagent_degraded", "gpushare_nodeagent_trouble")
#: By metric: the factor that converts its values to MiB or percent, and the field that has them.
_FIELDS: Final = {
    _GPU_BYTES: (1 / (1 << 20), "used_mib"),
    _GPU_RATIO: (100.0, "busy_percent"),
    _CONTAINER_BYTES: (1 / (1 << 20), "used_mib"),
    _CONTAINER_LIMIT: (1 / (1 << 20), "limit_mib"),
    _CONTAINER_RATIO: (100.0, "busy_percent"),
}


class ContainerUse(msgspec.Struct, frozen=True):
    """Usage of a GPU by a container (of the pod ``NAMESPACE/NAME``); ``UNKNOWN`` where it is not reported.

    ``limit_mib``: what it may use at most, where that is more than is allocated to it; else 0.
    """

    pod: str
    container: str
    gpu: str
    used_mib: int = UNKNOWN
    busy_percent: int = UNKNOWN
    limit_mib: int = 0


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
        uuid = labels.get("UUID", "")
        if name in (_CONTAINER_BYTES, _CONTAINER_LIMIT, _CONTAINER_RATIO):
            pod = f"{labels.get('namespace', '')}/{labels.get('pod', '')}"
            key = (pod, labels.get("container", ""), uuid)
            containers[key] = msgspec.structs.replace(
                containers.get(key) or ContainerUse(*key), **{_FIELDS[name][1]: figure}
            )
        elif name in _FIELDS:
            gpus[uuid] = gpus.get(uuid, Real())._replace(**{_FIELDS[name][1]: figure})
        elif name in _DEGRADED and value:
            troubles.append(labels.get("reason", ""))
    return Figures(gpus, tuple(containers.values()), tuple(troubles))


def _lines(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for line in text.splitlines():
        if not line.startswith((*_FIELDS, *_DEGRADED)):
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3]) * _FIELDS.get(match[1], (1.0, ""))[0]
        except ValueError:
            continue
        if math.isfinite(value) and abs(value) < 1 << 31:
            yield match[1], {key: _unescaped(text) for key, text in _LABEL.findall(match[2])}, value


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda match: _ESCAPED.get(match[0], match[0]), text) if "\\" in text else text


def _sum(figures: Iterator[int]) -> int:
    known = [figure for figure in figures if figure != UNKNOWN]
    return sum(known) if known else UNKNOWN
