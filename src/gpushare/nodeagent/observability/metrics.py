"""The node agent's own metrics, in Prometheus' text format.

Written here instead of using Prometheus' client library, which alone (with the web server that it imports) takes 0.6 MB of the
60 MB that this process may use. A test parses the text with that library.
"""

from bisect import bisect_left
from collections.abc import Mapping
from math import inf
from typing import Final, Literal

Kind = Literal["counter", "gauge"]

_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)


class Family:
    """A counter or gauge with one value for each combination of its labels' values."""

    def __init__(self, kind: Kind, name: str, text: str, *labels: str) -> None:
        self._kind = kind
        self._name = name
        self._text = text
        self._labels = labels
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, *labels: str, amount: float = 1.0) -> None:
        """Increase by ``amount``."""
        self._values[labels] = self._values.get(labels, 0.0) + amount

    def set(self, *labels: str, value: float) -> None:
        """Set the value."""
        self._values[labels] = value

    def replace(self, values: Mapping[tuple[str, ...], float]) -> None:
        """Set all values; other labels have none any more."""
        self._values = dict(values)

    def value(self, *labels: str) -> float:
        """The current value; 0 for labels never set."""
        return self._values.get(labels, 0.0)

    def lines(self) -> list[str]:
        """In Prometheus' text format."""
        head = [f"# HELP {self._name} {self._text}", f"# TYPE {self._name} {self._kind}"]
        return head + [
            f"{self._name}{_labelled(self._labels, labels)} {_number(value)}"
            for labels, value in sorted(self._values.items())
        ]


class Durations:
    """A histogram of seconds for each value of one label."""

    def __init__(self, name: str, text: str, label: str) -> None:
        self._name = name
        self._text = text
        self._label = label
        self._observed: dict[str, tuple[list[int], float]] = {}

    def observe(self, label: str, seconds: float) -> None:
        """Count one observation."""
        counts, total_s = self._observed.get(label) or ([0] * (len(_BUCKETS_S) + 1), 0.0)
        counts[bisect_left(_BUCKETS_S, seconds)] += 1
        self._observed[label] = (counts, total_s + seconds)

    def lines(self) -> list[str]:
        """In Prometheus' text format."""
        lines = [f"# HELP {self._name} {self._text}", f"# TYPE {self._name} histogram"]
        for label, (counts, total_s) in sorted(self._observed.items()):
            below = 0
            for bound, count in zip((*_BUCKETS_S, "+Inf"), counts, strict=True):
                below += count
                lines.append(
                    f"{self._name}_bucket{_labelled((self._label, 'le'), (label, str(bound)))} {below}"
                )
            its = _labelled((self._label,), (label,))
            lines += [f"{self._name}_sum{its} {_number(total_s)}", f"{self._name}_count{its} {below}"]
        return lines


class Metrics:
    """All metrics of one process."""

    def __init__(self) -> None:
        self._families: list[Family] = []
        self.allocations = self._counter(
            "gpushare_nodeagent_allocations_total", "Containers that were allocated devices.", "resource"
        )
        self.allocation_failures = self._counter(
            "gpushare_nodeagent_allocation_failures_total",
            "Allocate and GetPreferredAllocation calls that failed.",
            "resource",
        )
        self.reconciled = self._counter(
            "gpushare_nodeagent_reconciled_allocations_total",
            "Allocation records that were corrected to the GPU that the pod really has.",
        )
        self.registrations = self._counter(
            "gpushare_nodeagent_registrations_total", "Registrations with the kubelet.", "resource"
        )
        self.devices = self._gauge(
            "gpushare_nodeagent_devices", "Devices that are advertised to the kubelet.", "resource", "health"
        )
        self.degraded = self._gauge(
            "gpushare_nodeagent_degraded",
            "1 while this node's driver, container runtime or isolation is degraded for this reason.",
            "reason",
        )
        self.runtime = self._gauge(
            "gpushare_nodeagent_container_runtime",
            "1 for the method by which containers get their GPU.",
            "method",
            "configured",
        )
        self.isolation = self._gauge(
            "gpushare_nodeagent_isolation",
            "1 for each active isolation backend of this node.",
            "backend",
            "configured",
        )
        self.selftest = self._gauge(
            "gpushare_nodeagent_isolation_selftest",
            "1 for the result of the isolation self-test on this node's driver.",
            "result",
        )
        self.isolated_containers = self._gauge(
            "gpushare_nodeagent_isolated_containers", "Directories of isolated containers on this node."
        )
        self.last_sample = self._gauge(
            "gpushare_nodeagent_last_sample_timestamp_seconds",
            "When the use of the GPUs was last sampled, in seconds since 1970; containers without metrics use none then. 0 where it is not known.",
        )
        self.driver_limit_bytes = self._gauge(
            "gpushare_nodeagent_driver_limit_bytes",
            "Limit of a container's GPU memory that is set in the driver.",
            "namespace",
            "pod",
            "container",
            "UUID",
        )
        self.driver_limit_failures = self._counter(
            "gpushare_nodeagent_driver_limit_failures_total",
            "Limits of GPU memory that the driver did not set or keep.",
        )
        self.exceeded = self._counter(
            "gpushare_nodeagent_share_exceeded_total",
            "Samples in which a container was above its share.",
            "resource",
        )
        self.killed = self._counter(
            "gpushare_nodeagent_processes_killed_total",
            "Processes that were killed because their container exceeded its GPU memory, or did not give back what is above its request.",
        )
        self.memory_reclaims = self._counter(
            "gpushare_nodeagent_memory_reclaims_total",
            "Containers whose processes were killed because they did not give back GPU memory above their request.",
        )
        self.watch_last_event_age_s = self._gauge(
            "gpushare_nodeagent_watch_last_event_age_seconds",
            "Seconds since the last event of the watch; +Inf before the first.",
            "kind",
        )
        self.watch_failing = self._gauge(
            "gpushare_nodeagent_watch_failing", "1 while these objects cannot be listed or watched.", "kind"
        )
        self.watched_objects = self._gauge(
            "gpushare_nodeagent_watched_objects", "Objects known from the watch.", "kind"
        )
        self.watch_relists = self._counter(
            "gpushare_nodeagent_watch_relists_total", "Relists of the watch.", "kind"
        )
        self.allocate_seconds = Durations(
            "gpushare_nodeagent_allocate_duration_seconds", "Duration of Allocate calls.", "resource"
        )

    def _counter(self, name: str, text: str, *labels: str) -> Family:
        return self._family("counter", name, text, *labels)

    def _gauge(self, name: str, text: str, *labels: str) -> Family:
        return self._family("gauge", name, text, *labels)

    def _family(self, kind: Kind, name: str, text: str, *labels: str) -> Family:
        self._families.append(Family(kind, name, text, *labels))
        return self._families[-1]

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format 0.0.4."""
        lines = [line for family in self._families for line in family.lines()]
        lines += self.allocate_seconds.lines()
        return "".join(f"{line}\n" for line in lines).encode()


def _labelled(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """``{name="value",…}``."""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    # Model and process names may contain anything.
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """With all digits: a rounded counter of bytes would seem to stand still."""
    return "+Inf" if value == inf else f"{value:.0f}" if float(value).is_integer() else repr(value)
