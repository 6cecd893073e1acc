"""What the node agent counts, in Prometheus' text format.

Written here and not taken from Prometheus' client library, which alone (with the web server that it brings)
takes 0.6 MB of the 60 MB that this process may have. A test reads the text with that library's parser.
"""

from bisect import bisect_left
from collections.abc import Mapping
from math import inf
from typing import Final, Literal

_OF_A_CONTAINER: Final = ("pod", "container", "gpu")
_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)


class Family:
    """A counter or gauge with one value for each combination of its labels' values."""

    def __init__(self, kind: Literal["counter", "gauge"], name: str, text: str, *labels: str) -> None:
        self._kind = kind
        self._name = name
        self._text = text
        self._labels = labels
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, *labels: str, amount: float = 1.0) -> None:
        """Count ``amount`` more."""
        self._values[labels] = self._values.get(labels, 0.0) + amount

    def set(self, *labels: str, value: float) -> None:
        """Be ``value`` now."""
        self._values[labels] = value

    def replace(self, values: Mapping[tuple[str, ...], float]) -> None:
        """Be these for exactly these labels."""
        self._values = dict(values)

    def value(self, *labels: str) -> float:
        """What it is now; 0 for labels never seen."""
        return self._values.get(labels, 0.0)

    def lines(self) -> list[str]:
        """As Prometheus reads it."""
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
        self._seen: dict[str, tuple[list[int], float]] = {}

    def observe(self, label: str, seconds: float) -> None:
        """Something took ``seconds``."""
        counts, total_s = self._seen.get(label) or ([0] * (len(_BUCKETS_S) + 1), 0.0)
        counts[bisect_left(_BUCKETS_S, seconds)] += 1
        self._seen[label] = (counts, total_s + seconds)

    def lines(self) -> list[str]:
        """As Prometheus reads it."""
        lines = [f"# HELP {self._name} {self._text}", f"# TYPE {self._name} histogram"]
        for label, (counts, total_s) in sorted(self._seen.items()):
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
        self.allocations = Family(
            "counter",
            "gpushare_nodeagent_allocations_total",
            "Containers that were given devices.",
            "resource",
        )
        self.failures = Family(
            "counter",
            "gpushare_nodeagent_allocation_failures_total",
            "Allocate and GetPreferredAllocation calls that were refused.",
            "resource",
        )
        self.corrections = Family(
            "counter",
            "gpushare_nodeagent_corrections_total",
            "Pods whose record was changed to the GPU that they really have.",
        )
        self.registrations = Family(
            "counter",
            "gpushare_nodeagent_registrations_total",
            "Registrations with the kubelet.",
            "resource",
        )
        self.devices = Family(
            "gauge",
            "gpushare_nodeagent_devices",
            "Devices that are advertised.",
            "resource",
            "health",
        )
        self.trouble = Family(
            "gauge",
            "gpushare_nodeagent_trouble",
            "1 while there is that trouble with this node's driver or container runtime.",
            "reason",
        )
        self.runtime = Family(
            "gauge",
            "gpushare_nodeagent_container_runtime",
            "1 for the way in which containers get their GPU.",
            "way",
            "asked",
        )
        self.isolation = Family(
            "gauge",
            "gpushare_nodeagent_isolation",
            "1 for what holds containers of this node to their share.",
            "backend",
            "asked",
        )
        self.trial = Family(
            "gauge",
            "gpushare_nodeagent_isolation_trial",
            "1 for what came of trying the isolation libraries on this node's driver.",
            "outcome",
        )
        self.directories = Family(
            "gauge",
            "gpushare_nodeagent_isolated_containers",
            "Directories of isolated containers on this node.",
        )
        self.looked = Family(
            "gauge",
            "gpushare_nodeagent_looked_timestamp_seconds",
            "When it was last seen which containers use the GPUs, since 1970; who is not named then uses none. 0 where that is not known.",
        )
        self.used_mib = Family(
            "gauge",
            "gpushare_nodeagent_container_used_mebibytes",
            "Memory that the driver says a container holds of a GPU; absent where it does not tell.",
            *_OF_A_CONTAINER,
        )
        self.limited_mib = Family(
            "gauge",
            "gpushare_nodeagent_driver_limit_mebibytes",
            "Memory of a GPU that the driver itself holds a container to.",
            *_OF_A_CONTAINER,
        )
        self.limit_faults = Family(
            "counter",
            "gpushare_nodeagent_driver_limit_failures_total",
            "How often the driver was found not to hold a container to its share, though it has such limits.",
        )
        self.sm_percent = Family(
            "gauge",
            "gpushare_nodeagent_container_sm_percent",
            "How much of a GPU's time the driver says a container computes.",
            *_OF_A_CONTAINER,
        )
        self.exceeded = Family(
            "counter",
            "gpushare_nodeagent_share_exceeded_total",
            "How often a container was found above its share.",
            "what",
        )
        self.killed = Family(
            "counter",
            "gpushare_nodeagent_processes_killed_total",
            "Processes that were ended for using more memory than their container was given.",
        )
        self.foreign_mib = Family(
            "gauge",
            "gpushare_nodeagent_foreign_mebibytes",
            "Memory of a GPU that is kept back, as processes hold it that were given none.",
            "gpu",
        )
        self.watch_silence_s = Family(
            "gauge",
            "gpushare_nodeagent_watch_silence_seconds",
            "Time since the watch was last heard; +Inf before.",
            "kind",
        )
        self.watch_trouble = Family(
            "gauge",
            "gpushare_nodeagent_watch_trouble",
            "1 while what is watched cannot be read or followed.",
            "kind",
        )
        self.watched_objects = Family(
            "gauge",
            "gpushare_nodeagent_watched_objects",
            "Objects that are known by what is watched.",
            "kind",
        )
        self.watch_relists = Family(
            "counter",
            "gpushare_nodeagent_watch_relists_total",
            "How often what is watched was read anew in full.",
            "kind",
        )
        self.allocate_seconds = Durations(
            "gpushare_nodeagent_allocate_seconds", "How long Allocate took.", "resource"
        )

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format 0.0.4."""
        families = (
            self.allocations,
            self.failures,
            self.corrections,
            self.registrations,
            self.devices,
            self.trouble,
            self.runtime,
            self.isolation,
            self.trial,
            self.directories,
            self.looked,
            self.used_mib,
            self.limited_mib,
            self.limit_faults,
            self.sm_percent,
            self.exceeded,
            self.killed,
            self.foreign_mib,
            self.watch_silence_s,
            self.watch_trouble,
            self.watched_objects,
            self.watch_relists,
        )
        lines = [line for family in (*families, self.allocate_seconds) for line in family.lines()]
        return "".join(f"{line}\n" for line in lines).encode()


def _labelled(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """``{name="value",…}``."""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _escaped(value: str) -> str:
    # Names of models and of processes may hold anything.
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """All digits: bytes are counted, and a counter that is rounded seems to stand still."""
    return "+Inf" if value == inf else f"{value:.0f}" if float(value).is_integer() else repr(value)
