"""Usage history from a Prometheus that scrapes the node agents, by its query API, directly or through the API server's proxy."""

import json
import math
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from gpushare.inspect.errors import InspectError
from gpushare.inspect.sources.kubectl import Kubectl
from gpushare.inspect.sources.usage_samples import MAX_UNKNOWN_RATIO, Figures, Used

if TYPE_CHECKING:
    from collections.abc import Mapping

_REQUEST_TIMEOUT_S: Final = 60.0
_MIB: Final = 1 << 20
_MEMORY: Final = "gpushare_container_memory_used_bytes"
_COMPUTE: Final = "gpushare_container_compute_used_ratio"
_GPU: Final = "gpushare_gpu_info"
_THROTTLED: Final = "gpushare_container_compute_throttled_seconds_total"
#: Queries whose values of several agents, one after the other, add up.
_ADDED: Final = frozenset({"memory_minutes", "minutes", "work", "throttled"})
_MAX_ANSWER_BYTES: Final = 256 * _MIB

Series = tuple[str, str, str, str]
"""Namespace, pod, container, GPU's UUID."""


class PrometheusFailed(InspectError):
    """Prometheus cannot be reached, or its answer is not one of Prometheus."""


def queries(window: str) -> dict[str, str]:
    """The queries by name. ``window`` is in Prometheus's notation (``7d``).

    The quantile of compute covers only minutes in which a container computed: idle minutes do not reduce what it needs.
    """
    busy_minutes = f"({_COMPUTE} > 0)[{window}:1m]"
    return {
        "peak": f"max_over_time({_MEMORY}[{window}])",
        "p95": f"quantile_over_time(0.95, {_MEMORY}[{window}])",
        "last": f"last_over_time({_MEMORY}[{window}])",
        "memory_minutes": f"count_over_time({_MEMORY}[{window}:1m])",
        "minutes": f"count_over_time({_COMPUTE}[{window}:1m])",
        "busy": f"max_over_time({_COMPUTE}[{window}])",
        "busy95": f"quantile_over_time(0.95, {busy_minutes})",
        "work": f"count_over_time({busy_minutes})",
        "throttled": f"increase({_THROTTLED}[{window}])",
    }


def figures_of_prometheus(kubectl: Kubectl, where: str, window: str) -> Figures:
    """Usage over ``window``. ``where`` is a URL, or a path of the API server's proxy. Raises ``InspectError``."""
    results = {
        name: _merged(_vector(kubectl, where, query), added=name in _ADDED)
        for name, query in queries(window).items()
    }
    used = tuple(_used(series, results) for series in sorted(results["peak"].keys() | results["busy"].keys()))
    missing = () if used else (_why_no_figures(kubectl, where, window),)
    return Figures(f"Prometheus at {where}, {window}", used, missing)


def _why_no_figures(kubectl: Kubectl, where: str, window: str) -> str:
    """Why there are no figures of pods. Agents always export metrics of GPUs, but of pods only while they run."""
    if _vector(kubectl, where, f"count(last_over_time({_GPU}[{window}]))"):
        return f"no GPU pod ran in the last {window}, or no node agent sampled it: {where} has metrics of GPUs only"
    return f"{where} has no {_MEMORY} of the last {window}: check that it scrapes port health of the node agents' pods"


def _used(series: Series, results: "Mapping[str, Mapping[Series, float]]") -> Used:
    figures = {name: values.get(series) for name, values in results.items()}
    peak, busy, memory_minutes = (
        figures["peak"] or 0.0,
        figures["busy"] or 0.0,
        figures["memory_minutes"] or 0.0,
    )
    minutes = max(figures["minutes"] or 0.0, memory_minutes)
    p95, last, busy95 = figures["p95"], figures["last"], figures["busy95"]
    return Used(
        *series,
        60.0 * minutes,
        _mib(peak),
        _mib(peak if p95 is None else p95),
        _mib(peak if last is None else last),
        _percent(busy),
        # Of work shorter than the sampling step only the peak is known.
        _percent(busy if busy95 is None else busy95),
        _share(figures["throttled"] or 0.0, 60.0 * (figures["work"] or 0.0)),
        # Where the driver does not report memory, only compute has figures.
        memory_known=figures["peak"] is not None and memory_minutes >= (1.0 - MAX_UNKNOWN_RATIO) * minutes,
    )


def _merged(samples: "list[tuple[dict[str, Any], float]]", *, added: bool) -> dict[Series, float]:
    """The greatest value by container and GPU, or the sum over agents: after a restart an agent has series of its own.

    Series of one agent that differ in other labels are those of replicas of Prometheus: none is added to another.
    """
    by_agent: dict[Series, dict[tuple[Any, ...], float]] = {}
    for labels, value in samples:
        agent = tuple(labels.get(name) for name in ("namespace", "pod", "instance"))
        values = by_agent.setdefault(_series(labels), {})
        values[agent] = max(value, values.get(agent, value))
    return {
        series: sum(values.values()) if added else max(values.values()) for series, values in by_agent.items()
    }


def _vector(kubectl: Kubectl, where: str, query: str) -> "list[tuple[dict[str, Any], float]]":
    """The labels and value of every series."""
    path = f"{where.rstrip('/')}/api/v1/query?{urlencode({'query': query})}"
    if where.startswith("/"):
        (raw,) = kubectl.start(path).finish()
        body = bytes(raw)
    else:
        body = _fetched(where, path)
    try:
        answer = json.loads(body)
        if answer["status"] != "success":
            raise PrometheusFailed(f"Prometheus {where}", f"rejects {query}: {answer.get('error')}")
        samples = answer["data"]["result"]
        return [(dict(sample["metric"]), float(sample["value"][1])) for sample in samples]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise PrometheusFailed(
            f"Prometheus {where}",
            f"returned an unexpected answer ({error!r}); is it the address of a Prometheus?",
        ) from None


def _fetched(where: str, url: str) -> bytes:
    if not url.startswith(("http://", "https://")):
        raise PrometheusFailed(
            f"--prometheus={where}",
            "write http://HOST:PORT, or /api/v1/namespaces/NAMESPACE/services/NAME:PORT/proxy",
        )
    try:
        with urllib.request.urlopen(url, timeout=_REQUEST_TIMEOUT_S) as answer:  # noqa: S310 - the scheme was checked
            read: bytes = answer.read(_MAX_ANSWER_BYTES)
            return read
    except urllib.error.HTTPError as error:
        body = error.read(2000)
        error.close()
        if error.code in (400, 422):
            return body  # an answer in JSON that has the reason
        raise PrometheusFailed(f"Prometheus {where}", f"answers {error.code} {error.reason}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise PrometheusFailed(f"Prometheus {where}", f"cannot be reached: {reason}") from None


def _series(labels: dict[str, Any]) -> Series:
    """The container and GPU of a series. Prometheus adds ``exported_`` to labels that collide with the target's own."""

    def label(name: str) -> str:
        return str(labels.get(f"exported_{name}", labels.get(name, "")))

    return label("namespace"), label("pod"), label("container"), str(labels.get("UUID", ""))


def _mib(value: float) -> int:
    return math.ceil(value / _MIB)


def _share(part_s: float, of_s: float) -> float:
    return min(part_s / of_s, 1.0) if of_s else 0.0


def _percent(ratio: float) -> int:
    return math.ceil(round(100 * ratio, 6))
