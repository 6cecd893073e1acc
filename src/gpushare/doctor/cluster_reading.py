"""Reads what is looked at of a cluster: as its user, nothing but reads, each with a bound, many at once."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from gpushare.doctor.checks_dashboard import SERVICE as DASHBOARD
from gpushare.doctor.cluster_facts import (
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
from gpushare.kube.errors import ApiError, KubeError
from gpushare.kube.listing import list_pages
from gpushare.kube.session import Session, segment
from gpushare.model import names
from gpushare.model.objects import Pod, decode_node, decode_pod

T = TypeVar("T")

#: The names that the charts give.
CONFIGURATION: Final = "gpushare-admission"
PLAYGROUND: Final = "gpushare-playground"
#: What this program reads beyond what it needs at all: VERB, group, resource, subresource.
READS: Final = (
    ("list", "", "nodes", ""),
    ("list", "", "pods", ""),
    ("list", "", "configmaps", ""),
    ("get", "", "pods", "proxy"),
    ("list", "apps", "daemonsets", ""),
    ("list", "apps", "deployments", ""),
    ("list", "coordination.k8s.io", "leases", ""),
    ("list", "discovery.k8s.io", "endpointslices", ""),
    ("list", "rbac.authorization.k8s.io", "clusterroles", ""),
    ("list", "rbac.authorization.k8s.io", "clusterrolebindings", ""),
    ("list", "rbac.authorization.k8s.io", "roles", ""),
    ("list", "rbac.authorization.k8s.io", "rolebindings", ""),
    ("list", "networking.k8s.io", "networkpolicies", ""),
    ("list", "apiextensions.k8s.io", "customresourcedefinitions", ""),
    ("list", names.POLICY_GROUP, names.POLICY_PLURAL, ""),
    ("list", "admissionregistration.k8s.io", "validatingadmissionpolicies", ""),
    ("list", "admissionregistration.k8s.io", "validatingwebhookconfigurations", ""),
)
#: Elastic quotas count there, and kube-scheduler is told there how clients authenticate.
_QUOTAS_IN: Final = "kube-system"
_PARTS: Final = "app.kubernetes.io/part-of=gpushare"
_DETAILS: Final = msgspec.json.Decoder(NodeDetails)
_ADMISSION: Final = "/apis/admissionregistration.k8s.io"
_AT_ONCE: Final = 8
_LONGEST_ANSWER: Final = 300


class Reader:
    """Reads a cluster over ``session``; every answer within ``timeout_s`` seconds."""

    def __init__(self, session: Session, timeout_s: float, namespace: str | None = None) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self._namespace = namespace
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def read(self) -> ClusterFacts:
        """All of it; raises ``KubeError`` where the API server does not answer at all, or knows nobody by the credential."""
        version = await self._got("/version")
        our_time_s = time.time()
        found = await self._together(
            rights=self._rights(),
            nodes=self._nodes(),
            pods=self._tried(self._pods),
            daemon_sets=self._named("/apis/apps/v1/daemonsets", names.DAEMON_SET_NAME),
            deployments=self._named("/apis/apps/v1/deployments", names.SCHEDULER_NAME),
            config_maps=self._named("/api/v1/configmaps", names.SCHEDULER_NAME),
            leases=self._named("/apis/coordination.k8s.io/v1/leases", names.SCHEDULER_NAME),
            part_pods=self._listed("/api/v1/pods", {"labelSelector": _PARTS}),
            roles=self._listed("/apis/rbac.authorization.k8s.io/v1/clusterroles"),
            bindings=self._listed("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
            definitions=self._listed("/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
            policies=self._listed(f"/apis/{names.POLICY_GROUP}/{names.POLICY_VERSION}/{names.POLICY_PLURAL}"),
            validating_policies=self._listed(f"{_ADMISSION}/v1/validatingadmissionpolicies"),
            mutating_policies=self._listed(f"{_ADMISSION}/v1/mutatingadmissionpolicies"),
            policy_bindings=self._policy_bindings(),
            webhooks=self._webhooks(),
            node_leases=self._node_leases(),
            playground=self._playground(),
        )
        webhook_deployments, endpoint_slices = await self._behind(found["webhooks"], found["deployments"])
        roles, bindings, policies = await self._own(webhook_deployments, found["deployments"])
        return ClusterFacts(
            server=self._session.access.server,
            version=version,
            server_time_s=_date(self._session.server_date),
            our_time_s=our_time_s,
            answers=await self._answers(found["part_pods"], found["playground"]),
            webhook_deployments=webhook_deployments,
            endpoint_slices=endpoint_slices,
            own_roles=roles,
            own_bindings=bindings,
            network_policies=policies,
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

    async def _nodes(self) -> list[SeenNode] | Unread:
        async def read() -> list[SeenNode]:
            raws = map(bytes, await self._raw("/api/v1/nodes"))
            return [SeenNode(decode_node(raw), _DETAILS.decode(raw)) for raw in raws]

        return await self._tried(read)

    async def _pods(self) -> list[Pod]:
        """Those that have to do with GPUs of ours: there may be many others."""
        found = []
        for raw in await self._raw("/api/v1/pods"):
            text = bytes(raw)
            if b"aliyun.com/gpu" in text or b"gpushare" in text or b"GPU_MEM_IDX" in text:
                found.append(decode_pod(text))
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
            return next(
                (
                    int(one["containerPort"])
                    for one in container.get("ports") or ()
                    if one.get("name") == "health"
                ),
                0,
            )
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
