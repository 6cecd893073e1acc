"""Our own kinds, which a cluster needs: those that the chart installs."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any, Final

from gpushare.kube.auth.access import load_access
from gpushare.kube.client.errors import ApiError, KubeError
from gpushare.kube.client.session import Session
from gpushare.kube.crds import MANIFESTS, definition
from gpushare_playground.cluster.errors import ClusterError

_PATH: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_SERVED_S: Final = 30.0
_POLL_S: Final = 0.1


async def define(kubeconfig: Path) -> None:
    """Create our CRDs in the API server and wait until it serves them. Raises ``ClusterError``."""
    async with Session(load_access(str(kubeconfig))) as session:
        for name in MANIFESTS:
            await _define(session, await asyncio.to_thread(definition, name))


async def _define(session: Session, definition: dict[str, Any]) -> None:
    spec = definition["spec"]
    kind = spec["names"]["kind"]
    served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    try:
        await session.request("POST", _PATH, body=json.dumps(definition).encode())
    except KubeError as error:
        raise ClusterError(f"{kind} cannot be made known: {error}") from error
    deadline_s = time.monotonic() + _SERVED_S
    while True:
        try:
            await session.request("GET", served)
        except ApiError as error:
            if not (error.not_found or error.passing) or time.monotonic() > deadline_s:
                raise ClusterError(f"{kind} is not served: {error}") from error
            await asyncio.sleep(_POLL_S)
        else:
            return
