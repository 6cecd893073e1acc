"""The scheduler's Service, through which its decisions are read as on a cluster with the chart, and the account that may read them."""

import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gpushare.api.names import READER_ACCOUNT, SCHEDULER_NAME
from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import KubeError
from gpushare.kube.client.session import Session
from gpushare_playground.cluster.errors import ClusterError

_NAMESPACE: Final = "kube-system"
_PORT: Final = "health"


async def publish(kubeconfig: Path, extender_url: str) -> None:
    """Create the Service, endpoints that lead to the extender, and the account that may read. Raises ``ClusterError``."""
    at = urlsplit(extender_url)
    metadata = {"name": SCHEDULER_NAME, "namespace": _NAMESPACE}
    port = {"name": _PORT, "port": at.port, "protocol": "TCP"}
    service: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"clusterIP": "None", "ports": [port]},
    }
    endpoints: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": metadata,
        "subsets": [{"addresses": [{"ip": at.hostname}], "ports": [port]}],
    }
    account: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": READER_ACCOUNT, "namespace": _NAMESPACE},
    }
    async with Session(load_access(str(kubeconfig))) as session:
        for plural, made in (
            ("serviceaccounts", account),
            ("services", service),
            ("endpoints", endpoints),
        ):
            try:
                body = json.dumps(made).encode()
                await session.request("POST", f"/api/v1/namespaces/{_NAMESPACE}/{plural}", body=body)
            except KubeError as error:
                raise ClusterError(f"the scheduler's {made['kind']} cannot be made: {error}") from error
