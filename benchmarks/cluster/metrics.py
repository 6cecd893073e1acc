"""Differences between two readings of the metrics of kube-scheduler and our extender."""

import re
from dataclasses import dataclass
from typing import Final

_SAMPLE: Final = re.compile(r"^(\w+?)_(sum|count)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_ATTEMPTS: Final = re.compile(r"^scheduler_schedule_attempts_total\{.*\} (\S+)$", re.MULTILINE)
_POINT: Final = "scheduler_framework_extension_point_duration_seconds"
_ALGORITHM: Final = "scheduler_scheduling_algorithm_duration_seconds"
_ATTEMPT: Final = "scheduler_scheduling_attempt_duration_seconds"
_VERB: Final = "gpushare_scheduler_extender_request_duration_seconds"
#: Extension points that belong to the part of a cycle in which a node is chosen, one pod after the other.
_CHOOSING: Final = ("PreFilter", "Filter", "PostFilter", "PreScore", "Score")

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Sums:
    """Sum (seconds) and count of every histogram: by name and by the value of its distinguishing label."""

    sums: dict[Key, float]

    def since(self, before: "Sums", name: str, label: str = "") -> tuple[float, float]:
        """(seconds, observations) added since ``before``."""
        took, count = (
            self.sums.get((name, label, part), 0.0) - before.sums.get((name, label, part), 0.0)
            for part in ("sum", "count")
        )
        return took, count

    def stages_since(self, before: "Sums") -> dict[str, float]:
        """Mean milliseconds of kube-scheduler's stages per attempt.

        ``choosing`` is the sequential part of a cycle. The time of it that no plugin used is
        ``extender and rest``. ``binding`` is the part that runs in parallel with the next pods' cycles.
        """
        choosing_s, count = self.since(before, _ALGORITHM)
        attempt_s, attempts = self.since(before, _ATTEMPT, "scheduled")
        plugins_s = sum(self.since(before, _POINT, point)[0] for point in _CHOOSING)
        if not count or not attempts:
            return {}
        choosing = choosing_s * 1e3 / count
        plugins = plugins_s * 1e3 / count
        return {
            "choosing": choosing,
            "plugins": plugins,
            "extender and rest": choosing - plugins,
            "binding": attempt_s * 1e3 / attempts - choosing,
        }

    def verbs_since(self, before: "Sums") -> dict[str, float]:
        """Mean milliseconds of our extender's verbs per call."""
        found = {}
        for verb in ("filter", "prioritize", "bind"):
            took_s, count = self.since(before, _VERB, verb)
            if count:
                found[verb] = took_s * 1e3 / count
        return found


def sums_of(text: str) -> Sums:
    """Read an exposition (Prometheus text)."""
    sums: dict[Key, float] = {}
    for name, part, labels, value in _SAMPLE.findall(text):
        known = dict(_LABEL.findall(labels))
        label = known.get("extension_point") or known.get("verb") or known.get("result") or ""
        key = (name, label, part)
        sums[key] = sums.get(key, 0.0) + float(value)
    return Sums(sums)


def attempts(text: str) -> float:
    """kube-scheduler's attempts to place a pod, with any result."""
    return sum(float(value) for value in _ATTEMPTS.findall(text))
