"""A pod in one line: ready containers, status, restarts."""

from datetime import datetime

from gpushare_playground.apiserver.errors import Object
from gpushare_playground.apiserver.reads.table_cells import moment, short_duration


def _statuses(pod: Object, key: str) -> list[Object]:
    statuses: list[Object] = (pod.get("status") or {}).get(key) or []
    return statuses


def _sidecars(pod: Object) -> set[str]:
    return {
        one["name"] for one in pod["spec"].get("initContainers") or () if one.get("restartPolicy") == "Always"
    }


def ready_count(pod: Object, _now: datetime) -> str:
    """``1/2``: ready containers out of all, including native sidecars."""
    sidecars = _sidecars(pod)
    total = len(pod["spec"].get("containers") or ()) + len(sidecars)
    ready = sum(bool(one.get("ready")) for one in _statuses(pod, "containerStatuses"))
    ready += sum(
        bool(one.get("ready"))
        for one in _statuses(pod, "initContainerStatuses")
        if one.get("name") in sidecars
    )
    return f"{ready}/{total}"


def _termination_text(terminated: Object) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _init_reason(pod: Object) -> str | None:
    """The status of a pod's unfinished init containers; None if they are done."""
    statuses = {one.get("name"): one for one in _statuses(pod, "initContainerStatuses")}
    wanted = pod["spec"].get("initContainers") or ()
    for index, container in enumerate(wanted):
        status = statuses.get(container["name"])
        if status is None:
            continue
        state = status.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if terminated is not None and not terminated.get("exitCode"):
            continue
        if container.get("restartPolicy") == "Always" and status.get("started"):
            continue
        if terminated is not None:
            return "Init:" + _termination_text(terminated)
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{len(wanted)}"
    return None


def pod_status(pod: Object, _now: datetime) -> str:
    """The STATUS column: the phase, or what keeps the pod from reaching it."""
    status = pod.get("status") or {}
    reason: str = status.get("reason") or status.get("phase") or ""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    initializing = _init_reason(pod)
    if initializing is not None:
        reason = initializing
    else:
        running = False
        for one in reversed(_statuses(pod, "containerStatuses")):
            state = one.get("state") or {}
            waiting, terminated = state.get("waiting") or {}, state.get("terminated")
            if waiting.get("reason"):
                reason = waiting["reason"]
            elif terminated is not None:
                reason = _termination_text(terminated)
            elif one.get("ready") and state.get("running") is not None:
                running = True
        if reason == "Completed" and running:
            ready = any(
                one.get("type") == "Ready" and one.get("status") == "True"
                for one in status.get("conditions") or ()
            )
            reason = "Running" if ready else "NotReady"
    if pod["metadata"].get("deletionTimestamp") and status.get("phase") not in ("Succeeded", "Failed"):
        reason = "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return reason


def restarts(pod: Object, now: datetime) -> str:
    """``2 (5m ago)``: restarts of all containers and when the last one was."""
    counted = [*_statuses(pod, "containerStatuses")]
    sidecars = _sidecars(pod)
    counted += [
        one
        for one in _statuses(pod, "initContainerStatuses")
        if one.get("name") in sidecars or _init_reason(pod) is not None
    ]
    total = sum(one.get("restartCount", 0) for one in counted)
    ends = [
        moment(((one.get("lastState") or {}).get("terminated") or {}).get("finishedAt")) for one in counted
    ]
    end_times = [end for end in ends if end is not None]
    if not total or not end_times:
        return str(total)
    return f"{total} ({short_duration((now - max(end_times)).total_seconds())} ago)"


def pod_ip(pod: Object, _now: datetime) -> str:
    """The pod's address."""
    return (pod.get("status") or {}).get("podIP") or "<none>"


def node_name(pod: Object, _now: datetime) -> str:
    """The pod's node."""
    return pod["spec"].get("nodeName") or "<none>"


def nominated_node(pod: Object, _now: datetime) -> str:
    """The node on which preemption is making room."""
    return (pod.get("status") or {}).get("nominatedNodeName") or "<none>"


def readiness_gates(pod: Object, _now: datetime) -> str:
    """``1/2``: readiness gates whose condition is true."""
    gates = pod["spec"].get("readinessGates") or ()
    if not gates:
        return "<none>"
    conditions = {
        one.get("type"): one.get("status") for one in (pod.get("status") or {}).get("conditions") or ()
    }
    true = sum(conditions.get(one.get("conditionType")) == "True" for one in gates)
    return f"{true}/{len(gates)}"
