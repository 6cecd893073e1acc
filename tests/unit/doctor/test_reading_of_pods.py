"""Which pods are read in addition to ours: all in namespaces with policies, and the owners of waiting gangs."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gpushare.api import names
from gpushare.doctor.cluster.facts import name_of
from gpushare.doctor.cluster.reader import Reader
from gpushare.doctor.findings import Unread
from gpushare.kube.client.errors import ApiError
from tests.unit.doctor.test_reading_of_the_webhook import Server, read

PODS = "/api/v1/pods"
POLICIES = f"/apis/{names.POLICY_GROUP}/{names.POLICY_VERSION}/{names.POLICY_PLURAL}"
JOB = "/apis/batch/v1/namespaces/default/jobs/train"


def pod(name: str, namespace: str = "default", resource: str = "cpu", **metadata: Any) -> dict[str, Any]:
    limits = {resource: "1"}
    return {
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
    }


async def test_a_pod_with_a_misspelt_resource_is_read_and_an_unrelated_one_is_not() -> None:
    resources = ["alyun.com/gpu-mem", "aliyun.com/gup-mem", names.GPU_MEM, "aliyun.com/GPU-mem", "cpu"]
    facts = await read(Server({PODS: [pod(f"p{at}", resource=one) for at, one in enumerate(resources)]}))
    assert not isinstance(facts.pods, Unread)
    assert [one.metadata.name for one in facts.pods] == ["p0", "p1", "p2", "p3"]
    assert facts.policy_pods == []


async def test_in_namespaces_with_policies_all_pods_are_read() -> None:
    policy = {"metadata": {"name": "p", "namespace": "web"}}
    facts = await read(Server({PODS: [pod("a", "web"), pod("b")], POLICIES: [policy]}))
    assert not isinstance(facts.policy_pods, Unread)
    assert [one.key for one in facts.policy_pods] == ["web/a"]


class Slow(Server):
    """Its list of pods takes 40 s."""

    server_date = ""

    async def request(self, method: str, path: str, **others: Any) -> bytes:
        if path == PODS:
            self.server_date = "Sun, 22 Nov 2026 10:00:40 GMT"
        elif self.server_date == "":
            self.server_date = "Sun, 22 Nov 2026 10:00:00 GMT"
        return await super().request(method, path, **others)


async def test_the_clocks_and_leases_are_read_before_the_lists_that_may_take_long() -> None:
    server = Slow({})
    facts = await read(server)
    assert facts.server_time_s == datetime(2026, 11, 22, 10, tzinfo=UTC).timestamp()
    leases = [at for at, path in enumerate(server.requests) if path.partition("?")[0].endswith("/leases")]
    assert len(leases) == 2
    assert max(leases) < server.requests.index(PODS)


class WithJob(Server):
    """A gang's two pods, and their Job, with a status."""

    def __init__(self, status: int = 200) -> None:
        owner = {"kind": "Job", "name": "train", "uid": "u", "controller": True}
        gang = {names.LABEL_GANG_NAME: "g", names.LABEL_GANG_LEAST: "5"}
        both = [
            pod(name, resource=names.GPU_MEM, labels=gang, ownerReferences=[owner]) for name in ("a", "b")
        ]
        super().__init__({PODS: both})
        self._status = status

    async def request(self, method: str, path: str, **others: Any) -> bytes:
        if path == JOB:
            self.requests.append(path)
            if self._status != 200:
                raise ApiError(self._status, "", "no", path)
            return b'{"kind": "Job", "metadata": {"name": "train", "namespace": "default", "uid": "u"}}'
        return await super().request(method, path, **others)


async def test_the_owner_of_a_waiting_gang_is_read_once() -> None:
    server = WithJob()
    facts = await Reader(server, 1.0).read()  # type: ignore[arg-type]
    assert not isinstance(facts.owners, Unread)
    assert [name_of(one) for one in facts.owners] == ["default/train"]
    assert server.requests.count(JOB) == 1


@pytest.mark.parametrize(("status", "refused"), [(404, None), (403, True)])
async def test_a_missing_owner_is_left_out_and_a_forbidden_one_is_unread(
    status: int, refused: bool | None
) -> None:
    owners = (await Reader(WithJob(status), 1.0).read()).owners  # type: ignore[arg-type]
    assert owners == [] if refused is None else isinstance(owners, Unread) and owners.refused


async def test_the_names_of_namespaces_and_the_trees_of_all_of_them_are_read() -> None:
    trees = f"/apis/{names.QUOTA_GROUP}/{names.QUOTA_PLURAL}"
    tree = {"metadata": {"name": "t", "namespace": "default"}}
    facts = await read(Server({"/api/v1/namespaces": [{"metadata": {"name": "a"}}], trees: [tree]}))
    assert facts.namespaces == frozenset(("a",))
    assert facts.quota_trees == [tree]
