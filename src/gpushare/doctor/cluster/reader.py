"""Reads what is looked at of a cluster: as its user, nothing but reads, each with a bound, many at once."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from gpushare.api import names
from gpushare.api.objects import Pod, decode_node, decode_pod
from gpushare.doctor.cluster.checks.dashboard import SERVICE as DASHBOARD
from gpushare.doctor.cluster.facts import (
    SERVICE_LABEL,
    ClusterFacts,
    Json,
    NodeDetails,
    SeenNode,
    at,
    name_of,
    webhook_places,
)
from gpushare.doctor.findings import Unread
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.client.listing import list_pages
from gpushare.kube.client.session import Session, segment

T = TypeVar("T")

#: The names that the charts give.
CONFIGURATION: Final = "gpushare-admission"
REMOVAL: Final = "gpushare-uninstall"
PLAYGROUND: Final = "gpushare-playground"
#: What this program reads beyond what it needs at all: VERB, group, resource, subresource.
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
#: Elastic quotas count there, and kube-scheduler is told there how clients authenticate.
_QUOTAS_IN: Final = "kube-system"
#: One of these is in each pod that asks for a GPU of ours, or has a name like ours.
_OF_GPUS: Final = (b"gpu", b"GPU", b"Gpu", b"gup", b"pgu")
#: Kind of a controller → where it is read.
_MAKERS: Final = {
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "ReplicaSet": "/apis/apps/v1/namespaces/{}/replicasets",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
}
#: Each is a question of its own.
_MOST_MAKERS: Final = 100
#: Field of the facts → where what a chart makes is read, and its name.
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


class _Meta(msgspec.Struct):
    namespace: str = ""


class _Head(msgspec.Struct):
    metadata: _Meta


_HEAD: Final = msgspec.json.Decoder(_Head)


class Reader:
    """Reads a cluster over ``session``; every answer within ``timeout_s`` seconds."""

    def __init__(self, session: Session, timeout_s: float, namespace: str | None = None) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self._namespace = namespace
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._all_pods: list[bytes] = []

    async def read(self) -> ClusterFacts:
        """All of it; raises ``KubeError`` where the API server does not answer at all, or knows nobody by the credential."""
        version = await self._got("/version")
        our_time_s = time.time()
        found = await self._together(
            rights=self._rights(),
            nodes=self.nodes(),
            pods=self._tried(self._pods),
            **{field: self._named(*where) for field, where in _CHARTS.items()},
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
            node_leases=self._node_leases(),
            playground=self._playground(),
            namespace_is_there=self._is_namespace(self._namespace),
        )
        webhook_deployments, endpoint_slices = await self._behind(found["webhooks"], found["deployments"])
        roles, bindings, policies = await self._own(webhook_deployments, found["deployments"])
        policy_pods = await self._governed(found["pods"], found["policies"])
        return ClusterFacts(
            server=self._session.access.server,
            version=version,
            server_time_s=_date(self._session.server_date),
            our_time_s=our_time_s,
            namespace=self._namespace or "",
            answers=await self._answers(found["part_pods"], found["playground"]),
            webhook_deployments=webhook_deployments,
            endpoint_slices=endpoint_slices,
            own_roles=roles,
            own_bindings=bindings,
            network_policies=policies,
            policy_pods=policy_pods,
            owners=await self._owners(found["pods"]),
            **found,
        )

    async def _together(self, **reads: Awaitable[Any]) -> dict[str, Any]:
        values = await asyncio.gather(*reads.values())
        return dict(zip(reads, values, strict=True))

    async def _tried(self, read: Callable[[], Awaitable[T]]) -> T | Unread:
        try:
            async with self._turn:
                return await read()
        except ApiError as error:
            if error.status == 401:
                raise  # nobody is known by this credential: each check would say the same, or well of what it never saw
            return Unread(str(error), absent=error.not_found, refused=error.status == 403)
        except (KubeError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            return Unread(str(error))

    async def _got(self, path: str) -> Any:
        answer = await self._session.request("GET", path, timeout_s=self._timeout_s)
        return msgspec.json.decode(answer)

    async def _raw(self, path: str, params: dict[str, str] | None = None) -> list[msgspec.Raw]:
        pages = list_pages(self._session, path, params, timeout_s=self._timeout_s)
        return [item async for page in pages for item in page.items]

    async def _objects(self, path: str, params: dict[str, str] | None = None) -> list[Json]:
        return [msgspec.json.decode(item) for item in await self._raw(path, params)]

    async def _listed(self, path: str, params: dict[str, str] | None = None) -> list[Json] | Unread:
        return await self._tried(lambda: self._objects(path, params))

    async def _named(self, path: str, name: str) -> list[Json] | Unread:
        if self._namespace is not None:
            path = _within(path, self._namespace)
        return await self._listed(path, _by_name(name))

    async def _elsewhere(self) -> dict[str, list[str]]:
        """What the charts make in other namespaces than the one that was named; what may not be read is left out."""
        found: dict[str, list[str]] = {}
        for field, (path, name) in (_CHARTS if self._namespace is not None else {}).items():
            listed = await self._listed(path, _by_name(name))
            places = (
                set()
                if isinstance(listed, Unread)
                else {str(at(one, "metadata", "namespace")) for one in listed}
            )
            if places - {self._namespace}:
                found[field] = sorted(places - {self._namespace})
        return found

    async def _removals(self) -> list[Json] | Unread:
        path = "/apis/apps/v1/deployments"
        listed = await self._listed(path, _by_name(REMOVAL))
        if isinstance(listed, Unread) and self._namespace is not None:
            return await self._named(path, REMOVAL)
        return listed

    async def nodes(self) -> list[SeenNode] | Unread:
        """All nodes, as they are now."""

        async def read() -> list[SeenNode]:
            raws = map(bytes, await self._raw("/api/v1/nodes"))
            return [SeenNode(decode_node(raw), _DETAILS.decode(raw)) for raw in raws]

        return await self._tried(read)

    async def _pods(self) -> list[Pod]:
        """Those that may have to do with GPUs of ours, also by a name that is misspelt: there may be many others."""
        self._all_pods = [bytes(raw) for raw in await self._raw("/api/v1/pods")]
        return [decode_pod(text) for text in self._all_pods if any(word in text for word in _OF_GPUS)]

    async def _governed(self, pods: list[Pod] | Unread, policies: list[Json] | Unread) -> list[Pod] | Unread:
        """All pods of namespaces with a ResourcePolicy."""
        if isinstance(pods, Unread):
            return pods
        spaces = (
            {} if isinstance(policies, Unread) else {at(one, "metadata", "namespace") for one in policies}
        )

        async def read() -> list[Pod]:
            if not spaces:
                return []
            return [
                decode_pod(text) for text in self._all_pods if _HEAD.decode(text).metadata.namespace in spaces
            ]

        return await self._tried(read)

    async def _namespaces(self) -> frozenset[str] | Unread:
        listed = await self._listed("/api/v1/namespaces")
        return listed if isinstance(listed, Unread) else frozenset(map(name_of, listed))

    async def _owners(self, pods: list[Pod] | Unread) -> list[Json] | Unread:
        """Who makes the pods of gangs that wait; those that are gone are left out."""
        if isinstance(pods, Unread):
            return pods
        wanted = dict.fromkeys(
            f"{_MAKERS[one.kind].format(segment(pod.metadata.namespace))}/{segment(one.name)}"
            for pod in pods
            if not pod.spec.node_name and names.LABEL_GANG_NAME in (pod.metadata.labels or {})
            for one in pod.metadata.owner_references or ()
            if one.controller and one.kind in _MAKERS
        )
        found: list[Json] = []
        for path in list(wanted)[:_MOST_MAKERS]:
            got = await self._tried(partial(self._got, path))
            if not isinstance(got, Unread):
                found.append(got)
            elif not got.absent:
                return got
        return found

    async def _rights(self) -> dict[str, bool] | Unread:
        async def one(verb: str, group: str, resource: str, sub: str) -> bool:
            asked = {"verb": verb, "group": group, "resource": resource, "subresource": sub}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": asked},
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
            allowed = await asyncio.gather(*(one(*asked) for asked in READS))
            return dict(zip(map(right_name, READS), allowed, strict=True))

        return await self._tried(read)

    async def _policy_bindings(self) -> list[Json] | Unread:
        found: list[Json] = []
        for kind in ("validating", "mutating"):
            listed = await self._listed(f"{_ADMISSION}/v1/{kind}admissionpolicybindings")
            if isinstance(listed, Unread):
                if not listed.absent:
                    return listed
                continue
            found += listed
        return found

    async def _webhooks(self) -> list[Json] | Unread:
        found: list[Json] = []
        for kind in ("validating", "mutating"):
            listed = await self._listed(
                f"{_ADMISSION}/v1/{kind}webhookconfigurations", _by_name(CONFIGURATION)
            )
            if isinstance(listed, Unread):
                return listed
            found += listed
        return found

    async def _behind(
        self, webhooks: list[Json] | Unread, deployments: list[Json] | Unread
    ) -> tuple[list[Json] | Unread, list[Json] | Unread]:
        """The Deployments that answer for the webhook, and the EndpointSlices of its Service and the scheduler's: in their namespaces alone."""
        hooked = [] if isinstance(webhooks, Unread) else list(webhook_places(webhooks))
        installed = [] if isinstance(deployments, Unread) else [name_of(one) for one in deployments]
        served = (names.SCHEDULER_NAME, DASHBOARD)
        services = {*hooked, *((one.partition("/")[0], name) for one in installed for name in served)}
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
        """Roles and bindings where the charts have some, and NetworkPolicies of the webhook's namespaces."""
        hooked, installed = (
            {str(at(one, "metadata", "namespace")) for one in (() if isinstance(found, Unread) else found)}
            for found in (webhooks, deployments)
        )
        places = sorted(hooked | installed | ({_QUOTAS_IN} if installed else set()))
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        return await asyncio.gather(
            self._all(self._listed(_within(f"{rbac}/roles", one)) for one in places),
            self._all(self._listed(_within(f"{rbac}/rolebindings", one)) for one in places),
            self._all(
                self._listed(_within("/apis/networking.k8s.io/v1/networkpolicies", one))
                for one in sorted(hooked)
            ),
        )

    async def _all(self, reads: Iterable[Awaitable[list[Json] | Unread]]) -> list[Json] | Unread:
        """What all of them list, or what one of them could not."""
        found: list[Json] = []
        for listed in await asyncio.gather(*reads):
            if isinstance(listed, Unread):
                return listed
            found += listed
        return found

    async def _node_leases(self) -> dict[str, float] | Unread:
        listed = await self._listed("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
        if isinstance(listed, Unread):
            return listed
        times = {name_of(one).partition("/")[2]: renewed_s(one) for one in listed}
        return {name: at_s for name, at_s in times.items() if at_s is not None}

    async def _playground(self) -> Json | None:
        found = await self._tried(
            lambda: self._got(f"/api/v1/namespaces/kube-system/configmaps/{PLAYGROUND}")
        )
        return None if isinstance(found, Unread) else found

    async def _is_namespace(self, name: str | None) -> bool:
        """False only where the API server says that there is none."""
        if name is None:
            return True
        found = await self._tried(lambda: self._got(f"/api/v1/namespaces/{segment(name)}"))
        return not (isinstance(found, Unread) and found.absent)

    async def _answers(self, pods: list[Json] | Unread, playground: Json | None) -> dict[str, str]:
        if playground is not None:
            url = str(at(playground, "data", "scheduler") or "")
            return {"the extender": await _ready_at(url, self._timeout_s)}
        if isinstance(pods, Unread):
            return {}
        extenders = [pod for pod in pods if health_port(pod)]
        told = await asyncio.gather(*(self._proxied(pod) for pod in extenders))
        return {name_of(pod): said for pod, said in zip(extenders, told, strict=True)}

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
    """The path of one namespace's, from that of all of them."""
    head, _, plural = path.rpartition("/")
    return f"{head}/namespaces/{segment(namespace)}/{plural}"


def _by_name(name: str) -> dict[str, str]:
    return {"fieldSelector": f"metadata.name={name}"}


def right_name(asked: tuple[str, str, str, str]) -> str:
    """``list nodes``, ``get pods/proxy``, ``list leases.coordination.k8s.io``."""
    verb, group, resource, sub = asked
    return f"{verb} {resource}{f'/{sub}' if sub else ''}{f'.{group}' if group else ''}"


def health_port(pod: Json) -> int:
    """Where an extender's pod answers probes; 0 for all other pods."""
    for container in at(pod, "spec", "containers") or ():
        if container.get("name") == "extender":
            ports = {one.get("name"): int(one["containerPort"]) for one in container.get("ports") or ()}
            # In charts of before, probes are where metrics are.
            return ports.get("probes") or ports.get("health", 0)
    return 0


def renewed_s(lease: Json) -> float | None:
    """When a Lease was renewed last, unix seconds."""
    text = at(lease, "spec", "renewTime")
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def _date(text: str) -> float | Unread:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError):
        return Unread("the API server does not say what time it is")


async def _ready_at(url: str, timeout_s: float) -> str:
    """What ``GET URL/readyz`` says; only this machine is asked: the address comes from the cluster."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname != "127.0.0.1" or not parts.port:
        return f"{url or 'nothing'} is no address of this machine"
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
    """The object of that name, whatever its namespace."""
    return next((one for one in objects if at(one, "metadata", "name") == name), None)
