"""Properties of a pod that controllers need."""

from gpushare_playground.objects import Json, is_deleting, is_true, seconds_of, status_of


def phase_of(pod: Json) -> str:
    """``status.phase``; a pod without status is Pending."""
    return str(status_of(pod).get("phase") or "Pending")


def is_finished(pod: Json) -> bool:
    """Whether it has succeeded or failed."""
    return phase_of(pod) in ("Succeeded", "Failed")


def is_active(pod: Json) -> bool:
    """Whether it runs or may still run: neither finished nor being deleted."""
    return not is_finished(pod) and not is_deleting(pod)


def is_ready(pod: Json) -> bool:
    """Whether it runs and its Ready condition is true."""
    return phase_of(pod) == "Running" and is_true(pod, "Ready")


def restarts_of(pod: Json) -> int:
    """Restarts of all its containers together."""
    status = status_of(pod)
    every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return sum(int(one.get("restartCount") or 0) for one in every)


def finished_at_s(pod: Json) -> float | None:
    """When its last container ended, in seconds since 1970; ``None`` if unknown."""
    times = []
    for one in status_of(pod).get("containerStatuses") or ():
        finished = ((one.get("state") or {}).get("terminated") or {}).get("finishedAt")
        times.append(seconds_of(finished))
    known_times = [time for time in times if time is not None]
    return max(known_times) if known_times else None
