"""Jobs: pods that run to completion, counted exactly once each."""

from typing import Final, Literal

from gpushare.kube.client.errors import ApiError
from gpushare.kube.clock import Clock
from gpushare.kube.event_recorder import Recorder
from gpushare_playground.cache import Cache
from gpushare_playground.controllers.jobcount import (
    FIRST_BACKOFF_S,
    TRACKING,
    Ending,
    Tally,
    backoff_left_s,
    deadline_in_s,
    ending_of,
    is_over,
    is_tracked,
    tally,
    unsupported,
    wanted_active,
)
from gpushare_playground.controllers.latest_version import LatestVersions
from gpushare_playground.controllers.podcontrol import PodControl, owner_key, reference_to
from gpushare_playground.controllers.podtemplate import pod_from
from gpushare_playground.controllers.replicaset import deletion_order
from gpushare_playground.objects import (
    JOBS,
    PODS,
    Json,
    Objects,
    condition_of,
    controller_of,
    is_deleting,
    name_of,
    spec_of,
    status_of,
    time_text,
    uid_of,
    with_condition,
)

BURST: Final = 50


class Jobs:
    """Reconciles Jobs. ``first_backoff_s`` is the wait before the first failed pod is replaced."""

    name = "job"

    def __init__(
        self,
        objects: Objects,
        jobs: Cache,
        pods: Cache,
        control: PodControl,
        recorder: Recorder,
        clock: Clock,
        *,
        first_backoff_s: float = FIRST_BACKOFF_S,
    ) -> None:
        self._objects = objects
        self._jobs = LatestVersions(JOBS, objects, jobs)
        self._pods = pods
        self._control = control
        self._recorder = recorder
        self._clock = clock
        self._first_backoff_s = first_backoff_s
        self._released: set[str] = set()
        pods.listen(self._pod_seen)

    def _pod_seen(self, old: Json | None, new: Json | None) -> None:
        item = new if new is not None else old
        if item is not None and (new is None or not is_tracked(new)):
            self._released.discard(uid_of(item))

    async def reconcile(self, key: str) -> float | None:
        """Count pods that ended, create missing ones, end the Job when it is done."""
        job = self._jobs.get(key)
        await self._release_strays(key, uid_of(job) if job is not None else "")
        if job is None or is_deleting(job):
            return None
        if is_over(job):
            for pod in self._control.owned(job):
                await self._release(pod)
            return None
        missing = unsupported(job)
        if missing:
            note = f"{missing} is not supported by the playground; remove it from the Job"
            self._record(job, "Warning", "Unsupported", note)
            return None
        return await self._advance(job)

    async def _advance(self, job: Json) -> float | None:
        pods = self._control.owned(job)
        now_ns = self._clock.time_ns()
        pod_tally = tally(job, pods, self._released, self._control.is_going)
        ending = ending_of(job, pod_tally, now_ns / 1e9)
        wait_s: float | None = None
        if ending is not None:
            for pod in pod_tally.active:
                await self._control.delete(job, pod)
        else:
            wait_s = await self._fill(job, pod_tally, pods, now_ns / 1e9)
        pod_tally = tally(job, self._control.owned(job), self._released, self._control.is_going)
        if pod_tally.uncounted:
            job = await self._jobs.write_status(job, _status(job, pod_tally, ending, now_ns, counted=False))
            for pod in self._control.owned(job):
                if uid_of(pod) in pod_tally.uncounted:
                    await self._release(pod)
        # A pod that is named but gone needs no release.
        status = _status(job, pod_tally, ending, now_ns, counted=True)
        over = any(condition.get("type") in ("Complete", "Failed") for condition in status["conditions"])
        await self._jobs.write_status(job, status)
        if over and ending is not None:
            if ending.condition == "Complete":
                self._record(job, "Normal", "Completed", "Job completed")
            else:
                self._record(job, "Warning", ending.reason, ending.message)
        if ending is not None:
            return None
        waits = [wait_s, deadline_in_s(job, now_ns / 1e9)]
        return min((max(wait, 0.0) for wait in waits if wait is not None), default=None)

    async def _fill(self, job: Json, pod_tally: Tally, pods: list[Json], now_s: float) -> float | None:
        wanted = wanted_active(job, pod_tally)
        surplus = sorted(pod_tally.active, key=deletion_order)[: max(len(pod_tally.active) - wanted, 0)]
        for pod in surplus:
            # Not the pod's fault: it is released first, so that it does not count as failed.
            await self._release(pod)
            await self._control.delete(job, pod)
        missing = wanted - len(pod_tally.active)
        if missing <= 0:
            return None
        left_s = backoff_left_s(pods, now_s, self._first_backoff_s)
        if left_s > 0:
            return left_s
        for _ in range(min(missing, BURST)):
            await self._control.create_generated(job, f"{name_of(job)}-", lambda name: _pod(job, name))
        return 0.0 if missing > BURST else None

    async def _release(self, pod: Json) -> None:
        """Remove our finalizer from a pod."""
        if not is_tracked(pod) or uid_of(pod) in self._released:
            return
        remaining = [
            finalizer for finalizer in pod["metadata"].get("finalizers") or () if finalizer != TRACKING
        ]
        version = pod["metadata"].get("resourceVersion")
        patch: Json = {"metadata": {"finalizers": remaining or None, "resourceVersion": version}}
        try:
            await self._objects.merge(PODS, pod, patch)
        except ApiError as error:
            if not error.not_found:
                raise
        if self._pods.by_uid(uid_of(pod)) is not None:
            self._released.add(uid_of(pod))

    async def _release_strays(self, key: str, uid: str) -> None:
        """Release pods whose Job is gone."""
        for pod in self._pods:
            if (
                is_tracked(pod)
                and owner_key(JOBS, pod) == key
                and (controller_of(pod) or {}).get("uid") != uid
            ):
                await self._release(pod)

    def _record(self, job: Json, kind: Literal["Normal", "Warning"], reason: str, note: str) -> None:
        self._recorder.record(
            reference_to(JOBS, job), kind=kind, reason=reason, action="Reconciling", note=note
        )


def _pod(job: Json, name: str) -> Json:
    uid = uid_of(job)
    labels = {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name_of(job),
        "controller-uid": uid,
        "job-name": name_of(job),
    }
    return pod_from(JOBS, job, spec_of(job).get("template") or {}, name, labels=labels, finalizers=[TRACKING])


def _status(job: Json, pod_tally: Tally, ending: Ending | None, now_ns: int, *, counted: bool) -> Json:
    """The Job's status; ``counted``: the ended pods are released, so that they become numbers."""
    old = status_of(job)
    succeeded, failed = pod_tally.succeeded, pod_tally.failed
    uncounted: Json = {}
    if not counted:
        succeeded -= len(pod_tally.uncounted_succeeded)
        failed -= len(pod_tally.uncounted_failed)
        for name, uids in (
            ("succeeded", pod_tally.uncounted_succeeded),
            ("failed", pod_tally.uncounted_failed),
        ):
            if uids:
                uncounted[name] = list(uids)
    status: Json = {"ready": pod_tally.ready, "terminating": pod_tally.terminating}
    status["uncountedTerminatedPods"] = uncounted
    numbers = {"active": len(pod_tally.active), "succeeded": succeeded, "failed": failed}
    status |= {name: number for name, number in numbers.items() if number}
    conditions = old.get("conditions") or []
    status["startTime"] = old.get("startTime") or time_text(now_ns)
    if ending is not None:
        ends = [ending.first_condition]
        if counted and not pod_tally.active and not pod_tally.terminating:
            ends.append(ending.condition)
            if ending.condition == "Complete":
                status["completionTime"] = time_text(now_ns)
        for kind in ends:
            if condition_of({"status": {"conditions": conditions}}, kind) is None:
                reason, message = ending.reason, ending.message
                conditions = with_condition(conditions, _condition(kind, "True", reason, message, now_ns))
    status["conditions"] = conditions
    return status


def _condition(kind: str, status: str, reason: str, message: str, now_ns: int) -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastProbeTime": time_text(now_ns),
        "lastTransitionTime": time_text(now_ns),
    }
