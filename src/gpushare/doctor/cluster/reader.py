"""Reads what is examined of a cluster: with the user's permissions, read-only, with time limits, many requests at once."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from gpushare.api import names
from gpushare.api.allocation.resource_slice import ResourceSlice
from gpushare.api.objects import Pod, decode_node, decode_pod
from gpushare.doctor.cluster.checks.dashboard import SERVICE as DASHBOARD
from gpushare.doctor.cluster.facts import (
    SERVICE_LABEL,
    ClusterFacts,
    Json,
    NodeDetails,
    SeenNode,
    at,
    claiming_nodes,
    name_of,
    webhook_places,
)
from gpushare.doctor.findings import Unread
from gpushare.kube.client.errors import ApiError, KubeError, MalformedAnswer
from gpushare.kube.client.listing import list_pages
from gpushare.kube.client.session import Session, segment

T = TypeVar("T")

#: Names in the charts.
CONFIGURATION: Final = "gpushare-admission"
REMOVAL: Final = "gpushare-uninstall"
PLAYGROUND: Final = "gpushare-playground"
#: Everything that this program reads in addition to the bare minimum: VERB, group, resource, subresource.
READS: Final = (
    ("list", "", "nodes", ""),
    ("list", "", "namespaces", ""),
    ("list", "", "pods", ""),
    ("list", "", "configmaps", ""),
    ("get", "", "pods", "proxy"),
    ("list", "apps", "daemonsets", ""),
    ("list", "apps", "deployments", ""),
    ("get", "apps", "replicasets", ""),
    ("get", "apps", "statefulsets", ""),
    ("get", "batch", "jobs", ""),
    ("list", "coordination.k8s.io", "leases", ""),
    ("list", "discovery.k8s.io", "endpointslices", ""),
    ("list", "rbac.authorization.k8s.io", "clusterroles", ""),
    ("list", "rbac.authorization.k8s.io", "clusterrolebindings", ""),
    ("list", "rbac.authorization.k8s.io", "roles", ""),
    ("list", "rbac.authorization.k8s.io", "rolebindings", ""),
    ("list", "networking.k8s.io", "networkpolicies", ""),
    ("list", "apiextensions.k8s.io", "customresourcedefinitions", ""),
    ("list", names.POLICY_GROUP, names.POLICY_PLURAL, ""),
    ("list", names.QUOTA_GROUP.partition("/")[0], names.QUOTA_PLURAL, ""),
    ("list", "admissionregistration.k8s.io", "validatingadmissionpolicies", ""),
    ("list", "admissionregistration.k8s.io", "validatingwebhookconfigurations", ""),
)
#: The namespace of elastic quotas, and of the ConfigMap that tells kube-scheduler how clients authenticate.
_QUOTAS_IN: Final = "kube-system"
#: Every pod that requests a GPU of ours, or under a similar name, contains one of these.
_OF_GPUS: Final = (b"gpu", b"GPU", b"Gpu", b"gup", b"pgu")
#: Kind of a controller → path at which it is read.
_OWNER_PATHS: Final = {
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "ReplicaSet": "/apis/apps/v1/namespaces/{}/replicasets",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
}
#: Limit, because each takes a request.
_MAX_OWNERS: Final = 100
#: Field of the facts → path and name of an object of a chart.
_CHARTS: Final = {
    "daemon_sets": ("/apis/apps/v1/daemonsets", names.DAEMON_SET_NAME),
    "deployments": ("/apis/apps/v1/deployments", names.SCHEDULER_NAME),
    "dashboards": ("/apis/apps/v1/deployments", DASHBOARD),
    "config_maps": ("/api/v1/configmaps", names.SCHEDULER_NAME),
    "leases": ("/apis/coordination.k8s.io/v1/leases", names.SCHEDULER_NAME),
}
_PARTS: Final = "app.kubernetes.io/part-of=gpushare"
_DETAILS: Final = msgspec.json.Decoder(NodeDetails)
_ADMISSION: Final = "/apis/admissionregistration.k8s.io"
_AT_ONCE: Final = 8
_LONGEST_ANSWER: Final = 300
_CLAIMS_API: Final = "/apis/resource.k8s.io/v1"
#: Name and value of a feature in the API server's metrics.
_FEATURE: Final = re.compile(r'^kubernetes_feature_enabled\{name="(\w+)"[^}]*\} ([01])', re.MULTILINE)


class _Meta(msgspec.Struct):
    namespace: str = ""


class _Head(msgspec.Struct):
    metadata: _Meta


_HEAD: Final = msgspec.json.Decoder(_Head)


class Reader:
    """Reads a cluster over ``session``; each response within ``timeout_s`` seconds."""

    def __init__(self, session: Session, timeout_s: float, namespace: str | None = None) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self._namespace = namespace
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._all_pods: list[bytes] = []

    async def read(self) -> ClusterFacts:
        """Read everything; raises ``KubeError`` if the API server does not respond at all, or rejects the credential."""
        version = await self._read_object("/version")
        # Clocks and Leases are compared with each other, and the lists of a large cluster take long: before those.
        our_time_s, server_time_s = time.time(), _date(self._session.server_date)
        leases = await self._together(leases=self._named(*_CHARTS["leases"]), node_leases=self._node_leases())
        facts_read = leases | await self._together(
            rights=self._rights(),
            nodes=self.nodes(),
            pods=self._or_unread(self._pods),
            **{field: self._named(*where) for field, where in _CHARTS.items() if field not in leases},
            elsewhere=self._elsewhere(),
            removals=self._removals(),
            part_pods=self._listed("/api/v1/pods", {"labelSelector": _PARTS}),
            roles=self._listed("/apis/rbac.authorization.k8s.io/v1/clusterroles"),
            bindings=self._listed("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
            definitions=self._listed("/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
            policies=self._listed(f"/apis/{names.POLICY_GROUP}/{names.POLICY_VERSION}/{names.POLICY_PLURAL}"),
            quota_trees=self._listed(f"/apis/{names.QUOTA_GROUP}/{names.QUOTA_PLURAL}"),
            namespaces=self._namespaces(),
            validating_policies=self._listed(f"{_ADMISSION}/v1/validatingadmissionpolicies"),
            mutating_policies=self._listed(f"{_ADMISSION}/v1/mutatingadmissionpolicies"),
            policy_bindings=self._policy_bindings(),
            webhooks=self._webhooks(),
            playground=self._playground(),
            namespace_is_there=self._is_namespace(self._namespace),
        )
        webhook_deployments, endpoint_slices = await self._behind(
            facts_read["webhooks"], facts_read["deployments"]
        )
        roles, bindings, policies = await self._own(webhook_deployments, facts_read["deployments"])
        policy_pods = await self._governed(facts_read["pods"], facts_read["policies"])
        return ClusterFacts(
            server=self._session.access.server,
            version=version,
            server_time_s=server_time_s,
            our_time_s=our_time_s,
            namespace=self._namespace or "",
            answers=await self._answers(facts_read["part_pods"], facts_read["playground"]),
            webhook_deployments=webhook_deployments,
            endpoint_slices=endpoint_slices,
            own_roles=roles,
            own_bindings=bindings,
            network_policies=policies,
            policy_pods=policy_pods,
            owners=await self._owners(facts_read["pods"]),
            **await self._claims(facts_read["nodes"]),
            **facts_read,
        )

    async def _together(self, **reads: Awaitable[Any]) -> dict[str, Any]:
        values = await asyncio.gather(*reads.values())
        return dict(zip(reads, values, strict=True))

    async def _or_unread(self, read: Callable[[], Awaitable[T]]) -> T | Unread:
        try:
            async with self._turn:
                return await read()
        except ApiError as error:
            if error.status == 401:
                raise  # the credential is rejected: every check would report the same, or that things are well that it never saw
            return Unread(str(error), absent=error.not_found, refused=error.status == 403)
        except (KubeError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return Unread(str(error))

    async def _read_object(self, path: str) -> Any:
        answer = await self._session.request("GET", path, timeout_s=self._timeout_s)
        try:
            return msgspec.json.decode(answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedAnswer(path, str(error)) from error

    async def _raw(self, path: str, params: dict[str, str] | None = None) -> list[msgspec.Raw]:
        pages = list_pages(self._session, path, params, timeout_s=self._timeout_s)
        return [item async for page in pages for item in page.items]

    async def _objects(self, path: str, params: dict[str, str] | None = None) -> list[Json]:
        return [msgspec.json.decode(item) for item in await self._raw(path, params)]

    async def _listed(self, path: str, params: dict[str, str] | None = None) -> list[Json] | Unread:
        return await self._or_unread(lambda: self._objects(path, params))

    async def _named(self, path: str, name: str) -> list[Json] | Unread:
        if self._namespace is not None:
            path = _within(path, self._namespace)
        return await self._listed(path, _by_name(name))

    async def _elsewhere(self) -> dict[str, list[str]]:
        """Objects of the charts in other namespaces than the given one; namespaces that may not be read are left out."""
        namespaces_by_field: dict[str, list[str]] = {}
        for field, (path, name) in (_CHARTS if self._namespace is not None else {}).items():
            listed = await self._listed(path, _by_name(name))
            places = (
                set()
                if isinstance(listed, Unread)
                else {str(at(item, "metadata", "namespace")) for item in listed}
            )
            if places - {self._namespace}:
                namespaces_by_field[field] = sorted(places - {self._namespace})
        return namespaces_by_field

    async def _removals(self) -> list[Json] | Unread:
        path = "/apis/apps/v1/deployments"
        listed = await self._listed(path, _by_name(REMOVAL))
        if isinstance(listed, Unread) and self._namespace is not None:
            return await self._named(path, REMOVAL)
        return listed

    async def nodes(self) -> list[SeenNode] | Unread:
        """All nodes in their current state."""

        async def read() -> list[SeenNode]:
            raws = map(bytes, await self._raw("/api/v1/nodes"))
            return [SeenNode(decode_node(raw), _DETAILS.decode(raw)) for raw in raws]

        return await self._or_unread(read)

    async def _pods(self) -> list[Pod]:
        """Pods that may request GPUs of ours, also under misspelt names: there may be many others."""
        self._all_pods = [bytes(raw) for raw in await self._raw("/api/v1/pods")]
        return [decode_pod(text) for text in self._all_pods if any(word in text for word in _OF_GPUS)]

    async def _governed(self, pods: list[Pod] | Unread, policies: list[Json] | Unread) -> list[Pod] | Unread:
        """All pods of namespaces with a ResourcePolicy."""
        if isinstance(pods, Unread):
            return pods
        spaces = (
            {}
            if isinstance(policies, Unread)
            else {at(policy, "metadata", "namespace") for policy in policies}
        )

        async def read() -> list[Pod]:
            if not spaces:
                return []
            return [
                decode_pod(text) for text in self._all_pods if _HEAD.decode(text).metadata.namespace in spaces
            ]

        return await self._or_unread(read)

    async def _namespaces(self) -> frozenset[str] | Unread:
        listed = await self._listed("/api/v1/namespaces")
        return listed if isinstance(listed, Unread) else frozenset(map(name_of, listed))

    async def _owners(self, pods: list[Pod] | Unread) -> list[Json] | Unread:
        """The owners of pending gangs' pods; missing ones are left out."""
        if isinstance(pods, Unread):
            return pods
        wanted = dict.fromkeys(
            f"{_OWNER_PATHS[owner.kind].format(segment(pod.metadata.namespace))}/{segment(owner.name)}"
            for pod in pods
            if not pod.spec.node_name and names.LABEL_GANG_NAME in (pod.metadata.labels or {})
            for owner in pod.metadata.owner_references or ()
            if owner.controller and owner.kind in _OWNER_PATHS
        )
        owners: list[Json] = []
        for path in list(wanted)[:_MAX_OWNERS]:
            owner = await self._or_unread(partial(self._read_object, path))
            if not isinstance(owner, Unread):
                owners.append(owner)
            elif not owner.absent:
                return owner
        return owners

    async def _rights(self) -> dict[str, bool] | Unread:
        async def is_allowed(verb: str, group: str, resource: str, sub: str) -> bool:
            attributes = {"verb": verb, "group": group, "resource": resource, "subresource": sub}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            }
            answer = await self._session.request(
                "POST",
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                body=msgspec.json.encode(review),
                timeout_s=self._timeout_s,
                idempotent=True,
            )
            return bool(at(msgspec.json.decode(answer), "status", "allowed"))

        async def read() -> dict[str, bool]:
            allowed = await asyncio.gather(*(is_allowed(*right) for right in READS))
            return dict(zip(map(right_name, READS), allowed, strict=True))

        return await self._or_unread(read)

    async def _claims(self, nodes: list[SeenNode] | Unread) -> dict[str, Any]:
        """What ResourceClaims need, if a node is in mode ``dra``."""
        if isinstance(nodes, Unread) or not claiming_nodes(nodes):
            return {}

        async def slices() -> Collection[ResourceSlice]:
            params = {"fieldSelector": f"spec.driver={names.DRA_DRIVER}"}
            items = await self._objects(f"{_CLAIMS_API}/resourceslices", params)
            return msgspec.convert(items, list[ResourceSlice])

        async def classes() -> list[str]:
            return [name_of(item) for item in await self._objects(f"{_CLAIMS_API}/deviceclasses")]

        async def features() -> dict[str, bool]:
            answer = await self._session.request("GET", "/metrics", timeout_s=self._timeout_s)
            found = _FEATURE.findall(answer.decode(errors="replace"))
            return {name: value == "1" for name, value in found}

        read = await self._together(
            slices=self._or_unread(slices),
            device_classes=self._or_unread(classes),
            features=self._or_unread(features),
        )
        if isinstance(read["features"], Unread):
            # Few may read the API server's metrics, and that is no reason to ask for it.
            read["features"] = Unread(read["features"].why)
        return read

    async def _policy_bindings(self) -> list[Json] | Unread:
        bindings: list[Json] = []
        for kind in ("validating", "mutating"):
            listed = await self._listed(f"{_ADMISSION}/v1/{kind}admissionpolicybindings")
            if isinstance(listed, Unread):
                if not listed.absent:
                    return listed
                continue
            bindings += listed
        return bindings

    async def _webhooks(self) -> list[Json] | Unread:
        configurations: list[Json] = []
        for kind in ("validating", "mutating"):
            listed = await self._listed(
                f"{_ADMISSION}/v1/{kind}webhookconfigurations", _by_name(CONFIGURATION)
            )
            if isinstance(listed, Unread):
                return listed
            configurations += listed
        return configurations

    async def _behind(
        self, webhooks: list[Json] | Unread, deployments: list[Json] | Unread
    ) -> tuple[list[Json] | Unread, list[Json] | Unread]:
        """The webhook's Deployments, and the EndpointSlices of its Service and the scheduler's: read in their namespaces only."""
        hooked = [] if isinstance(webhooks, Unread) else list(webhook_places(webhooks))
        installed = [] if isinstance(deployments, Unread) else [name_of(item) for item in deployments]
        served = (names.SCHEDULER_NAME, DASHBOARD)
        services = {*hooked, *((key.partition("/")[0], name) for key in installed for name in served)}
        return await asyncio.gather(
            self._all(
                self._listed(_within("/apis/apps/v1/deployments", namespace), _by_name(name))
                for namespace, name in hooked
            ),
            self._all(
                self._listed(
                    _within("/apis/discovery.k8s.io/v1/endpointslices", namespace),
                    {"labelSelector": f"{SERVICE_LABEL}={name}"},
                )
                for namespace, name in sorted(services)
            ),
        )

    async def _own(
        self, webhooks: list[Json] | Unread, deployments: list[Json] | Unread
    ) -> tuple[list[Json] | Unread, list[Json] | Unread, list[Json] | Unread]:
        """Roles and bindings where the charts create some, and NetworkPolicies of the webhook's namespaces."""
        hooked, installed = (
            {
                str(at(item, "metadata", "namespace"))
                for item in (() if isinstance(objects, Unread) else objects)
            }
            for objects in (webhooks, deployments)
        )
        places = sorted(hooked | installed | ({_QUOTAS_IN} if installed else set()))
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        return await asyncio.gather(
            self._all(self._listed(_within(f"{rbac}/roles", namespace)) for namespace in places),
            self._all(self._listed(_within(f"{rbac}/rolebindings", namespace)) for namespace in places),
            self._all(
                self._listed(_within("/apis/networking.k8s.io/v1/networkpolicies", namespace))
                for namespace in sorted(hooked)
            ),
        )

    async def _all(self, reads: Iterable[Awaitable[list[Json] | Unread]]) -> list[Json] | Unread:
        """The items of all lists, or the first error."""
        items: list[Json] = []
        for listed in await asyncio.gather(*reads):
            if isinstance(listed, Unread):
                return listed
            items += listed
        return items

    async def _node_leases(self) -> dict[str, float] | Unread:
        listed = await self._listed("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
        if isinstance(listed, Unread):
            return listed
        times = {name_of(lease).partition("/")[2]: renewed_s(lease) for lease in listed}
        return {name: at_s for name, at_s in times.items() if at_s is not None}

    async def _playground(self) -> Json | None:
        config_map = await self._or_unread(
            lambda: self._read_object(f"/api/v1/namespaces/kube-system/configmaps/{PLAYGROUND}")
        )
        return None if isinstance(config_map, Unread) else config_map

    async def _is_namespace(self, name: str | None) -> bool:
        """Whether the namespace exists; false only on a 404 of the API server."""
        if name is None:
            return True
        namespace = await self._or_unread(lambda: self._read_object(f"/api/v1/namespaces/{segment(name)}"))
        return not (isinstance(namespace, Unread) and namespace.absent)

    async def _answers(self, pods: list[Json] | Unread, playground: Json | None) -> dict[str, str]:
        if playground is not None:
            url = str(at(playground, "data", "scheduler") or "")
            return {"the extender": await _ready_at(url, self._timeout_s)}
        if isinstance(pods, Unread):
            return {}
        extenders = [pod for pod in pods if health_port(pod)]
        answers = await asyncio.gather(*(self._proxied(pod) for pod in extenders))
        return {name_of(pod): answer for pod, answer in zip(extenders, answers, strict=True)}

    async def _proxied(self, pod: Json) -> str:
        namespace, _, name = name_of(pod).partition("/")
        path = f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}:{health_port(pod)}/proxy/readyz"
        try:
            async with self._turn:
                await self._session.request("GET", path, timeout_s=self._timeout_s)
        except ApiError as error:
            return f"?{error}" if error.status == 403 else str(error)
        except KubeError as error:
            return str(error)
        return ""


def _within(path: str, namespace: str) -> str:
    """The path for one namespace, from the path for all."""
    head, _, plural = path.rpartition("/")
    return f"{head}/namespaces/{segment(namespace)}/{plural}"


def _by_name(name: str) -> dict[str, str]:
    return {"fieldSelector": f"metadata.name={name}"}


def right_name(right: tuple[str, str, str, str]) -> str:
    """``list nodes``, ``get pods/proxy``, ``list leases.coordination.k8s.io``."""
    verb, group, resource, sub = right
    return f"{verb} {resource}{f'/{sub}' if sub else ''}{f'.{group}' if group else ''}"


def health_port(pod: Json) -> int:
    """The port of an extender's probes; 0 for other pods."""
    for container in at(pod, "spec", "containers") or ():
        if container.get("name") == "extender":
            ports = {port.get("name"): int(port["containerPort"]) for port in container.get("ports") or ()}
            # In earlier charts probes are at the port of metrics.
            return ports.get("probes") or ports.get("health", 0)
    return 0


def renewed_s(lease: Json) -> float | None:
    """When a Lease was last renewed, in Unix seconds."""
    text = at(lease, "spec", "renewTime")
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def _date(text: str) -> float | Unread:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return Unread("the API server does not report its time")


async def _ready_at(url: str, timeout_s: float) -> str:
    """The response to ``GET URL/readyz``. The address comes from the cluster, so only addresses of this machine are accepted."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname != "127.0.0.1" or not parts.port:
        return f"{url or 'nothing'} is not an address of this machine"
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            answer = (await reader.read(1 << 16)).decode(errors="replace")
            writer.close()
    except TimeoutError:
        return "no answer in time"
    except OSError as error:
        return f"no answer: {error.strerror or error}"
    head, _, body = answer.partition("\r\n\r\n")
    if re.match(r"HTTP/1\.[01] 200 ", head):
        return ""
    return body.strip()[:_LONGEST_ANSWER] or head.partition("\r\n")[0]


def named(objects: Iterable[Json], name: str) -> Json | None:
    """The object with that name, in any namespace."""
    return next((item for item in objects if at(item, "metadata", "name") == name), None)
