"""Typed reads and writes of the few kinds that gpushare uses, over a ``Session``.

Every method raises ``ApiError``, ``Unreachable``, ``CredentialError``, ``InvalidName`` or ``MalformedAnswer``.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, TypeVar

import msgspec

from gpushare.api import names
from gpushare.api.disruption import DisruptionBudget, decode_budget
from gpushare.api.node.hosting import (
    Guest,
    HostingNode,
    TaintedNode,
    decode_guest,
    decode_hosting,
    decode_tainted,
)
from gpushare.api.objects import Node, Pod, decode_node, decode_pod
from gpushare.kube.client.errors import MalformedAnswer
from gpushare.kube.client.listing import list_pages
from gpushare.kube.client.session import MERGE_PATCH, STRATEGIC_PATCH, Session, segment

T = TypeVar("T")


class _BindingMeta(msgspec.Struct, gc=False):
    name: str
    namespace: str
    uid: str
    annotations: Mapping[str, str]


class _Target(msgspec.Struct, gc=False, rename={"api_version": "apiVersion"}):
    name: str
    api_version: str = "v1"
    kind: str = "Node"


class _Binding(msgspec.Struct, gc=False, rename={"api_version": "apiVersion"}):
    metadata: _BindingMeta
    target: _Target
    api_version: str = "v1"
    kind: str = "Binding"


class _LeaseSpec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None


class _Lease(msgspec.Struct):
    spec: _LeaseSpec = msgspec.field(default_factory=_LeaseSpec)


_LEASE: Final = msgspec.json.Decoder(_Lease)
_encode = msgspec.json.Encoder().encode


class Annotator(Protocol):
    """Writes annotations of pods: ``Client``, or a fake in tests."""

    async def annotate_pod(
        self, namespace: str, name: str, annotations: Mapping[str, str | None], *, uid: str
    ) -> None:
        """Set annotations, or with ``None`` remove them; raises ``KubeError``."""


class NodeWriter(Protocol):
    """Writes nodes: ``Client``, or a fake in tests."""

    async def annotate_node(
        self,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        """Set annotations and labels in one write, or with ``None`` remove them; raises ``KubeError``."""

    async def patch_node_capacity(self, name: str, resources: Mapping[str, str | None]) -> None:
        """Set capacity and allocatable, or with ``None`` remove them; raises ``KubeError``."""

    async def set_node_condition(self, name: str, kind: str, fields: Mapping[str, str] | None) -> None:
        """Set fields of the node's condition ``kind``, or with ``None`` remove it; raises ``KubeError``."""


class Client:
    """Reads and writes pods and nodes. ``timeout_s`` bounds each call, in seconds."""

    def __init__(self, session: Session, *, timeout_s: float = 10.0) -> None:
        self._session = session
        self._timeout_s = timeout_s

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """The current pod; ``ApiError.not_found`` if there is none."""
        return await self._get(_pod_path(namespace, name), decode_pod)

    async def list_pods(
        self, *, namespace: str | None = None, field_selector: str = "", label_selector: str = ""
    ) -> list[Pod]:
        """All pods of a namespace, or of all, that match the selectors."""
        path = f"/api/v1/namespaces/{segment(namespace)}/pods" if namespace else "/api/v1/pods"
        return await self._list(path, decode_pod, field_selector, label_selector)

    async def bind(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        """Bind the pod of that UID to a node and annotate it, in one write.

        ``ApiError.conflict``: the pod is bound already, or another pod has its name now. After ``Unreachable`` with ``sent`` other than
        ``False`` the pod may be bound: read it.
        """
        body = _encode(_Binding(_BindingMeta(name, namespace, uid, annotations), _Target(node)))
        await self._session.request(
            "POST", f"{_pod_path(namespace, name)}/binding", body=body, timeout_s=self._timeout_s
        )

    async def annotate_pod(
        self,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        uid: str,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        """Set annotations, and labels in the same write, or with ``None`` remove them.

        ``ApiError.conflict`` if the pod's UID is another.
        """
        metadata: dict[str, object] = {"uid": uid, "annotations": annotations}
        if labels:
            metadata["labels"] = labels
        await self._merge(_pod_path(namespace, name), {"metadata": metadata})

    async def evict_pod(self, namespace: str, name: str, *, uid: str) -> None:
        """Evict the pod of that UID, if its disruption budgets allow.

        ``ApiError`` with status 429: a budget forbids it now.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        await self._session.request(
            "POST", f"{_pod_path(namespace, name)}/eviction", body=_encode(body), timeout_s=self._timeout_s
        )

    async def nominate(self, namespace: str, name: str, node: str, *, uid: str) -> None:
        """Nominate a node for a pending pod; an empty ``node`` clears the nomination."""
        await self._merge(
            f"{_pod_path(namespace, name)}/status",
            {"metadata": {"uid": uid}, "status": {"nominatedNodeName": node or None}},
        )

    async def report_quotas(
        self, namespace: str, name: str, status: Mapping[str, object], *, uid: str
    ) -> None:
        """Set an ElasticQuotaTree's status; ``ApiError.conflict`` if its UID differs."""
        path = (
            f"/apis/{names.QUOTA_GROUP}/namespaces/{segment(namespace)}/{names.QUOTA_PLURAL}/{segment(name)}"
        )
        await self._merge(f"{path}/status", {"metadata": {"uid": uid}, "status": status})

    async def list_budgets(self) -> list[DisruptionBudget]:
        """The PodDisruptionBudgets of all namespaces."""
        return await self._list("/apis/policy/v1/poddisruptionbudgets", decode_budget, "", "")

    async def write_policy_status(self, namespace: str, name: str, status: object) -> None:
        """Merge ``status`` into a ResourcePolicy's status."""
        path = f"/apis/{names.POLICY_GROUP}/{names.POLICY_VERSION}/namespaces/{segment(namespace)}"
        await self._merge(f"{path}/{names.POLICY_PLURAL}/{segment(name)}/status", {"status": status})

    async def lease_holder(self, namespace: str, name: str) -> str:
        """The holder of a Lease; empty if there is none."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{segment(namespace)}/leases/{segment(name)}"
        return (await self._get(path, _LEASE.decode)).spec.holder_identity or ""

    async def get_guest(self, namespace: str, name: str) -> Guest:
        """As ``get_pod``, with everything the pod requests of its node."""
        return await self._get(_pod_path(namespace, name), decode_guest)

    async def list_guests(self, node: str) -> list[Guest]:
        """The pods of a node, including finished ones, with everything they request of it."""
        return await self._list("/api/v1/pods", decode_guest, f"spec.nodeName={node}", "")

    async def list_hosting(self, node: str) -> list[HostingNode]:
        """The node of that name with its taints, or none; needs only permission to list nodes."""
        return await self._list("/api/v1/nodes", decode_hosting, f"metadata.name={node}", "")

    async def create_pod(self, manifest: Mapping[str, Any]) -> None:
        """Create a pod in its namespace; ``ApiError.conflict`` if its name exists."""
        path = f"/api/v1/namespaces/{segment(manifest['metadata']['namespace'])}/pods"
        await self._session.request("POST", path, body=_encode(manifest), timeout_s=self._timeout_s)

    async def delete_pod(self, namespace: str, name: str, *, uid: str) -> None:
        """Delete the pod of that UID immediately, ignoring disruption budgets; ``ApiError.conflict`` if its UID differs."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": uid},
        }
        await self._session.request(
            "DELETE", _pod_path(namespace, name), body=_encode(body), timeout_s=self._timeout_s
        )

    async def set_condition(
        self, namespace: str, name: str, condition: Mapping[str, str], *, uid: str
    ) -> None:
        """Set the first condition of a pod that has none."""
        patch = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
        await self._merge(f"{_pod_path(namespace, name)}/status", patch)

    async def list_tainted(self, name: str) -> list[TaintedNode]:
        """The node of that name with its current taints, or none."""
        return await self._list("/api/v1/nodes", decode_tainted, f"metadata.name={name}", "")

    async def set_taints(self, name: str, taints: list[dict[str, Any]], *, resource_version: str) -> None:
        """Replace a node's taints; ``ApiError.conflict`` if it changed since ``resource_version``."""
        patch = {"metadata": {"resourceVersion": resource_version}, "spec": {"taints": taints}}
        await self._merge(_node_path(name), patch)

    async def list_nodes(self, *, label_selector: str = "") -> list[Node]:
        """All nodes that match the selector."""
        return await self._list("/api/v1/nodes", decode_node, "", label_selector)

    async def annotate_node(
        self,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        """Set annotations and labels of a node in one write, or remove them with ``None``."""
        metadata: dict[str, object] = {"annotations": annotations}
        if labels:
            metadata["labels"] = labels
        await self._merge(_node_path(name), {"metadata": metadata})

    async def patch_node_capacity(self, name: str, resources: Mapping[str, str | None]) -> None:
        """Set extended resources in the node's status, or remove them with ``None``.

        Sets both capacity and allocatable: the kubelet would copy capacity to allocatable only with its next status update.
        """
        await self._merge(
            f"{_node_path(name)}/status", {"status": {"capacity": resources, "allocatable": resources}}
        )

    async def set_node_condition(self, name: str, kind: str, fields: Mapping[str, str] | None) -> None:
        """Set fields of one of the node's conditions, or remove it with ``None``; others do not change."""
        patch = {"$patch": "delete", "type": kind} if fields is None else {"type": kind, **fields}
        await self._merge(
            f"{_node_path(name)}/status", {"status": {"conditions": [patch]}}, content_type=STRATEGIC_PATCH
        )

    async def _get(self, path: str, decode: Callable[[bytes], T]) -> T:
        answer = await self._session.request("GET", path, timeout_s=self._timeout_s)
        try:
            return decode(answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise MalformedAnswer(path, f"unexpected response ({error})") from error

    async def _list(
        self, path: str, decode: Callable[[bytes], T], field_selector: str, label_selector: str
    ) -> list[T]:
        params = {}
        if field_selector:
            params["fieldSelector"] = field_selector
        if label_selector:
            params["labelSelector"] = label_selector
        items: list[T] = []
        async for page in list_pages(self._session, path, params, timeout_s=self._timeout_s):
            try:
                items.extend(decode(bytes(item)) for item in page.items)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise MalformedAnswer(path, f"unexpected item in the response ({error})") from error
        return items

    async def _merge(self, path: str, patch: object, *, content_type: str = MERGE_PATCH) -> None:
        # Idempotent, so it may be retried when the server requests it.
        await self._session.request(
            "PATCH",
            path,
            body=_encode(patch),
            content_type=content_type,
            timeout_s=self._timeout_s,
            idempotent=True,
        )


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{segment(namespace)}/pods/{segment(name)}"


def _node_path(name: str) -> str:
    return f"/api/v1/nodes/{segment(name)}"
