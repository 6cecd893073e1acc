"""The kinds of our own that a cluster has to know: those that the chart installs."""

import asyncio
import json
import time
from pathlib import Path
from typing import Final

import yaml

from gpushare.kube.access import load_access
from gpushare.kube.errors import ApiError, KubeError
from gpushare.kube.session import Session
from gpushare.playground.cluster.errors import ClusterError

#: A copy of the chart's ``ack-co-scheduler/crd/resourcepolicies.yaml``.
RESOURCE_POLICIES: Final = (
    Path(__file__).resolve().parents[1] / "controlplane" / "manifests" / "resourcepolicies.yaml"
)
_PATH: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_SERVED_S: Final = 30.0
_POLL_S: Final = 0.1


async def define(kubeconfig: Path) -> None:
    """Make ResourcePolicies known to the API server and wait until it serves them. Raises ``ClusterError``."""
    definition = yaml.safe_load(await asyncio.to_thread(RESOURCE_POLICIES.read_text))
    spec = definition["spec"]
    served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    async with Session(load_access(str(kubeconfig))) as session:
        try:
            await session.request("POST", _PATH, body=json.dumps(definition).encode())
        except KubeError as error:
            raise ClusterError(f"ResourcePolicies cannot be made known: {error}") from error
        deadline_s = time.monotonic() + _SERVED_S
        while True:
            try:
                await session.request("GET", served)
            except ApiError as error:
                if not (error.not_found or error.passing) or time.monotonic() > deadline_s:
                    raise ClusterError(f"ResourcePolicies are not served: {error}") from error
                await asyncio.sleep(_POLL_S)
            else:
                return
