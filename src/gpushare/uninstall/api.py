"""API requests of the clean-up, and the objects of the clean-up itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from gpushare.api import names
from gpushare.api.objects import Node
from gpushare.kube.client.client import Client
from gpushare.kube.client.errors import ApiError, MalformedAnswer
from gpushare.kube.client.session import MERGE_PATCH, Session, segment

T = TypeVar("T")

_TIMEOUT_S: Final = 10.0
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    namespace: str = ""
    deletion_timestamp: str | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


class _List(msgspec.Struct):
    items: list[_Object]


@dataclass(frozen=True, slots=True)
class Agents:
    """The agents' namespace, the name of their DaemonSet in any namespace, and its pods' labels (``key=value``)."""

    namespace: str
    daemon_set: str
    selector: str


class ApiCluster:
    """Sends the requests over a session."""

    def __init__(self, session: Session, agents: Agents) -> None:
        self._session = session
        self._agents = agents
        self._client = Client(session, timeout_s=_TIMEOUT_S)

    async def installed_in(self) -> str | None:
        """The namespace with a DaemonSet of that name that is not being deleted."""
        # RBAC allows only this name.
        chosen = {"fieldSelector": f"metadata.name={self._agents.daemon_set}"}
        found = (await _get(self._session, "/apis/apps/v1/daemonsets", _List, chosen)).items
        return next((one.metadata.namespace for one in found if not one.metadata.deletion_timestamp), None)

    async def count_agents(self) -> int:
        """Agent pods that have not ended."""
        pods = await self._client.list_pods(
            namespace=self._agents.namespace, label_selector=self._agents.selector
        )
        return sum(not pod.finished for pod in pods)

    async def list_nodes(self, *, label_selector: str = "") -> list[Node]:
        """All nodes that match the selector."""
        return await self._client.list_nodes(label_selector=label_selector)

    async def annotate_node(
        self,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        labels: Mapping[str, str | None] | None = None,
    ) -> None:
        """Set annotations and labels, or remove them with ``None``."""
        await self._client.annotate_node(name, annotations, labels=labels)

    async def patch_node_capacity(self, name: str, resources: Mapping[str, str | None]) -> None:
        """Set capacity and allocatable, or remove them with ``None``."""
        await self._client.patch_node_capacity(name, resources)

    async def remove_slices(self) -> None:
        """Remove the ResourceSlices of our DRA driver; raises ``KubeError``. Kubernetes before 1.34 has none."""
        try:
            await self._session.request(
                "DELETE",
                "/apis/resource.k8s.io/v1/resourceslices",
                params={"fieldSelector": f"spec.driver={names.DRA_DRIVER}"},
                timeout_s=_TIMEOUT_S,
                idempotent=True,
            )
        except ApiError as error:
            if not error.not_found:
                raise

    async def set_node_condition(self, name: str, kind: str, said: Mapping[str, str] | None) -> None:
        """Set fields of the node's condition ``kind``, or remove it with ``None``."""
        await self._client.set_node_condition(name, kind, said)


class OwnObjects:
    """The clean-up's own objects: all have one name, and are deleted with their ClusterRole.

    Who removes itself object by object loses its rights on the way; so all are tied to one, which goes last, and
    the garbage collector takes the rest.
    """

    def __init__(self, session: Session, namespace: str, name: str) -> None:
        self._session = session
        self._name = name
        own, place = segment(name), segment(namespace)
        self._owner = f"{_RBAC}/clusterroles/{own}"
        self._dependents = (
            f"{_RBAC}/clusterrolebindings/{own}",
            f"{_RBAC}/namespaces/{place}/roles/{own}",
            f"{_RBAC}/namespaces/{place}/rolebindings/{own}",
            f"/api/v1/namespaces/{place}/serviceaccounts/{own}",
            f"/apis/apps/v1/namespaces/{place}/deployments/{own}",
        )

    async def tie(self) -> None:
        """Make the ClusterRole the owner of all others; raises ``KubeError``. Idempotent."""
        owner = (await _get(self._session, self._owner, _Object)).metadata
        reference = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "name": self._name,
            "uid": owner.uid,
        }
        body = msgspec.json.encode({"metadata": {"ownerReferences": [reference]}})
        for path in self._dependents:
            await self._session.request(
                "PATCH", path, body=body, content_type=MERGE_PATCH, timeout_s=_TIMEOUT_S, idempotent=True
            )

    async def remove(self) -> None:
        """Delete the ClusterRole and thereby all others; raises ``KubeError``."""
        try:
            await self._session.request("DELETE", self._owner, timeout_s=_TIMEOUT_S, idempotent=True)
        except ApiError as error:
            if not error.not_found:
                raise


async def _get(session: Session, path: str, kind: type[T], params: Mapping[str, str] | None = None) -> T:
    answer = await session.request("GET", path, params=params, timeout_s=_TIMEOUT_S)
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedAnswer(path, f"unexpected response ({error})") from error
