"""Whether what runs is what is installed: pods from before a change that still run."""

import hashlib
from collections.abc import Iterator
from datetime import datetime

from gpushare.api import names
from gpushare.doctor.cluster.facts import ClusterFacts, Json, at, first_why, name_of
from gpushare.doctor.findings import Result, Unread, warning

#: Annotation of the scheduler's pods: SHA-256 of the configuration that the chart wrote when it created them.
CHECKSUM = "gpushare.dev/config-checksum"


def up_to_date(facts: ClusterFacts) -> Iterator[Result]:
    """Whether every agent has the DaemonSet's current version, and every scheduler has read its current configuration."""
    for daemon_set in () if isinstance(facts.daemon_sets, Unread) else facts.daemon_sets:
        yield from _rolled_out(daemon_set)
    for deployments in (facts.deployments, facts.webhook_deployments):
        for deployment in () if isinstance(deployments, Unread) else deployments:
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
                f"it was changed after these pods read it, and they still use the previous version: {', '.join(old)}",
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
            f"its current version is on {updated} of {wanted} nodes: the others still have earlier agents",
            f"`kubectl -n {namespace} rollout status ds/{names.DAEMON_SET_NAME}`: it proceeds node by node, and stops if an agent does not become ready",
        )


def _deployed(facts: ClusterFacts, deployment: Json) -> Iterator[Result]:
    subject = f"deployment {name_of(deployment)}"
    namespace, _, name = name_of(deployment).partition("/")
    wanted = at(deployment, "spec", "replicas") or 0
    updated = at(deployment, "status", "updatedReplicas") or 0
    running = at(deployment, "status", "replicas") or 0
    if _is_unseen(deployment):
        yield _untaken(subject)
    # Missing pods are another check's finding.
    elif updated < running:
        yield warning(
            subject,
            f"its current version is in {updated} of {wanted} pods, and {running - updated} earlier ones still run{first_why(facts, name)}",
            f"`kubectl -n {namespace} rollout status deployment/{name}`: it stops if a new pod does not become ready, and `kubectl -n {namespace} describe pods -l app.kubernetes.io/name={name}` says why",
        )


def _is_unseen(workload: Json) -> bool:
    """Whether no controller has processed it since it was changed."""
    changed, observed = at(workload, "metadata", "generation"), at(workload, "status", "observedGeneration")
    return isinstance(changed, int) and isinstance(observed, int) and observed < changed


def _untaken(subject: str) -> Result:
    return warning(
        subject,
        "it was changed, but no controller has processed the change yet",
        "kube-controller-manager does that within seconds; if not, check its log",
    )


def _is_from_before(pod: Json, config_map: Json) -> bool:
    """Whether a scheduler's pod was created with another configuration, and was not started after the change."""
    checksum = (at(pod, "metadata", "annotations") or {}).get(CHECKSUM)
    text = str(at(config_map, "data", "config.yaml") or "").rstrip("\n")
    if checksum is None or checksum == hashlib.sha256(text.encode()).hexdigest():
        return False
    changed, started = _changed_s(config_map), _started_s(pod)
    return changed is None or started is None or started < changed


def _changed_s(obj: Json) -> float | None:
    """When the object was last changed, in Unix seconds, as far as its metadata shows."""
    times = (_seconds(entry.get("time")) for entry in at(obj, "metadata", "managedFields") or ())
    return max((time_s for time_s in times if time_s is not None), default=None)


def _started_s(pod: Json) -> float | None:
    """When its kube-scheduler was last started, in Unix seconds: it reads its configuration then."""
    for status in at(pod, "status", "containerStatuses") or ():
        if status.get("name") == "kube-scheduler":
            return _seconds(at(status, "state", "running", "startedAt"))
    return None


def _seconds(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
