"""A pod's status from the states of its containers: phase, conditions, container statuses (core/v1 format)."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gpushare_playground.images.registry import normalised
from gpushare_playground.kubelet.pods.pod_plan import ContainerState, restarts_after
from gpushare_playground.kubelet.podspec import Container, Pod
from gpushare_playground.kubelet.runtime.containers import Attempt

_OURS: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
CRASHING: Final = "CrashLoopBackOff"


def rfc3339(time_ns: int) -> str:
    """A time in the API's format, to the second."""
    return f"{datetime.fromtimestamp(time_ns // 1_000_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def running_status(
    pod: Pod,
    states: Mapping[str, ContainerState],
    *,
    outcome: str,
    addresses: tuple[str, str],
    now_ns: int,
    now: float,
) -> dict[str, Any]:
    """The complete status of an admitted pod.

    ``outcome`` is Succeeded or Failed once it has ended; ``addresses`` are the pod's and the node's;
    ``now`` is on the clock of the containers' back-off.
    """
    initialized = _initialized(pod, states, outcome)
    phase = outcome or _phase(pod, states, initialized)
    unready = [one.name for one in pod.spec.containers if not states[one.name].running]
    uninitialized = [one.name for one in pod.init_containers if not _done(one, states[one.name])]
    pod_ip, host_ip = addresses
    status: dict[str, Any] = {
        "phase": phase,
        "startTime": pod.status.start_time or rfc3339(now_ns),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "podIP": pod_ip,
        "podIPs": [{"ip": pod_ip}],
        "containerStatuses": [
            _container(pod, one, states[one.name], initialized=initialized, now=now)
            for one in sorted(pod.spec.containers, key=lambda one: one.name)
        ],
    }
    if pod.init_containers:
        status["initContainerStatuses"] = [
            _container(pod, one, states[one.name], initialized=True, now=now) for one in pod.init_containers
        ]
    if initialized:
        init = _condition("Initialized", "", "", holds=True)
        if outcome == "Succeeded":
            init = _condition("Initialized", "PodCompleted", "", holds=True)
    else:
        init = _condition(
            "Initialized",
            "ContainersNotInitialized",
            f"containers with incomplete status: [{' '.join(uninitialized)}]",
            holds=False,
        )
    if outcome:
        reason, message = ("PodCompleted" if outcome == "Succeeded" else "PodFailed"), ""
    else:
        reason = "ContainersNotReady" if unready else ""
        message = f"containers with unready status: [{' '.join(unready)}]" if unready else ""
    ready = not outcome and not unready
    status["conditions"] = _merged(
        pod,
        [
            _condition("PodReadyToStartContainers", "", "", holds=not outcome),
            init,
            _condition("Ready", reason, message, holds=ready),
            _condition("ContainersReady", reason, message, holds=ready),
            _condition("PodScheduled", "", "", holds=True),
        ],
        now_ns,
    )
    return status


def rejected_status(pod: Pod, reason: str, message: str, now_ns: int) -> dict[str, Any]:
    """The status of a pod that is not admitted."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": f"Pod was rejected: {message}",
        "startTime": pod.status.start_time or rfc3339(now_ns),
        "conditions": _merged(pod, [_condition("PodScheduled", "", "", holds=True)], now_ns),
    }


def _phase(pod: Pod, states: Mapping[str, ContainerState], initialized: bool) -> str:  # noqa: FBT001
    if not initialized:
        return "Pending"
    for container in pod.spec.containers:
        state = states[container.name]
        if state.attempt is None:
            return "Pending"
    return "Running"


def _initialized(pod: Pod, states: Mapping[str, ContainerState], outcome: str) -> bool:
    if any(states[one.name].attempt is not None for one in pod.spec.containers):
        return True
    return outcome != "Failed" and all(_done(one, states[one.name]) for one in pod.init_containers)


def _done(container: Container, state: ContainerState) -> bool:
    return state.running if container.sidecar else state.exit_code == 0


def _container(
    pod: Pod, container: Container, state: ContainerState, *, initialized: bool, now: float
) -> dict[str, Any]:
    status: dict[str, Any] = {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "restartCount": state.restarts,
        "ready": state.running,
        "started": state.running,
        "state": {},
    }
    shown, last = state.attempt, state.last
    if state.waiting is not None:
        reason, message = state.waiting
        status["state"] = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        last = shown or last
    elif shown is None:
        reason = "ContainerCreating" if initialized and not pod.init_containers else "PodInitializing"
        status["state"] = {"waiting": {"reason": reason}}
    elif shown.ended is None:
        status["state"] = {"running": {"startedAt": rfc3339(shown.started_ns)}}
    elif state.not_before > now and restarts_after(pod, container, shown.ended.code):
        left = round(state.not_before - now) or 1
        status["state"] = {
            "waiting": {
                "reason": CRASHING,
                "message": f"back-off {left}s restarting failed container={container.name} "
                f"pod={pod.metadata.name}_{pod.metadata.namespace}({pod.uid})",
            }
        }
        last = shown
    else:
        status["state"] = {"terminated": _terminated(shown)}
    if last is not None and last.ended is not None:
        status["lastState"] = {"terminated": _terminated(last)}
    if shown is not None:
        digest = hashlib.sha256(normalised(container.image).encode()).hexdigest()
        status["imageID"] = f"{container.image.partition('@')[0]}@sha256:{digest}"
        status["containerID"] = f"playground://{shown.container_id}"
    return status


def _terminated(attempt: Attempt) -> dict[str, Any]:
    ended = attempt.ended
    assert ended is not None
    status: dict[str, Any] = {
        "exitCode": ended.code,
        "reason": ended.reason,
        "startedAt": rfc3339(attempt.started_ns),
        "finishedAt": rfc3339(ended.finished_ns),
        "containerID": f"playground://{attempt.container_id}",
    }
    if ended.message:
        status["message"] = ended.message
    return status


def _condition(kind: str, reason: str, message: str, *, holds: bool) -> dict[str, Any]:
    condition: dict[str, Any] = {"type": kind, "status": "True" if holds else "False"}
    if reason:
        condition["reason"] = reason
    if message:
        condition["message"] = message
    return condition


def _merged(pod: Pod, own: list[dict[str, Any]], now_ns: int) -> list[dict[str, Any]]:
    """Our conditions with the time of their last change, and those of others unchanged."""
    before = {one.get("type"): one for one in pod.status.conditions or ()}
    for condition in own:
        previous = before.get(condition["type"], {})
        condition["lastProbeTime"] = None
        condition["lastTransitionTime"] = (
            previous.get("lastTransitionTime") if previous.get("status") == condition["status"] else None
        ) or rfc3339(now_ns)
    others = [one for kind, one in before.items() if kind not in _OURS]
    return [*own, *others]
