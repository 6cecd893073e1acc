"""What a Job has done and what it needs next. Pure: derived from a Job and its pods, without counting anything twice.

A pod has the finalizer ``batch.kubernetes.io/job-tracking`` until it is counted, so that one that
is deleted meanwhile is still counted: the Job's status first names the ended pod
(``uncountedTerminatedPods``), then the finalizer is removed, then the count increases. After an interruption
this continues from where it stopped.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from gpushare_playground.controllers.podstate import finished_at_s, is_ready, phase_of, restarts_of
from gpushare_playground.objects import Json, condition_of, is_true, seconds_of, spec_of, status_of, uid_of

TRACKING: Final = "batch.kubernetes.io/job-tracking"
DEFAULT_BACKOFF_LIMIT: Final = 6
FIRST_BACKOFF_S: Final = 10.0
LONGEST_BACKOFF_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Ending:
    """Why and how a Job ends: the final condition (``Complete`` or ``Failed``), its reason and message."""

    condition: str
    reason: str
    message: str

    @property
    def first_condition(self) -> str:
        """The condition that announces it while pods still run."""
        return "SuccessCriteriaMet" if self.condition == "Complete" else "FailureTarget"


@dataclass(frozen=True, slots=True)
class Tally:
    """A Job's pods, sorted. ``succeeded`` and ``failed`` are the Job's totals, ``uncounted_*`` the UIDs of uncounted pods."""

    active: list[Json]
    ready: int
    terminating: int
    succeeded: int
    failed: int
    uncounted_succeeded: tuple[str, ...]
    uncounted_failed: tuple[str, ...]

    @property
    def uncounted(self) -> frozenset[str]:
        """UIDs of all pods that are named but not counted."""
        return frozenset((*self.uncounted_succeeded, *self.uncounted_failed))


def is_tracked(pod: Json) -> bool:
    """Whether the pod still has the finalizer."""
    return TRACKING in (pod["metadata"].get("finalizers") or ())


def tally(
    job: Json, pods: Iterable[Json], released: Collection[str], is_going: Callable[[Json], bool]
) -> Tally:
    """Sort ``pods``. ``released`` are UIDs whose finalizer we removed, whatever the cache still shows."""
    status = status_of(job)
    named = status.get("uncountedTerminatedPods") or {}
    succeeded = list(named.get("succeeded") or ())
    failed = list(named.get("failed") or ())
    uncounted = {*succeeded, *failed}
    active, terminating = [], 0
    for pod in pods:
        phase, going = phase_of(pod), is_going(pod)
        finished = phase in ("Succeeded", "Failed")
        if not finished and going:
            terminating += 1
        if not finished and not going:
            active.append(pod)
        elif is_tracked(pod) and uid_of(pod) not in released and uid_of(pod) not in uncounted:
            (succeeded if phase == "Succeeded" else failed).append(uid_of(pod))
    return Tally(
        active=active,
        ready=sum(map(is_ready, active)),
        terminating=terminating,
        succeeded=int(status.get("succeeded") or 0) + len(succeeded),
        failed=int(status.get("failed") or 0) + len(failed),
        uncounted_succeeded=tuple(succeeded),
        uncounted_failed=tuple(failed),
    )


def ending_of(job: Json, pod_tally: Tally, now_s: float) -> Ending | None:
    """How the Job ends, once that is decided."""
    announced = condition_of(job, "FailureTarget")
    if announced is not None:
        return Ending("Failed", str(announced.get("reason")), str(announced.get("message")))
    announced = condition_of(job, "SuccessCriteriaMet")
    if announced is not None:
        return Ending("Complete", str(announced.get("reason")), str(announced.get("message")))
    limit = int(spec_of(job).get("backoffLimit", DEFAULT_BACKOFF_LIMIT))
    if pod_tally.failed > limit or _restarted_too_often(job, pod_tally, limit):
        return Ending("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    left_s = deadline_in_s(job, now_s)
    if left_s is not None and left_s <= 0:
        return Ending("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
    completions = spec_of(job).get("completions")
    message = "Reached expected number of succeeded pods"
    if completions is None:
        if pod_tally.succeeded and not pod_tally.active and not pod_tally.terminating:
            return Ending("Complete", "CompletionsReached", message)
    elif pod_tally.succeeded >= int(completions):
        return Ending("Complete", "CompletionsReached", message)
    return None


def _restarted_too_often(job: Json, pod_tally: Tally, limit: int) -> bool:
    """With ``restartPolicy: OnFailure`` the kubelet restarts in place: restarts count as failures."""
    template = spec_of(job).get("template") or {}
    if (template.get("spec") or {}).get("restartPolicy") != "OnFailure":
        return False
    restarts = sum(restarts_of(pod) for pod in pod_tally.active)
    return restarts > 0 if limit == 0 else restarts >= limit


def deadline_in_s(job: Json, now_s: float) -> float | None:
    """Seconds until ``activeDeadlineSeconds`` is over, ``None`` without one or before the start."""
    deadline = spec_of(job).get("activeDeadlineSeconds")
    started = seconds_of(status_of(job).get("startTime"))
    return None if deadline is None or started is None else started + float(deadline) - now_s


def wanted_active(job: Json, pod_tally: Tally) -> int:
    """How many pods should run at once now."""
    parallelism = int(spec_of(job).get("parallelism", 1))
    completions = spec_of(job).get("completions")
    if completions is None:
        # A work queue: once one has succeeded, the others finish and no new ones start.
        return len(pod_tally.active) if pod_tally.succeeded else parallelism
    return min(parallelism, max(int(completions) - pod_tally.succeeded, 0))


def backoff_left_s(pods: Iterable[Json], now_s: float, first_s: float) -> float:
    """Seconds to wait before a failed pod is replaced: doubled with each failure since the last success."""
    finished = [
        (finished_at_s(pod), phase_of(pod)) for pod in pods if phase_of(pod) in ("Succeeded", "Failed")
    ]
    times = sorted((at, phase) for at, phase in finished if at is not None)
    failures = 0
    last_s = 0.0
    for at, phase in times:
        failures = failures + 1 if phase == "Failed" else 0
        last_s = at
    if not failures:
        return 0.0
    delay_s: float = min(first_s * 2.0 ** min(failures - 1, 32), LONGEST_BACKOFF_S)
    return max(0.0, last_s + delay_s - now_s)


def is_over(job: Json) -> bool:
    """Whether the Job has completed or failed."""
    return is_true(job, "Complete") or is_true(job, "Failed")


def unsupported(job: Json) -> str:
    """The field that the Job uses and that is not implemented here; empty if it uses none."""
    spec = spec_of(job)
    if spec.get("completionMode") == "Indexed":
        return "completionMode: Indexed"
    return next((name for name in ("podFailurePolicy", "successPolicy", "suspend") if spec.get(name)), "")
