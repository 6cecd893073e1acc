"""The Node object: registration, status every few seconds, and the lease as heartbeat.

Capacity and allocatable follow the real kubelet: what others patched into the capacity is kept and copied to
allocatable, what they removed stays removed; a device plugin's resources are ours, and one whose
plugin has been absent too long is set to 0, not removed.
"""

import json
import logging
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gpushare import __version__
from gpushare.api.quantity import Quantity
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.client.session import MERGE_PATCH, Session, segment
from gpushare.kube.clock import Clock
from gpushare_playground.kubelet.pods.podstatus import rfc3339
from gpushare_playground.kubelet.settings import Settings

KUBELET_VERSION: Final = f"v1.36.0-gpushare.{__version__}"
_LEASE_NAMESPACE: Final = "kube-node-lease"
_HEALTHY: Final = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)
#: Without it, an API server from 1.36 on speaks SPDY to us if a client spoke WebSocket to it.
_DECLARED: Final = ("ExtendWebSocketsToKubelet",)
_log = logging.getLogger(__name__)
ResourceList = dict[str, Quantity]


def merged_resources(
    before: Mapping[str, Quantity],
    own: Mapping[str, Quantity],
    capacity: Mapping[str, int],
    allocatable: Mapping[str, int],
    dropped: Iterable[str] = (),
) -> tuple[ResourceList, ResourceList]:
    """(capacity, allocatable) of the node.

    ``before`` is the capacity in the API server, ``own`` the machine's, ``capacity`` and
    ``allocatable`` those of device plugins, ``dropped`` their resources that do not exist any more.
    """
    capacity_now: ResourceList = {**before, **own}
    capacity_now |= dict.fromkeys(dropped, "0")
    capacity_now |= {name: str(amount) for name, amount in capacity.items()}
    allocatable_now = dict(capacity_now)
    allocatable_now |= {name: str(amount) for name, amount in allocatable.items()}
    return capacity_now, allocatable_now


class NodeStatus:
    """Keeps one Node object up to date. ``port`` is that of logs and exec."""

    def __init__(self, settings: Settings, session: Session, clock: Clock, port: int) -> None:
        self._settings = settings
        self._session = session
        self._clock = clock
        self._port = port
        self._path = f"/api/v1/nodes/{segment(settings.node)}"
        self._lease_failure_logged = False
        self.allocatable: ResourceList = {}
        """As last written: what can be allocated to pods here."""

    @property
    def own(self) -> ResourceList:
        """The node's resources other than devices."""
        settings = self._settings
        return {
            "cpu": settings.cpu,
            "memory": settings.memory,
            "pods": str(settings.pods),
            "ephemeral-storage": "100Gi",
        }

    async def write(
        self, capacity: Mapping[str, int], allocatable: Mapping[str, int], dropped: Iterable[str]
    ) -> None:
        """Create the Node if it is missing, and write its status; raises ``KubeError``."""
        try:
            node = json.loads(await self._session.request("GET", self._path))
        except ApiError as error:
            if not error.not_found:
                raise
            node = await self._register()
        status = node.get("status") or {}
        before = status.get("capacity") or {}
        capacity_now, allocatable_now = merged_resources(before, self.own, capacity, allocatable, dropped)
        patch: dict[str, Any] = {
            "capacity": _changes(before, capacity_now),
            "allocatable": _changes(status.get("allocatable") or {}, allocatable_now),
            "addresses": [
                {"type": "InternalIP", "address": self._settings.node_ip},
                {"type": "Hostname", "address": self._settings.node},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "nodeInfo": node_info(),
            "declaredFeatures": list(_DECLARED),
            "conditions": self._conditions(status.get("conditions") or []),
        }
        await self._session.request(
            "PATCH",
            f"{self._path}/status",
            body=json.dumps({"status": patch}).encode(),
            content_type=MERGE_PATCH,
            idempotent=True,
        )
        self.allocatable = allocatable_now

    async def renew_lease(self) -> None:
        """Renew the lease of the node; a failure is logged once."""
        now = datetime.fromtimestamp(self._clock.time_ns() / 1e9, UTC)
        spec = {
            "holderIdentity": self._settings.node,
            "leaseDurationSeconds": self._settings.lease_duration_s,
            "renewTime": f"{now:%Y-%m-%dT%H:%M:%S.%f}Z",
        }
        folder = f"/apis/coordination.k8s.io/v1/namespaces/{_LEASE_NAMESPACE}/leases"
        name = self._settings.node
        try:
            try:
                await self._session.request(
                    "PATCH",
                    f"{folder}/{segment(name)}",
                    body=json.dumps({"spec": spec}).encode(),
                    content_type=MERGE_PATCH,
                )
            except ApiError as error:
                if not error.not_found:
                    raise
                lease = {
                    "apiVersion": "coordination.k8s.io/v1",
                    "kind": "Lease",
                    "metadata": {"name": name, "namespace": _LEASE_NAMESPACE},
                    "spec": spec,
                }
                await self._session.request("POST", folder, body=json.dumps(lease).encode())
        except KubeError as error:
            if not self._lease_failure_logged:
                _log.warning("the node's lease is not renewed (node %s, fault %s)", name, str(error))
            self._lease_failure_logged = True
        else:
            self._lease_failure_logged = False

    async def _register(self) -> dict[str, Any]:
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self._settings.node, "labels": self._labels()},
            "spec": {},
        }
        raw = await self._session.request("POST", "/api/v1/nodes", body=json.dumps(node).encode())
        _log.info("node registered (node %s)", self._settings.node)
        created: dict[str, Any] = json.loads(raw)
        return created

    def _labels(self) -> dict[str, str]:
        """Labels at registration; later ones are up to the cluster, as with a real kubelet."""
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        return {
            "kubernetes.io/hostname": self._settings.node,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": machine,
            "beta.kubernetes.io/os": "linux",
            "beta.kubernetes.io/arch": machine,
            **dict(self._settings.labels),
        }

    def _conditions(self, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
        now = rfc3339(self._clock.time_ns())
        before_by_type = {condition.get("type"): condition for condition in before}
        own_conditions = []
        for kind, holds, reason, message in _HEALTHY:
            last = before_by_type.pop(kind, {})
            since = last.get("lastTransitionTime") if last.get("status") == holds else None
            own_conditions.append(
                {
                    "type": kind,
                    "status": holds,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": since or now,
                }
            )
        return [*before_by_type.values(), *own_conditions]


def node_info() -> dict[str, str]:
    """Operating system and versions of this machine."""
    return {
        "machineID": "",
        "systemUUID": "",
        "bootID": "",
        "kernelVersion": platform.release(),
        "osImage": "gpushare playground (processes of this machine)",
        "containerRuntimeVersion": f"playground://{__version__}",
        "kubeletVersion": KUBELET_VERSION,
        "kubeProxyVersion": KUBELET_VERSION,
        "operatingSystem": "linux",
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
    }


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """A merge patch from one list of resources to another: only the differences, so that others may write too."""
    removed: dict[str, Any] = dict.fromkeys(before.keys() - after.keys())
    return removed | {name: amount for name, amount in after.items() if before.get(name) != amount}
