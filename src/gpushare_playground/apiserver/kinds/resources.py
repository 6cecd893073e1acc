"""What the server serves: one ``Resource`` per kind and version, and the registry that looks them up by path.

Kinds are listed in the table below; a CustomResourceDefinition adds its own while the server runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gpushare_playground.apiserver.errors import Object, qualified

ALL_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A resource in one API version.

    ``storage`` names the collection that holds its objects (shared by all versions);
    ``schema`` is its type in the fields table (None: not in it); ``generation``: whether
    a change of ``spec`` increments ``metadata.generation``; ``columns`` are a CRD's printer columns.
    """

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    storage: str
    storage_version: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()
    schema: str | None = None
    generation: bool = False
    custom: bool = False
    columns: tuple[Object, ...] = ()
    validation: Object | None = None
    selectable: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS

    @property
    def api_version(self) -> str:
        """``v1`` or ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def has_status(self) -> bool:
        """Whether ``status`` is written through its own subresource."""
        return "status" in self.subresources


_STATUS: Final = "status"

# group, version, kind, plural, short names, scope, subresources, what else
_TABLE: Final[tuple[tuple[str, str, str, str, str, str, str, str], ...]] = (
    ("", "v1", "Namespace", "namespaces", "ns", "cluster", "status finalize", ""),
    ("", "v1", "Node", "nodes", "no", "cluster", "status", ""),
    ("", "v1", "Pod", "pods", "po", "", "status binding eviction log exec resize", "all generation"),
    ("", "v1", "Service", "services", "svc", "", "status", "all"),
    ("", "v1", "ConfigMap", "configmaps", "cm", "", "", ""),
    ("", "v1", "Secret", "secrets", "", "", "", ""),
    ("", "v1", "ServiceAccount", "serviceaccounts", "sa", "", "token", ""),
    ("", "v1", "Endpoints", "endpoints", "ep", "", "", ""),
    ("", "v1", "Event", "events", "ev", "", "", ""),
    ("", "v1", "ResourceQuota", "resourcequotas", "quota", "", "status", ""),
    ("", "v1", "LimitRange", "limitranges", "limits", "", "", "raw"),
    ("", "v1", "ReplicationController", "replicationcontrollers", "rc", "", "status", "all generation raw"),
    ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", "pvc", "", "status", "raw"),
    ("", "v1", "PersistentVolume", "persistentvolumes", "pv", "cluster", "status", "raw"),
    ("apps", "v1", "Deployment", "deployments", "deploy", "", "status scale", "all generation"),
    ("apps", "v1", "StatefulSet", "statefulsets", "sts", "", "status scale", "all generation"),
    ("apps", "v1", "ReplicaSet", "replicasets", "rs", "", "status scale", "all generation"),
    ("apps", "v1", "DaemonSet", "daemonsets", "ds", "", "status", "all generation raw"),
    ("apps", "v1", "ControllerRevision", "controllerrevisions", "", "", "", "raw"),
    ("batch", "v1", "Job", "jobs", "", "", "status", "all generation"),
    ("coordination.k8s.io", "v1", "Lease", "leases", "", "", "", ""),
    ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", "", "", "", "generation raw"),
    ("events.k8s.io", "v1", "Event", "events", "ev", "", "", ""),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", "", "status", "generation"),
    ("rbac.authorization.k8s.io", "v1", "Role", "roles", "", "", "", "raw"),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", "", "", "", "raw"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", "", "cluster", "", "raw"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", "", "cluster", "", "raw"),
    ("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", "pc", "cluster", "", "generation"),
    ("storage.k8s.io", "v1", "StorageClass", "storageclasses", "sc", "cluster", "", "raw"),
    ("storage.k8s.io", "v1", "CSINode", "csinodes", "", "cluster", "", "raw"),
    ("storage.k8s.io", "v1", "CSIDriver", "csidrivers", "", "cluster", "", "raw"),
    ("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", "", "", "", "raw"),
    ("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", "", "cluster", "status", "raw"),
    ("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", "", "", "status", "raw"),
    ("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", "", "cluster", "", "raw"),
    ("resource.k8s.io", "v1", "DeviceClass", "deviceclasses", "", "cluster", "", "raw"),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", "crd crds", "cluster", "status", "generation"),
)  # fmt: skip
# Nothing here acts on the raw kinds: they are stored unchanged, for clients that list them (kube-scheduler, kubectl describe, doctor).

_BODIES: Final = ("Binding", "DeleteOptions", "Eviction", "Scale")


def _builtin(row: tuple[str, str, str, str, str, str, str, str]) -> Resource:
    group, version, kind, plural, shorts, scope, subresources, flags = row
    # One collection holds all events; the core form is the one that is stored.
    stored_in_core = kind == "Event"
    schema = "events.Event" if group == "events.k8s.io" else kind
    return Resource(
        group=group,
        version=version,
        kind=kind,
        plural=plural,
        singular=kind.lower(),
        storage="events" if stored_in_core else qualified(plural, group),
        storage_version="v1" if stored_in_core else (f"{group}/{version}" if group else version),
        namespaced=scope != "cluster",
        short_names=tuple(shorts.split()),
        categories=("all",) if "all" in flags.split() else (),
        subresources=frozenset(subresources.split()),
        schema=None if "raw" in flags.split() else schema,
        generation="generation" in flags,
    )


@dataclass(slots=True)
class Registry:
    """All served resources, looked up by group, version and plural in one step."""

    _by_path: dict[tuple[str, str, str], Resource] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in _TABLE:
            self.add(_builtin(row))

    def __iter__(self) -> Iterator[Resource]:
        return iter(list(self._by_path.values()))

    def add(self, resource: Resource) -> None:
        """Serve ``resource`` from now on (again, if it was served)."""
        self._by_path[resource.group, resource.version, resource.plural] = resource

    def remove_group_plural(self, group: str, plural: str) -> None:
        """Stop serving all versions of a resource."""
        for key in [key for key in self._by_path if key[0] == group and key[2] == plural]:
            del self._by_path[key]

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """The resource at ``/apis/GROUP/VERSION/PLURAL`` (``/api/VERSION/PLURAL`` when group is empty)."""
        return self._by_path.get((group, version, plural))

    def find_kind(self, api_version: str, kind: str) -> Resource | None:
        """The resource of an object's ``apiVersion`` and ``kind``."""
        group, _, version = api_version.rpartition("/")
        for resource in self._by_path.values():
            if resource.kind == kind and resource.group == group and resource.version == version:
                return resource
        return None

    def schema_of(self, api_version: str, kind: str) -> str | None:
        """The type in the fields table of a body with this ``apiVersion`` and ``kind``; None if it has none."""
        if kind in _BODIES:
            return kind
        resource = self.find_kind(api_version, kind)
        return None if resource is None else resource.schema

    def of_storage(self, storage: str) -> Resource | None:
        """The resource whose version is the one stored in the collection ``storage``."""
        for resource in self._by_path.values():
            if resource.storage == storage and resource.api_version == resource.storage_version:
                return resource
        return None

    def groups(self) -> dict[str, list[str]]:
        """Versions of each group, in the order in which they are served; the core group is ``""``."""
        versions_of: dict[str, list[str]] = {}
        for group, version, _ in self._by_path:
            versions = versions_of.setdefault(group, [])
            if version not in versions:
                versions.append(version)
        return versions_of

    def serving(self, group: str, version: str) -> list[Resource]:
        """The resources of one group and version."""
        return [
            resource
            for resource in self._by_path.values()
            if resource.group == group and resource.version == version
        ]
