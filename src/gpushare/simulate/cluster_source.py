"""The state of a live cluster: one list request per kind, nothing else."""

import asyncio
from typing import Final

import msgspec

from gpushare.api import names
from gpushare.api.json_objects import Json
from gpushare.kube.auth.access import Access
from gpushare.kube.client.errors import ApiError
from gpushare.kube.client.listing import list_pages
from gpushare.kube.client.session import Session
from gpushare.simulate.snapshot import ClusterState, state_of

#: (path, kind, query, whether the kind, or permission to read it, may be missing).
_LISTS: Final[tuple[tuple[str, str, dict[str, str], bool], ...]] = (
    ("/api/v1/nodes", "Node", {}, False),
    ("/api/v1/pods", "Pod", {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}, False),
    (
        f"/apis/{names.POLICY_GROUP}/{names.POLICY_VERSION}/{names.POLICY_PLURAL}",
        "ResourcePolicy",
        {},
        True,
    ),
    (
        f"/apis/{names.QUOTA_GROUP}/namespaces/{names.QUOTA_NAMESPACE}/{names.QUOTA_PLURAL}",
        names.QUOTA_KIND,
        {},
        True,
    ),
    ("/apis/scheduling.k8s.io/v1/priorityclasses", "PriorityClass", {}, True),
    ("/api/v1/namespaces", "Namespace", {}, True),
    ("/apis/policy/v1/poddisruptionbudgets", "PodDisruptionBudget", {}, True),
    ("/apis/batch/v1/jobs", "Job", {}, True),
    ("/apis/resource.k8s.io/v1/resourceclaims", "ResourceClaim", {}, True),
    ("/apis/resource.k8s.io/v1/resourceclaimtemplates", "ResourceClaimTemplate", {}, True),
    ("/apis/resource.k8s.io/v1/deviceclasses", "DeviceClass", {}, True),
)
_EXPIRED_TRIES: Final = 3


async def read_cluster(access: Access) -> ClusterState:
    """The state at the API server; raises ``KubeError``.

    Kinds that it does not know, or does not permit us to read, count as empty, except nodes and pods.
    """
    async with Session(access, connections=len(_LISTS)) as session:
        lists = await asyncio.gather(
            *(_read(session, path, kind, query, may_lack=lack) for path, kind, query, lack in _LISTS)
        )
    return state_of((item for listed in lists for item in listed), f"cluster {access.server}")


async def _read(
    session: Session, path: str, kind: str, query: dict[str, str], *, may_lack: bool
) -> list[Json]:
    for tries_left in reversed(range(_EXPIRED_TRIES)):
        found: list[Json] = []
        try:
            async for page in list_pages(session, path, query):
                # Items of a list do not contain their kind.
                found += [{**msgspec.json.decode(item), "kind": kind} for item in page.items]
        except ApiError as error:
            if may_lack and error.status in (403, 404):
                return []
            if not (error.gone and tries_left):
                raise
        else:
            return found
    raise AssertionError("the last try returns or raises")
