"""What was read of a cluster, as plain values; ``Unread`` for what could not be read."""

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from gpushare.api import names
from gpushare.api.allocation.resource_slice import ResourceSlice
from gpushare.api.errors import ModelError
from gpushare.api.node.device import NodeDevices, node_devices
from gpushare.api.node.modes import NodeMode
from gpushare.api.objects import Node, Pod
from gpushare.api.taints import Taint, Toleration
from gpushare.doctor.cluster.checks.container_states import statuses, why_of
from gpushare.doctor.findings import Unread

Json = dict[str, Any]
#: Label of an EndpointSlice with the name of its Service.
SERVICE_LABEL = "kubernetes.io/service-name"


class _Info(msgspec.Struct, rename="camel", frozen=True):
    kubelet_version: str = ""


class _NodeSpec(msgspec.Struct, frozen=True):
    taints: list[Taint] | None = None


class _NodeStatus(msgspec.Struct, rename="camel", frozen=True):
    node_info: _Info = _Info()


class NodeDetails(msgspec.Struct, frozen=True):
    """The parts of a node that ``api.objects.Node`` does not have."""

    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


class SeenNode(msgspec.Struct, frozen=True):
    """A node, with everything that is examined."""

    node: Node
    details: NodeDetails

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.metadata.name

    @property
    def subject(self) -> str:
        """Its name in findings."""
        return f"node {self.name}"

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return self.node.metadata.labels or {}

    @property
    def taints(self) -> list[Taint]:
        """Its taints."""
        return self.details.spec.taints or []

    @property
    def is_ready(self) -> bool:
        """Whether its kubelet reports that it is ready."""
        ready = self.node.condition("Ready")
        return ready is not None and ready.status == "True"


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was read. Objects are as sent by the API server; lists are of all namespaces."""

    server: str
    version: Json | Unread
    server_time_s: float | Unread
    """The API server's clock (header ``Date``, whole seconds) and ours at the time of the response; both in Unix seconds."""
    our_time_s: float = 0.0
    rights: dict[str, bool] | Unread
    """``VERB RESOURCE.GROUP`` → whether the user of this program has this permission."""
    nodes: list[SeenNode] | Unread
    pods: list[Pod] | Unread
    daemon_sets: list[Json] | Unread
    """Those with the chart's name, in any namespace; the next ones too."""
    deployments: list[Json] | Unread
    config_maps: list[Json] | Unread
    leases: list[Json] | Unread
    part_pods: list[Json] | Unread
    """The pods of both charts."""
    roles: list[Json] | Unread
    """ClusterRoles."""
    bindings: list[Json] | Unread
    """ClusterRoleBindings."""
    own_roles: list[Json] | Unread
    """Roles of the namespaces in which the charts create some."""
    own_bindings: list[Json] | Unread
    """RoleBindings of these namespaces."""
    network_policies: list[Json] | Unread
    """NetworkPolicies of the webhook's namespace."""
    definitions: list[Json] | Unread
    policies: list[Json] | Unread
    """ResourcePolicies."""
    policy_pods: list[Pod] | Unread
    """All pods of the namespaces of these, including pods without a GPU."""
    quota_trees: list[Json] | Unread
    """ElasticQuotaTrees of all namespaces."""
    namespaces: frozenset[str] | Unread
    """The names of all namespaces."""
    owners: list[Json] | Unread
    """The Jobs, ReplicaSets and StatefulSets that own the pods of pending gangs."""
    validating_policies: list[Json] | Unread
    mutating_policies: list[Json] | Unread
    policy_bindings: list[Json] | Unread
    """Bindings of both kinds of policies."""
    webhooks: list[Json] | Unread
    """Webhook configurations of both kinds, with the chart's name."""
    webhook_deployments: list[Json] | Unread
    dashboards: list[Json] | Unread
    """Deployments with the name of the dashboard's Service."""
    endpoint_slices: list[Json] | Unread
    """Endpoints of that Service, and of the one by which ``kubectl inspect cgpu`` finds the scheduler."""
    node_leases: dict[str, float] | Unread
    """Node → when its kubelet last renewed its Lease, in Unix seconds."""
    answers: dict[str, str]
    """Pod of the scheduler → what its extender responds to ``/readyz``: empty if it is ready."""
    namespace: str = ""
    """The namespace in which to look for the charts; empty: all."""
    namespace_is_there: bool = True
    """Whether that namespace exists; also true if it may not be read."""
    elsewhere: dict[str, list[str]] = {}
    """If a namespace was given: field of these facts → other namespaces that have such an object, as far as they may be read."""
    removals: list[Json] | Unread = []
    """The Deployments of all namespaces that clean up after a removal of the charts."""
    slices: Collection[ResourceSlice] | Unread = ()
    """ResourceSlices of our driver; this and the next ones are read only if a node is in mode ``dra``."""
    device_classes: list[str] | Unread = []
    """Names of all DeviceClasses."""
    features: dict[str, bool] | Unread = {}
    """Features of the API server, and whether they are on."""
    playground: Json | None = None
    """A playground's description of itself: its components are processes, not pods, and no chart is installed."""


def at(obj: Any, *path: str) -> Any:
    """``obj[path[0]][path[1]]…``; ``None`` if any part is missing."""
    for step in path:
        if not isinstance(obj, dict):
            return None
        obj = obj.get(step)
    return obj


def name_of(obj: Json) -> str:
    """``NAMESPACE/NAME``, or the name."""
    namespace = at(obj, "metadata", "namespace")
    name = str(at(obj, "metadata", "name") or "")
    return f"{namespace}/{name}" if namespace else name


def is_ready(pod: Json) -> bool:
    """Whether a pod is ready."""
    conditions = at(pod, "status", "conditions") or ()
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions
    )


def why_unready(pod: Json) -> str:
    """What a container of the pod is waiting for, or how it ended, after a colon; empty if unknown."""
    return next(filter(None, map(why_of, statuses(pod))), "")


def first_unready(facts: ClusterFacts, app: str) -> Json | None:
    """The first pod of ``app`` (``app.kubernetes.io/name``) that is not ready, with a known reason."""
    pods = () if isinstance(facts.part_pods, Unread) else facts.part_pods
    ours = (pod for pod in pods if at(pod, "metadata", "labels", "app.kubernetes.io/name") == app)
    return next((pod for pod in ours if not is_ready(pod) and why_unready(pod)), None)


def first_why(facts: ClusterFacts, app: str) -> str:
    """The reason of that pod, after a colon."""
    pod = first_unready(facts, app)
    return "" if pod is None else why_unready(pod)


def webhook_places(configurations: list[Json]) -> dict[tuple[str, str], list[Json]]:
    """Namespace and name of the Services of webhooks, each with its webhooks; webhooks with a URL are left out."""
    hooks_by_service: dict[tuple[str, str], list[Json]] = {}
    for configuration in configurations:
        for hook in configuration.get("webhooks") or ():
            namespace, name = (
                str(at(hook, "clientConfig", "service", key) or "") for key in ("namespace", "name")
            )
            if namespace and name:
                hooks_by_service.setdefault((namespace, name), []).append(hook)
    return hooks_by_service


def ready_endpoints(slices: list[Json], namespace: str, service: str) -> int:
    """The number of ready endpoints of a Service."""
    return sum(
        len(endpoint.get("addresses") or ())
        # Without a condition an endpoint counts as ready.
        for endpoints in slices
        if at(endpoints, "metadata", "namespace") == namespace
        and at(endpoints, "metadata", "labels", SERVICE_LABEL) == service
        for endpoint in endpoints.get("endpoints") or ()
        if at(endpoint, "conditions", "ready") is not False
    )


def agent_pods(facts: ClusterFacts) -> dict[str, Json]:
    """The node agents' pods that are not terminating, by node; none if pods cannot be read."""
    return {
        str(at(pod, "spec", "nodeName")): pod
        # During a rollout a node has two: the ready one serves it.
        for pod in sorted(() if isinstance(facts.part_pods, Unread) else facts.part_pods, key=is_ready)
        if owner_of(pod) == names.DAEMON_SET_NAME and not at(pod, "metadata", "deletionTimestamp")
    }


def owner_of(obj: Json) -> str:
    """The name of the owner; empty if there is none."""
    owners = at(obj, "metadata", "ownerReferences") or [{}]
    return str(owners[0].get("name", ""))


def tolerations_of(template: Json) -> list[Toleration]:
    """The tolerations of a DaemonSet's or Deployment's pods."""
    return msgspec.convert(at(template, "spec", "template", "spec", "tolerations") or [], list[Toleration])


def devices_of(nodes: list[SeenNode]) -> dict[str, NodeDevices]:
    """The readable descriptions of nodes' GPUs, by node name."""
    by_name = {}
    for node in nodes:
        try:
            devices = node_devices(node.node)
        except ModelError:
            continue
        if devices is not None:
            by_name[node.name] = devices
    return by_name


def gpu_nodes(facts: ClusterFacts) -> list[SeenNode]:
    """The nodes with our label, or that are still described; none if nodes cannot be read."""
    if isinstance(facts.nodes, Unread):
        return []
    wanted = (names.LABEL_MODE, names.LABEL_DESCRIBED)
    return [node for node in facts.nodes if any(label in node.labels for label in wanted)]


def claiming_nodes(nodes: Iterable[SeenNode]) -> list[SeenNode]:
    """The nodes that are labelled to share their GPUs through ResourceClaims."""
    return [node for node in nodes if node.labels.get(names.LABEL_MODE) == NodeMode.DRA.value]
