"""The playground's API server with a cluster in it from the start, and with the objects of the webhook's certificates.

Usage: ``python -m benchmarks.load.api FOLDER NODES PLACED WAITING``; ``FOLDER`` gets ``kubeconfig``, and then ``reader``, a token for
decisions and usage.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from benchmarks.api_server import described_node, node_object, pod_object
from gpushare.admission.certs.store import KINDS
from gpushare.api import names
from gpushare.api.quantity import MemoryUnit
from gpushare.kube.auth.access import load_access
from gpushare.kube.auth.token_reviews import token_of
from gpushare.kube.client.session import Session
from gpushare_playground.apiserver import ApiServer
from gpushare_playground.apiserver.kinds.resources import Resource

NAMESPACE: Final = "kube-system"
#: Name of the webhook's Secret and configurations.
NAME: Final = "gpushare-admission"
_GROUP: Final = "admissionregistration.k8s.io"
_GPU_MIB: Final = 81920
#: More than any GPU has, in different amounts, so that each pending pod is checked on every node.
_TOO_MUCH: Final = range(81, 97)


def waiting_units(number: int) -> int:
    """The request of the ``number``-th pending pod."""
    return _TOO_MUCH[number % len(_TOO_MUCH)]


def _kind_of(plural: str) -> Resource:
    singular = plural.removesuffix("s")
    return Resource(
        group=_GROUP,
        version="v1",
        kind=singular,
        plural=plural,
        singular=singular,
        storage=f"{plural}.{_GROUP}",
        storage_version=f"{_GROUP}/v1",
        namespaced=False,
    )


def _fill(server: ApiServer, nodes: int, placed: int, waiting: int) -> None:
    described = [described_node(number, _GPU_MIB, MemoryUnit.GIB) for number in range(nodes)]
    for one in described:
        _put(server, "nodes", "v1", "Node", "", node_object(one, 0))
    for number in range(placed):
        _put(server, "pods", "v1", "Pod", "default", pod_object(number, 0, 1, described[number % nodes]))
    for number in range(waiting):
        pod = pod_object(placed + number, 0, waiting_units(number), None)
        _put(server, "pods", "v1", "Pod", "default", pod)
    account = {
        "metadata": {"name": names.READER_ACCOUNT, "namespace": NAMESPACE, "uid": names.READER_ACCOUNT}
    }
    _put(server, "serviceaccounts", "v1", "ServiceAccount", NAMESPACE, account)
    secret: dict[str, object] = {"metadata": {"name": NAME, "namespace": NAMESPACE, "uid": NAME}}
    _put(server, "secrets", "v1", "Secret", NAMESPACE, secret)
    for plural in KINDS:
        kind = _kind_of(plural)
        server.registry.add(kind)
        configuration: dict[str, object] = {
            "metadata": {"name": NAME, "uid": plural},
            "webhooks": [{"name": "all", "clientConfig": {}}],
        }
        _put(server, kind.storage, kind.api_version, kind.kind, "", configuration)


def _put(
    server: ApiServer, storage: str, version: str, kind: str, namespace: str, obj: dict[str, object]
) -> None:
    made = {"apiVersion": version, "kind": kind, **obj}
    name = cast("dict[str, Any]", made["metadata"])["name"]
    server.store.put(storage, namespace, name, made)


async def _serve(folder: Path, nodes: int, placed: int, waiting: int) -> None:
    server = ApiServer(folder)
    _fill(server, nodes, placed, waiting)
    async with server:
        async with Session(load_access(str(server.kubeconfig_path))) as session:
            token = await token_of(
                session, NAMESPACE, names.READER_ACCOUNT, names.READER_AUDIENCE, seconds=3600
            )
        new = folder / "reader.new"
        new.write_text(token)
        new.replace(folder / "reader")
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(Path(sys.argv[1]), *map(int, sys.argv[2:])))
