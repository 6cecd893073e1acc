"""Objects and files in a cluster that the product could leave behind."""

from dataclasses import dataclass
from typing import Any

from tests.e2e.cluster import Cluster

_FOLDERS = (
    "/var/lib/kubelet/device-plugins",
    "/etc/cdi",
    "/var/run/cdi",
    "/run/gpushare",
    "/etc",
    "/var/lib/kubelet/plugins_registry",
)
_KINDS = (
    "configmaps",
    "secrets",
    "serviceaccounts",
    "services",
    "resourcequotas",
    "deployments.apps",
    "daemonsets.apps",
    "replicasets.apps",
    "controllerrevisions.apps",
    "jobs.batch",
    "leases.coordination.k8s.io",
    "poddisruptionbudgets.policy",
    "networkpolicies.networking.k8s.io",
    "roles.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    "mutatingadmissionpolicies.admissionregistration.k8s.io",
    "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
    "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "validatingwebhookconfigurations.admissionregistration.k8s.io",
    "customresourcedefinitions.apiextensions.k8s.io",
    "priorityclasses.scheduling.k8s.io",
    "deviceclasses.resource.k8s.io",
    "resourceslices.resource.k8s.io",
)
_PASSING = ("node.kubernetes.io/", "volumes.kubernetes.io/", "node.alpha.kubernetes.io/")


@dataclass(frozen=True, slots=True)
class Traces:
    """By node: labels, annotations, resources, kinds of conditions and files; and the names of every object
    that is not short-lived.
    """

    labels: dict[str, dict[str, str]]
    annotations: dict[str, dict[str, str]]
    resources: dict[str, dict[str, str]]
    conditions: dict[str, dict[str, str]]
    files: dict[str, tuple[str, ...]]
    objects: tuple[str, ...]

    @classmethod
    def of(cls, cluster: Cluster) -> "Traces":
        """The present ones."""
        nodes = [cluster.get(f"/api/v1/nodes/{node.name}") for node in cluster.nodes]
        return cls(
            labels={_name(node): dict(node["metadata"].get("labels") or {}) for node in nodes},
            annotations={_name(node): _lasting(node["metadata"].get("annotations") or {}) for node in nodes},
            resources={_name(node): _amounts(node) for node in nodes},
            conditions={
                _name(node): {one["type"]: "" for one in node["status"]["conditions"]} for node in nodes
            },
            files={node.name: _files(node) for node in cluster.nodes},
            objects=tuple(sorted(_objects(cluster))),
        )

    def beside(self, before: "Traces") -> list[str]:
        """Added, removed and changed entries, a line each."""
        found = []
        for part in ("labels", "annotations", "resources", "conditions"):
            now, then = getattr(self, part), getattr(before, part)
            for node in then:
                keys = sorted({*now[node].items()} ^ {*then[node].items()})
                found += [f"{part} of {node}: {key}={value}" for key, value in keys]
        for node in before.files:
            found += [
                f"files of {node}: {file}" for file in sorted({*self.files[node]} ^ {*before.files[node]})
            ]
        return found + [f"object {one}" for one in sorted({*self.objects} ^ {*before.objects})]


def _name(node: dict[str, Any]) -> str:
    return str(node["metadata"]["name"])


def _lasting(annotations: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in annotations.items() if not key.startswith(_PASSING)}


def _amounts(node: dict[str, Any]) -> dict[str, str]:
    # Free disk space and memory change by themselves.
    return {
        f"{part}/{key}": value
        for part in ("capacity", "allocatable")
        for key, value in node["status"][part].items()
        if "/" in key
    }


def _files(node: Any) -> tuple[str, ...]:
    found = node.run("find", *_FOLDERS, "-maxdepth", "1", "-newermt", "2000-01-01", check=False).stdout
    # The kubelet's own files come and go with the kubelet.
    return tuple(sorted(line for line in found.splitlines() if "kubelet_internal_checkpoint" not in line))


def _objects(cluster: Cluster) -> list[str]:
    kinds = set(cluster.kubectl("api-resources", "--verbs=list", "--no-headers", "-o", "name").stdout.split())
    # Older clusters lack some of them.
    wanted = [one for one in _KINDS if one in kinds]
    listed = cluster.kubectl(
        "get",
        ",".join(wanted),
        "-A",
        "-o",
        "jsonpath={range .items[*]}{.kind}/{.metadata.namespace}/{.metadata.name} "
        r"{.metadata.annotations.helm\.sh/resource-policy}"
        '{"\\n"}{end}',
    ).stdout
    # Kubelets create theirs some time after they are Ready; a definition is kept, since users' objects
    # would be deleted with it.
    lasting = (line for line in listed.splitlines() if "/kube-node-lease/" not in line)
    return [line.rstrip() for line in lasting if not line.endswith(" keep")]
