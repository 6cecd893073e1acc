"""Whether what runs is what is installed: pods from before a change that are still there."""

import hashlib
from collections.abc import Iterator
from datetime import datetime

from gpushare.api import names
from gpushare.doctor.cluster.facts import ClusterFacts, Json, at, first_why, name_of
from gpushare.doctor.findings import Result, Unread, warning

#: On the scheduler's pods: SHA-256 of the configuration that the chart wrote when it made them.
CHECKSUM = "gpushare.dev/config-checksum"


def up_to_date(facts: ClusterFacts) -> Iterator[Result]:
    """Whether every agent is of the DaemonSet's present version, and every scheduler has read its present configuration."""
    for daemon_set in () if isinstance(facts.daemon_sets, Unread) else facts.daemon_sets:
        yield from _rolled_out(daemon_set)
    for found in (facts.deployments, facts.webhook_deployments):
        for deployment in () if isinstance(found, Unread) else found:
            yield from _deployed(facts, deployment)
    if isinstance(facts.config_maps, Unread) or isinstance(facts.part_pods, Unread):
        return
    for config_map in facts.config_maps:
        namespace = str(at(config_map, "metadata", "namespace") or "")
        old = sorted(
            name_of(pod)
            for pod in facts.part_pods
            if at(pod, "metadata", "namespace") == namespace and _is_from_before(pod, config_map)
        )
        if old:
            yield warning(
                f"configmap {name_of(config_map)}",
                f"it was changed since these have read it, and they still go by what it was: {', '.join(old)}",
                f"`kubectl -n {namespace} rollout restart deployment/{names.SCHEDULER_NAME}`",
            )


def _rolled_out(daemon_set: Json) -> Iterator[Result]:
    subject = f"daemonset {name_of(daemon_set)}"
    namespace = at(daemon_set, "metadata", "namespace")
    wanted = at(daemon_set, "status", "desiredNumberScheduled") or 0
    updated = at(daemon_set, "status", "updatedNumberScheduled") or 0
    if _is_unseen(daemon_set):
        yield _untaken(subject)
    elif updated < wanted:
        yield warning(
            subject,
            f"its present version is on {updated} of {wanted} nodes: the others still have agents from before",
            f"`kubectl -n {namespace} rollout status ds/{names.DAEMON_SET_NAME}`: it goes node by node, and stands where an agent does not become ready",
        )


def _deployed(facts: ClusterFacts, deployment: Json) -> Iterator[Result]:
    subject = f"deployment {name_of(deployment)}"
    namespace, _, name = name_of(deployment).partition("/")
    wanted = at(deployment, "spec", "replicas") or 0
    updated = at(deployment, "status", "updatedReplicas") or 0
    running = at(deployment, "status", "replicas") or 0
    if _is_unseen(deployment):
        yield _untaken(subject)
    # Pods that are missing are told of elsewhere.
    elif updated < running:
        yield warning(
            subject,
            f"its present version is in {updated} of {wanted} pods, and {running - updated} from before still run{first_why(facts, name)}",
            f"`kubectl -n {namespace} rollout status deployment/{name}`: it stands where a new pod does not become ready, and `kubectl -n {namespace} describe pods -l app.kubernetes.io/name={name}` says why",
        )


def _is_unseen(workload: Json) -> bool:
    """Whether no controller has looked at it since it was changed."""
    changed, seen = at(workload, "metadata", "generation"), at(workload, "status", "observedGeneration")
    return isinstance(changed, int) and isinstance(seen, int) and seen < changed


def _untaken(subject: str) -> Result:
    return warning(
        subject,
        "it was changed, and no controller has taken that up yet",
        "kube-controller-manager does it within seconds; where it does not, look at its log",
    )


def _is_from_before(pod: Json, config_map: Json) -> bool:
    """Whether the pod of a scheduler was made by another configuration, and has not started since that was changed."""
    checksum = (at(pod, "metadata", "annotations") or {}).get(CHECKSUM)
    text = str(at(config_map, "data", "config.yaml") or "").rstrip("\n")
    if checksum is None or checksum == hashlib.sha256(text.encode()).hexdigest():
        return False
    changed, started = _changed_s(config_map), _started_s(pod)
    return changed is None or started is None or started < changed


def _changed_s(obj: Json) -> float | None:
    """When the object was changed last, unix seconds, as far as that is noted on it."""
    times = (_seconds(one.get("time")) for one in at(obj, "metadata", "managedFields") or ())
    return max((one for one in times if one is not None), default=None)


def _started_s(pod: Json) -> float | None:
    """When its kube-scheduler was started last, unix seconds: by then it has read its configuration."""
    for status in at(pod, "status", "containerStatuses") or ():
        if status.get("name") == "kube-scheduler":
            return _seconds(at(status, "state", "running", "startedAt"))
    return None


def _seconds(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
