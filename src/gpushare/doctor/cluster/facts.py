"""What was read of a cluster, as plain values; what could not be read is ``Unread``."""

from typing import Any

import msgspec

from gpushare.api import names
from gpushare.api.errors import ModelError
from gpushare.api.node.device import NodeDevices, node_devices
from gpushare.api.objects import Node, Pod
from gpushare.api.taints import Taint, Toleration
from gpushare.doctor.cluster.checks.container_states import statuses, why_of
from gpushare.doctor.findings import Unread

Json = dict[str, Any]
#: Of an EndpointSlice: whose endpoints it has.
SERVICE_LABEL = "kubernetes.io/service-name"


class Condition(msgspec.Struct, frozen=True):
    """One of a node's conditions."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class _Info(msgspec.Struct, rename="camel", frozen=True):
    kubelet_version: str = ""


class _NodeSpec(msgspec.Struct, frozen=True):
    taints: list[Taint] | None = None


class _NodeStatus(msgspec.Struct, rename="camel", frozen=True):
    conditions: list[Condition] | None = None
    node_info: _Info = _Info()


class NodeDetails(msgspec.Struct, frozen=True):
    """What ``api.objects.Node`` leaves out of a node."""

    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


class SeenNode(msgspec.Struct, frozen=True):
    """A node, all of it that is looked at."""

    node: Node
    details: NodeDetails

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.metadata.name

    @property
    def subject(self) -> str:
        """As findings name it."""
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
        """Whether its kubelet says that it is ready."""
        return any(
            one.type == "Ready" and one.status == "True" for one in self.details.status.conditions or ()
        )


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. Objects are as the API server sends them; lists are of all namespaces."""

    server: str
    version: Json | Unread
    server_time_s: float | Unread
    """The API server's clock (header ``Date``, whole seconds) and ours, when the answer came; both unix seconds."""
    our_time_s: float = 0.0
    rights: dict[str, bool] | Unread
    """``VERB RESOURCE.GROUP`` → whether the user of this program may."""
    nodes: list[SeenNode] | Unread
    pods: list[Pod] | Unread
    daemon_sets: list[Json] | Unread
    """Those of the name that the chart gives, in whatever namespace; so are the next ones."""
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
    """Roles of the namespaces in which the charts have some."""
    own_bindings: list[Json] | Unread
    """RoleBindings of these."""
    network_policies: list[Json] | Unread
    """NetworkPolicies of the webhook's namespace."""
    definitions: list[Json] | Unread
    policies: list[Json] | Unread
    """ResourcePolicies."""
    policy_pods: list[Pod] | Unread
    """All pods of the namespaces of these, those without a GPU, too."""
    quota_trees: list[Json] | Unread
    """ElasticQuotaTrees of all namespaces."""
    namespaces: frozenset[str] | Unread
    """The names of all."""
    owners: list[Json] | Unread
    """The Jobs, ReplicaSets and StatefulSets that make the pods of gangs that wait."""
    validating_policies: list[Json] | Unread
    mutating_policies: list[Json] | Unread
    policy_bindings: list[Json] | Unread
    """Of both kinds of policies."""
    webhooks: list[Json] | Unread
    """Webhook configurations of both kinds, of the name that the chart gives."""
    webhook_deployments: list[Json] | Unread
    dashboards: list[Json] | Unread
    """Deployments of the name of the Service that these are called at."""
    endpoint_slices: list[Json] | Unread
    """Who is behind that Service, and behind the one by which ``kubectl inspect cgpu`` finds the scheduler."""
    node_leases: dict[str, float] | Unread
    """Node → when its kubelet renewed its Lease last, unix seconds."""
    answers: dict[str, str]
    """Pod of the scheduler → what its extender says to ``/readyz``: empty where it is ready."""
    namespace: str = ""
    """The one in which the charts were to be looked for; empty: in all."""
    namespace_is_there: bool = True
    """Whether that one exists; true, too, where that may not be read."""
    elsewhere: dict[str, list[str]] = {}
    """Where the charts were to be looked for in one: field of these facts → the other namespaces that have such an object, as far as these may be read."""
    removals: list[Json] | Unread = []
    """The Deployments that clean up after a removal of the charts, of all namespaces."""
    playground: Json | None = None
    """What a playground says of itself: its parts are processes, not pods, and no chart is installed."""


def at(obj: Any, *path: str) -> Any:
    """``obj[path[0]][path[1]]…``; ``None`` where any of that is not there."""
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
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def why_unready(pod: Json) -> str:
    """What a container of the pod waits for, or how it ended, with a colon before it; empty where nothing says it."""
    return next(filter(None, map(why_of, statuses(pod))), "")


def first_unready(facts: ClusterFacts, app: str) -> Json | None:
    """The first pod of ``app`` (``app.kubernetes.io/name``) that is not ready and says why."""
    pods = () if isinstance(facts.part_pods, Unread) else facts.part_pods
    ours = (pod for pod in pods if at(pod, "metadata", "labels", "app.kubernetes.io/name") == app)
    return next((pod for pod in ours if not is_ready(pod) and why_unready(pod)), None)


def first_why(facts: ClusterFacts, app: str) -> str:
    """What that one says, with a colon before it."""
    pod = first_unready(facts, app)
    return "" if pod is None else why_unready(pod)


def webhook_places(configurations: list[Json]) -> dict[tuple[str, str], list[Json]]:
    """Namespace and name of the Services that webhooks are called at, each with its webhooks; others have an address."""
    found: dict[tuple[str, str], list[Json]] = {}
    for configuration in configurations:
        for hook in configuration.get("webhooks") or ():
            namespace, name = (
                str(at(hook, "clientConfig", "service", key) or "") for key in ("namespace", "name")
            )
            if namespace and name:
                found.setdefault((namespace, name), []).append(hook)
    return found


def ready_endpoints(slices: list[Json], namespace: str, service: str) -> int:
    """How many that are ready stand behind a Service."""
    return sum(
        len(one.get("addresses") or ())
        # What does not say whether it is ready is to be taken for ready.
        for endpoints in slices
        if at(endpoints, "metadata", "namespace") == namespace
        and at(endpoints, "metadata", "labels", SERVICE_LABEL) == service
        for one in endpoints.get("endpoints") or ()
        if at(one, "conditions", "ready") is not False
    )


def agent_pods(facts: ClusterFacts) -> dict[str, Json]:
    """The node agents' pods that stay, by node; none where pods cannot be read."""
    return {
        str(at(pod, "spec", "nodeName")): pod
        # While one follows another there are two on a node: the one that is ready serves it.
        for pod in sorted(() if isinstance(facts.part_pods, Unread) else facts.part_pods, key=is_ready)
        if owner_of(pod) == names.DAEMON_SET_NAME and not at(pod, "metadata", "deletionTimestamp")
    }


def owner_of(obj: Json) -> str:
    """The name of the object that made it; empty where nothing did."""
    owners = at(obj, "metadata", "ownerReferences") or [{}]
    return str(owners[0].get("name", ""))


def tolerations_of(template: Json) -> list[Toleration]:
    """The tolerations of a DaemonSet's or Deployment's pods."""
    return msgspec.convert(at(template, "spec", "template", "spec", "tolerations") or [], list[Toleration])


def devices_of(nodes: list[SeenNode]) -> dict[str, NodeDevices]:
    """What of GPUs each node has that can be read, by its name."""
    found = {}
    for node in nodes:
        try:
            devices = node_devices(node.node)
        except ModelError:
            continue
        if devices is not None:
            found[node.name] = devices
    return found


def gpu_nodes(facts: ClusterFacts) -> list[SeenNode]:
    """The nodes that are labelled for us, or still described; none where nodes cannot be read."""
    if isinstance(facts.nodes, Unread):
        return []
    wanted = (names.LABEL_MODE, names.LABEL_DESCRIBED)
    return [node for node in facts.nodes if any(label in node.labels for label in wanted)]
