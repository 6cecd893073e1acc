"""Finds a node agent's node from its token.

From Kubernetes 1.30 on the token says it. Before, it says which pod it was made for (name and UID), and the pod
says where it is; a pod never changes its node, so that is asked once for each.
"""

import logging
from typing import Final, Protocol

from gpushare.admission.review.admission_review import UserInfo
from gpushare.admission.review.annotation_guard import NODE_NAME, POD_NAME, POD_UID
from gpushare.api.objects import Pod
from gpushare.kube.client.errors import KubeError
from gpushare.process.log_setup import about

logger = logging.getLogger(__name__)

_SERVICE_ACCOUNT: Final = "system:serviceaccount:"
#: Cache size: more than a cluster has nodes.
_MOST_KEPT: Final = 20_000


class PodReader(Protocol):
    """Reads a pod (``gpushare.kube.client.client.Client``)."""

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """The current pod; raises ``KubeError``."""


class TokenPlaces:
    """Finds the node in the token, or in the pod that it names."""

    def __init__(self, pods: PodReader) -> None:
        self._pods = pods
        self._known: dict[str, str] = {}

    async def node_of(self, user: UserInfo) -> str:
        """The node; empty if neither the token nor its pod has one."""
        if node := user.claim(NODE_NAME):
            return node
        name, uid = user.claim(POD_NAME), user.claim(POD_UID)
        namespace, colon, _ = user.username.removeprefix(_SERVICE_ACCOUNT).partition(":")
        if not name or not uid or not colon or not user.username.startswith(_SERVICE_ACCOUNT):
            return ""
        if (known := self._known.get(uid)) is not None:
            return known
        try:
            pod = await self._pods.get_pod(namespace, name)
        except KubeError as error:
            key = f"{namespace}/{name}"
            logger.warning(
                "pod %s, which a node agent's token names, cannot be read: %s",
                key,
                error,
                extra=about(pod=key, uid=uid),
            )
            return ""
        if pod.metadata.uid != uid or not pod.spec.node_name:
            return ""
        if len(self._known) >= _MOST_KEPT:
            self._known.clear()
        self._known[uid] = pod.spec.node_name
        return pod.spec.node_name
