"""What a Prometheus knows of use, that scrapes the node agents: by its query API, straight or through the API server's proxy."""

import json
import math
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from gpushare.inspect.errors import InspectError
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.usage_samples import FEW_UNTOLD, Figures, Used

if TYPE_CHECKING:
    from collections.abc import Mapping

_ANSWER_S: Final = 60.0
_MIB: Final = 1 << 20
_MEMORY: Final = "gpushare_container_memory_used_bytes"
_COMPUTE: Final = "gpushare_container_compute_used_ratio"
_GPU: Final = "gpushare_gpu_info"
_THROTTLED: Final = "gpushare_container_compute_throttled_seconds_total"
_MOST_BYTES: Final = 256 * _MIB

Series = tuple[str, str, str, str]
"""Namespace, pod, container, GPU's UUID."""


class PrometheusFailed(InspectError):
    """It cannot be asked, or answers something else."""


def queries(window: str) -> dict[str, str]:
    """What is asked: by what it gives. ``window`` as Prometheus writes it (``7d``).

    What is told of compute is that of the minutes in which a container computed: idle ones make it need no less.
    """
    at_work = f"({_COMPUTE} > 0)[{window}:1m]"
    return {
        "peak": f"max_over_time({_MEMORY}[{window}])",
        "p95": f"quantile_over_time(0.95, {_MEMORY}[{window}])",
        "last": f"last_over_time({_MEMORY}[{window}])",
        "told": f"count_over_time({_MEMORY}[{window}:1m])",
        "minutes": f"count_over_time({_COMPUTE}[{window}:1m])",
        "busy": f"max_over_time({_COMPUTE}[{window}])",
        "busy95": f"quantile_over_time(0.95, {at_work})",
        "work": f"count_over_time({at_work})",
        "throttled": f"increase({_THROTTLED}[{window}])",
    }


def figures_of_prometheus(kubectl: Kubectl, where: str, window: str) -> Figures:
    """What is known over ``window``. ``where`` is a URL, or a path of the API server's proxy. Raises ``InspectError``."""
    told = {name: _vector(kubectl, where, query) for name, query in queries(window).items()}
    used = tuple(_used(series, told) for series in sorted(told["peak"].keys() | told["busy"].keys()))
    missing = () if used else (_nothing(kubectl, where, window),)
    return Figures(f"Prometheus at {where}, {window}", used, missing)


def _nothing(kubectl: Kubectl, where: str, window: str) -> str:
    """Why it has no figures of pods: agents tell of GPUs at all times, and of pods while there are some."""
    if _vector(kubectl, where, f"count(last_over_time({_GPU}[{window}]))"):
        return f"no GPU pod ran in the last {window}, or no node agent saw what it used: {where} has figures of GPUs alone"
    return f"{where} has no {_MEMORY} of the last {window}: see whether it scrapes port health of the node agents' pods"


def _used(series: Series, told: "Mapping[str, Mapping[Series, float]]") -> Used:
    of = {name: values.get(series) for name, values in told.items()}
    peak, busy, memory_minutes = of["peak"] or 0.0, of["busy"] or 0.0, of["told"] or 0.0
    minutes = max(of["minutes"] or 0.0, memory_minutes)
    p95, last, busy95 = of["p95"], of["last"], of["busy95"]
    return Used(
        *series,
        60.0 * minutes,
        _mib(peak),
        _mib(peak if p95 is None else p95),
        _mib(peak if last is None else last),
        _percent(busy),
        # Work that fell between two minutes is known by its peak alone.
        _percent(busy if busy95 is None else busy95),
        _share(of["throttled"] or 0.0, 60.0 * (of["work"] or 0.0)),
        # Where the driver does not tell how much memory is held, compute alone has figures.
        memory_told=of["peak"] is not None and memory_minutes >= (1.0 - FEW_UNTOLD) * minutes,
    )


def _vector(kubectl: Kubectl, where: str, query: str) -> dict[Series, float]:
    path = f"{where.rstrip('/')}/api/v1/query?{urlencode({'query': query})}"
    if where.startswith("/"):
        (raw,) = kubectl.start(path).finish()
        body = bytes(raw)
    else:
        body = _fetched(where, path)
    try:
        answer = json.loads(body)
        if answer["status"] != "success":
            raise PrometheusFailed(f"Prometheus {where}", f"refuses {query}: {answer.get('error')}")
        listed = answer["data"]["result"]
        return {_series(one["metric"]): float(one["value"][1]) for one in listed}
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise PrometheusFailed(
            f"Prometheus {where}", f"answers something else ({error!r}); is it the address of a Prometheus?"
        ) from None


def _fetched(where: str, url: str) -> bytes:
    if not url.startswith(("http://", "https://")):
        raise PrometheusFailed(
            f"--prometheus={where}",
            "write http://HOST:PORT, or /api/v1/namespaces/NAMESPACE/services/NAME:PORT/proxy",
        )
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:  # noqa: S310 - its scheme was looked at
            read: bytes = answer.read(_MOST_BYTES)
            return read
    except urllib.error.HTTPError as error:
        said = error.read(2000)
        error.close()
        if error.code in (400, 422):
            return said  # with its reason, in its own form
        raise PrometheusFailed(f"Prometheus {where}", f"answers {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise PrometheusFailed(f"Prometheus {where}", f"cannot be reached: {reason}") from None


def _series(labels: dict[str, Any]) -> Series:
    """Whose series it is. Prometheus renames a label that the scraped target has itself."""

    def label(name: str) -> str:
        return str(labels.get(f"exported_{name}", labels.get(name, "")))

    return label("namespace"), label("pod"), label("container"), str(labels.get("UUID", ""))


def _mib(value: float) -> int:
    return math.ceil(value / _MIB)


def _share(part_s: float, of_s: float) -> float:
    return min(part_s / of_s, 1.0) if of_s else 0.0


def _percent(ratio: float) -> int:
    return math.ceil(round(100 * ratio, 6))
