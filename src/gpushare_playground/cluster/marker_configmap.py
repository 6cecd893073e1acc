"""A playground's marker in its cluster: that its parts are processes, and the extender's address.

``gpushare doctor`` reads it: no chart is installed here, and no pod can be checked for readiness.
"""

import json
from pathlib import Path
from typing import Final

from gpushare.kube.auth.access import load_access
from gpushare.kube.client.session import Session

NAME: Final = "gpushare-playground"


async def announce(kubeconfig: Path, extender: str) -> None:
    """Write it; ``extender`` is the extender's URL. Raises ``KubeError``."""
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": "kube-system"},
        "data": {"scheduler": extender},
    }
    async with Session(load_access(str(kubeconfig))) as session:
        await session.request(
            "POST", "/api/v1/namespaces/kube-system/configmaps", body=json.dumps(body).encode()
        )
