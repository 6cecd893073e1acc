"""Defaults that the API server sets if a manifest does not, kind by kind, as in the real one.

A function here changes the (new) object that it receives. ``status`` is set only on creation.
"""

import base64
from collections.abc import Callable
from typing import Final

from gpushare_playground.apiserver.errors import Object
from gpushare_playground.apiserver.writes.admission import DEFAULT_SCHEDULER

_COMPUTE: Final = ("cpu", "memory")
_OUTAGES: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_OUTAGE_S: Final = 300


def _pull_policy(image: str) -> str:
    name = image.rpartition("/")[2]
    if "@" in name:
        return "IfNotPresent"
    tag = name.partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _container(container: Object) -> None:
    if container.get("image"):
        container.setdefault("imagePullPolicy", _pull_policy(container["image"]))
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("resources", {})
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or ():
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            reference.setdefault("apiVersion", "v1")


_VOLUME_MODE: Final = 0o644


def _volume(volume: Object) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}
    for source in ("configMap", "secret"):
        if isinstance(volume.get(source), dict):
            volume[source].setdefault("defaultMode", _VOLUME_MODE)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")


def default_pod_spec(spec: Object) -> None:
    """Defaults of a pod spec, in pods and in templates."""
    for name in ("initContainers", "containers"):
        for container in spec.get(name) or ():
            _container(container)
    for volume in spec.get("volumes") or ():
        _volume(volume)
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", DEFAULT_SCHEDULER)
    if "serviceAccount" in spec:
        spec.setdefault("serviceAccountName", spec["serviceAccount"])
    if "serviceAccountName" in spec:
        spec["serviceAccount"] = spec["serviceAccountName"]
    if spec.get("hostNetwork"):
        for container in spec.get("containers") or ():
            for port in container.get("ports") or ():
                port.setdefault("hostPort", port.get("containerPort"))


def _request_limits(container: Object) -> None:
    """Limits are also requests: only for a pod's containers, templates stay as written."""
    limits = container["resources"].get("limits")
    if limits:
        requests = container["resources"].setdefault("requests", {})
        for name, amount in limits.items():
            requests.setdefault(name, amount)


def _outlast_short_outages(spec: Object) -> None:
    """The admission plugin DefaultTolerationSeconds: a node may be unavailable for five minutes before its pods are evicted."""
    tolerations = list(spec.get("tolerations") or ())
    added = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _OUTAGE_S}
        for key in _OUTAGES
        if not any(
            toleration.get("key", "") in ("", key) and toleration.get("effect", "") in ("", "NoExecute")
            for toleration in tolerations
        )
    ]
    if added:
        spec["tolerations"] = [*tolerations, *added]


def _pod(pod: Object) -> None:
    spec = pod.setdefault("spec", {})
    default_pod_spec(spec)
    for name in ("initContainers", "containers"):
        for container in spec.get(name) or ():
            _request_limits(container)
    _outlast_short_outages(spec)
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = spec["serviceAccountName"]


def _template(obj: Object) -> None:
    template = obj.setdefault("spec", {}).setdefault("template", {})
    template.setdefault("metadata", {})
    default_pod_spec(template.setdefault("spec", {}))


def _deployment(obj: Object) -> None:
    _template(obj)
    spec = obj["spec"]
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")


def _stateful_set(obj: Object) -> None:
    _template(obj)
    spec = obj["spec"]
    spec.setdefault("replicas", 1)
    spec.setdefault("serviceName", "")
    spec.setdefault("podManagementPolicy", "OrderedReady")
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("partition", 0)
        rolling.setdefault("maxUnavailable", 1)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    retention.setdefault("whenDeleted", "Retain")
    retention.setdefault("whenScaled", "Retain")


def _replica_set(obj: Object) -> None:
    _template(obj)
    obj["spec"].setdefault("replicas", 1)
    labels = obj["spec"]["template"]["metadata"].get("labels")
    if labels:
        obj["metadata"].setdefault("labels", dict(labels))


def _job(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    default_pod_spec(template.setdefault("spec", {}))
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")


def name_job_pods(obj: Object) -> None:
    """Set the selector and the pod labels of a new Job, which contain its UID, as the real server does."""
    spec, metadata = obj["spec"], obj["metadata"]
    if spec.get("manualSelector"):
        return
    uid, name = metadata["uid"], metadata["name"]
    labels = spec["template"]["metadata"].setdefault("labels", {})
    for prefix in ("", "batch.kubernetes.io/"):
        labels[f"{prefix}controller-uid"] = uid
        labels[f"{prefix}job-name"] = name
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    if not metadata.get("labels"):
        metadata["labels"] = dict(labels)


def _service(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    if spec["type"] != "ExternalName":
        # The playground has no service network, hence no address.
        spec.setdefault("clusterIP", "None")
        spec.setdefault("clusterIPs", [spec["clusterIP"]])
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        spec.setdefault("internalTrafficPolicy", "Cluster")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def _secret(obj: Object) -> None:
    for key, text in (obj.pop("stringData", None) or {}).items():
        obj.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()
    obj.setdefault("type", "Opaque")


def _namespace(obj: Object) -> None:
    obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"].get("name", "")


def _node(obj: Object) -> None:
    obj.setdefault("spec", {})
    status = obj.get("status")
    if status and "capacity" in status and "allocatable" not in status:
        obj["status"] = {**status, "allocatable": dict(status["capacity"])}


def _priority_class(obj: Object) -> None:
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _custom_definition(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    wanted = spec.setdefault("names", {})
    if wanted.get("kind"):
        wanted.setdefault("singular", wanted["kind"].lower())
        wanted.setdefault("listKind", wanted["kind"] + "List")
    spec.setdefault("conversion", {"strategy": "None"})


_BY_STORAGE: Final[dict[str, Callable[[Object], None]]] = {
    "pods": _pod,
    "nodes": _node,
    "namespaces": _namespace,
    "services": _service,
    "secrets": _secret,
    "deployments.apps": _deployment,
    "statefulsets.apps": _stateful_set,
    "replicasets.apps": _replica_set,
    "jobs.batch": _job,
    "priorityclasses.scheduling.k8s.io": _priority_class,
    "customresourcedefinitions.apiextensions.k8s.io": _custom_definition,
}


def apply_defaults(storage: str, obj: Object) -> None:
    """Set the defaults of the kind that is stored in ``storage``."""
    function = _BY_STORAGE.get(storage)
    if function is not None:
        function(obj)


def qos_class(spec: Object) -> str:
    """Guaranteed, Burstable or BestEffort, from CPU and memory of all containers."""
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    has_requests, guaranteed = False, True
    for container in containers:
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in _COMPUTE:
            has_requests = has_requests or limits.get(name, "0") != "0" or requests.get(name, "0") != "0"
            if limits.get(name, "0") == "0" or requests.get(name, limits.get(name)) != limits[name]:
                guaranteed = False
    if not has_requests:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def first_status(storage: str, obj: Object) -> Object | None:
    """The initial status of a new object; None if it has none or keeps the one it was created with."""
    match storage:
        case "pods":
            return {"phase": "Pending", "qosClass": qos_class(obj["spec"])}
        case "namespaces":
            return {"phase": "Active"}
        case "services":
            return {"loadBalancer": {}}
        case "statefulsets.apps":
            return {"replicas": 0, "availableReplicas": 0}
        case "replicasets.apps":
            return {"replicas": 0}
        case "poddisruptionbudgets.policy":
            return {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}
        case "nodes":
            return None
        case _:
            return {}
